"""A spec's model with real weights and real inputs, ready to run training steps."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from planner.errors import SpecError
from planner.spec import InputSpec, OptimizerName, RunSpec
from planner.tracing.build import build_inputs, build_model, loss_function

_LEARNING_RATE = 1e-4
# Config keys that say how many values an integer input may take: tokens, then classes.
_TOKEN_LIMITS = ("vocab_size",)
_CLASS_LIMITS = ("num_labels",)
_FALLBACK_LIMIT = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class LiveRun:
    """A model, what it is called with, and its optimizer."""

    module: torch.nn.Module
    inputs: Mapping[str, torch.Tensor]
    loss: Callable[[Any, Mapping[str, torch.Tensor]], torch.Tensor]
    optimizer: torch.optim.Optimizer | None

    def forward_backward(self) -> torch.Tensor:
        """One forward and backward; gradients are set, the loss is returned without its graph."""
        output = self.module(**self.inputs)
        loss = self.loss(output, self.inputs)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    def step(self) -> torch.Tensor:
        """One whole training step; gradients are freed at its end."""
        loss = self.forward_backward()
        if self.optimizer is not None:
            self.optimizer.step()
        self.module.zero_grad(set_to_none=True)
        return loss

    def resident(self) -> list[torch.Tensor]:
        """What is alive between steps; optimizers' step counters apart, which lie on the host in a GPU run."""
        states = [] if self.optimizer is None else self.optimizer.state.values()
        return [
            *self.module.parameters(),
            *self.module.buffers(),
            *self.inputs.values(),
            *(item for state in states for item in state.values() if isinstance(item, torch.Tensor) and item.dim()),
        ]


def make_live(spec: RunSpec, device: torch.device, *, seed: int = 0) -> LiveRun:
    """The spec's model on a device, in the dtype it computes in, with random weights and inputs.

    Raises:
        SpecError: the model cannot be built, or its optimizer has no form here.
    """
    torch.manual_seed(seed)
    module = build_model(spec, device).module
    dtype = getattr(torch, spec.precision.parameters)
    for parameter in module.parameters():
        if parameter.is_floating_point():
            parameter.data = parameter.data.to(dtype)
    described = {item.name: item for item in spec.inputs}
    inputs = {
        name: _filled(name, tensor, described.get(name), module, dtype, device)
        for name, tensor in build_inputs(spec, module).items()
    }
    return LiveRun(module=module, inputs=inputs, loss=loss_function(spec), optimizer=_optimizer(spec, module))


def _filled(
    name: str,
    tensor: torch.Tensor,
    described: InputSpec | None,
    module: torch.nn.Module,
    dtype: torch.dtype,
    device: torch.device,
) -> torch.Tensor:
    """Random content for an input: integers below the limit that the spec or the model's config gives."""
    if described is not None and described.fill_value is not None:
        return torch.full(tensor.shape, described.fill_value, dtype=tensor.dtype, device=device)
    if tensor.is_floating_point():
        return torch.randn(tensor.shape, device=device).to(dtype)
    limit = described.max_value if described is not None else None
    if limit is None:
        limit = _limit(module, _CLASS_LIMITS if tensor.dim() == 1 else _TOKEN_LIMITS)
    return torch.randint(0, limit, tensor.shape, device=device).to(tensor.dtype)


def _limit(module: torch.nn.Module, keys: tuple[str, ...]) -> int:
    config = getattr(module, "config", None)
    return next((int(getattr(config, key)) for key in keys if hasattr(config, key)), _FALLBACK_LIMIT)


def _optimizer(spec: RunSpec, module: torch.nn.Module) -> torch.optim.Optimizer | None:
    """The spec's optimizer in the multi-tensor form that PyTorch takes on a GPU, and that predictions count."""
    trainable = [parameter for parameter in module.parameters() if parameter.requires_grad]
    match spec.optimizer.name:
        case OptimizerName.NONE:
            return None
        case OptimizerName.ADAMW:
            return torch.optim.AdamW(trainable, lr=_LEARNING_RATE, foreach=True)
        case OptimizerName.ADAM:
            return torch.optim.Adam(trainable, lr=_LEARNING_RATE, foreach=True)
        case OptimizerName.SGD:
            return torch.optim.SGD(trainable, lr=_LEARNING_RATE, momentum=spec.optimizer.momentum, foreach=True)
        case other:
            raise SpecError(
                f"verify cannot run {other}: it is not part of PyTorch",
                path=spec.path,
                key="optimizer.name",
                hint="use adamw, adam, sgd or none to verify",
            )
