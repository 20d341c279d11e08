"""What memory is alive for, in the words of reports. Needs nothing, so that reports can name kinds without numpy."""

from enum import StrEnum


class MemoryKind(StrEnum):
    """Why bytes are alive at a moment of the step; every byte has one kind. In the order of a stacked chart.

    An activation that the plan holds, or sends to the host, counts as that from the moment it is made. One that it
    drops counts with forward's own tensors there, and with replays in backward.
    """

    PARAMETERS = "parameters"  # and buffers
    OPTIMIZER_STATE = "optimizer state"
    BUCKETS = "DDP buckets"
    GRADIENTS = "gradients"  # of parameters
    SHARDING = "FSDP buffers"  # gathered parameters, inputs of reduce-scatters
    INPUTS = "inputs and constants"
    KEPT = "kept for backward"  # saved tensors, and modules' inputs and outputs that replays start from
    OFFLOADED = "offloaded, on the device"  # before it has left, and back from the host
    REPLAYED = "replayed"
    FORWARD = "temporaries of forward"  # what it makes and the plan does not hold
    BACKWARD = "gradients of activations"  # and all else that backward makes but for gradients of parameters
    WORKSPACE = "workspaces"  # of kernels, and what replays make in passing
    OPTIMIZER_STEP = "temporaries of the optimizer"
