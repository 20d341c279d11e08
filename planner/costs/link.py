"""The link between a device and its host: what a copy of one tensor takes."""

from collections.abc import Iterable
from dataclasses import dataclass

_NS_PER_S = 1_000_000_000
# Host memory for a tensor begins at a multiple of this: copy engines are at their fastest from there on.
HOST_ALIGNMENT_BYTES = 256
# Staging, unless a plan or a caller says otherwise: so many times the largest tensor that leaves. There is much room
# early in forward, and little in backward.
_STAGED_OUT = 8
_STAGED_BACK = 2
# The first tensors come back so many saved tensors before they are needed: most of a transformer's layer.
PREFETCH_LEAD = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class HostLink:
    """What moves tensors to the host and back: one copy at a time in each direction, and both directions at once.

    Left out: that copies slow the computation down by the memory bandwidth they take.
    """

    bytes_per_s: float
    launch_ns: int  # of each copy

    def copy_ns(self, size_bytes: int) -> int:
        """Time of one copy in one direction."""
        return self.launch_ns + round(size_bytes / self.bytes_per_s * _NS_PER_S)


@dataclass(frozen=True, slots=True, kw_only=True)
class Staging:
    """Bytes on the device that may be on their way to the host, and back before they are needed."""

    out_bytes: int
    back_bytes: int

    @staticmethod
    def of(sizes_bytes: Iterable[int]) -> "Staging":
        """Staging for tensors of these sizes."""
        largest_bytes = max(sizes_bytes, default=0)
        return Staging(out_bytes=_STAGED_OUT * largest_bytes, back_bytes=_STAGED_BACK * largest_bytes)


def host_bytes(size_bytes: int) -> int:
    """What a tensor takes of host memory."""
    return -(-size_bytes // HOST_ALIGNMENT_BYTES) * HOST_ALIGNMENT_BYTES
