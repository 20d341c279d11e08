"""What a dispatched call is: facts of its operator from the schema, its tensors, its cost, and its result.

Results on meta tensors follow from the arguments' shapes, so repeated calls of operators that make new
tensors are answered
from a table: most meta kernels are written in Python, and a sequential scan calls the same few operators
hundreds of thousands of times.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch.utils.flop_counter import flop_registry, sdpa_backward_flop_count, sdpa_flop_count

from planner.tracing.attention import Kernels
from planner.tracing.workspace import workspace_bytes, workspace_rule
from planner.tracing.workspace.call import Rule

# `prim.device` and the like are most of what is dispatched, and no kernel.
_IGNORED_NAMESPACES = frozenset({"prim", "profiler"})
# Allocations without content. Whoever fills them is either a later in-place op or invisible to dispatch.
_EMPTY_OPS = frozenset(
    {"aten.empty", "aten.empty_like", "aten.empty_strided", "aten.new_empty", "aten.new_empty_strided"}
)
# Our stand-ins for operators that exist only on the GPU have these names in a trace.
_NAMESPACE_OF_STAND_INS = "planner_cuda"
# Batch norm writes its running statistics in training, which its schema does not say.
_BATCH_NORMS = frozenset({"aten.native_batch_norm", "aten.cudnn_batch_norm", "aten.miopen_batch_norm"})
_STATISTICS = (3, 4)
_IS_TRAINING = 5
_DTYPE_PREFIX = "torch."
_UNCACHED = frozenset({"aten.empty", "aten.empty_strided"})  # nothing cheaper to answer them with


@dataclass(frozen=True, slots=True, kw_only=True)
class Operator:
    """Facts of one operator overload. Positions are those of its schema's arguments."""

    name: str
    is_ignored: bool
    is_opaque: bool
    is_seeded: bool
    is_functional: bool  # its schema neither writes to its arguments nor returns views of them
    written: tuple[tuple[int, str], ...]
    statistics: tuple[int, ...]  # written, too, if the call says that it is training
    dropout: tuple[int, Any] | None  # position and default of `dropout_p`
    causal: tuple[int, Any] | None  # the same for `is_causal`
    flops: Callable[..., int] | None


@cache
def operator_of(func: Any) -> Operator:
    """The facts of an `OpOverload`."""
    schema = func._schema
    base_name = f"{func.namespace}.{schema.name.split('::')[1]}"
    arguments = {argument.name: (i, argument.default_value) for i, argument in enumerate(schema.arguments)}
    return Operator(
        name=str(func).replace(_NAMESPACE_OF_STAND_INS + ".", "aten."),
        is_ignored=func.namespace in _IGNORED_NAMESPACES,
        is_opaque=base_name in _EMPTY_OPS,
        is_seeded=torch.Tag.nondeterministic_seeded in func.tags,
        is_functional=base_name not in _UNCACHED
        and all(item.alias_info is None for item in (*schema.arguments, *schema.returns)),
        written=tuple(
            (i, argument.name)
            for i, argument in enumerate(schema.arguments)
            if argument.alias_info is not None and argument.alias_info.is_write
        ),
        statistics=_STATISTICS if base_name in _BATCH_NORMS else (),
        dropout=arguments.get("dropout_p"),
        causal=arguments.get("is_causal"),
        flops=_FLOPS.get(base_name) or flop_registry.get(func.overloadpacket),
    )


def _grouped_mm_flops(a: torch.Tensor, b: torch.Tensor, *_: Any, **__: Any) -> int:
    """FLOPs of the products of all groups; torch has no formula for it.

    Args:
        a: M × K, or groups × M × K where the groups do not share one of the sizes.
        b: K × N, or groups × K × N. Where both are matrices the groups divide K, and M, N or K elsewhere.
    """
    groups = a.size(0) if a.dim() == b.dim() == 3 else 1
    return 2 * groups * a.size(-2) * a.size(-1) * b.size(-1)


def _cpu_attention_flops(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any, **__: Any) -> int:
    formula: Any = sdpa_flop_count
    return int(formula(query.shape, key.shape, value.shape))


def _cpu_attention_backward_flops(
    grad_out: torch.Tensor, query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *_: Any, **__: Any
) -> int:
    formula: Any = sdpa_backward_flop_count
    return int(formula(grad_out.shape, query.shape, key.shape, value.shape))


# Formulas that torch's registry lacks.
_FLOPS: Mapping[str, Callable[..., int]] = {
    "aten._grouped_mm": _grouped_mm_flops,
    "aten._scaled_dot_product_flash_attention_for_cpu": _cpu_attention_flops,
    "aten._scaled_dot_product_flash_attention_for_cpu_backward": _cpu_attention_backward_flops,
}


def traffic_bytes(tensors: list[torch.Tensor]) -> int:
    """Bytes that reading or writing the tensors touches: an expanded tensor is no larger than its storage."""
    return sum(min(tensor.nbytes, tensor.untyped_storage().nbytes()) for tensor in tensors)


def compute_dtype(inputs: list[torch.Tensor], outputs: list[torch.Tensor]) -> str:
    """The name of the dtype that the call computes in: that of its first tensor that is no index."""
    for tensor in (*inputs, *outputs):
        if tensor.is_floating_point() or tensor.is_complex():
            return dtype_name(tensor.dtype)
    return dtype_name(outputs[0].dtype) if outputs else ""


def dtype_name(dtype: torch.dtype) -> str:
    """The dtype's name, such as "float32"."""
    return str(dtype).removeprefix(_DTYPE_PREFIX)


def tensors_in(items: Any) -> list[torch.Tensor]:
    """The tensors among call arguments or results, nested in tuples, lists and mappings at most."""
    found: list[torch.Tensor] = []
    _collect(items, found)
    return found


def _collect(item: Any, found: list[torch.Tensor]) -> None:
    if isinstance(item, torch.Tensor):
        found.append(item)
    elif isinstance(item, tuple | list):
        for part in item:
            _collect(part, found)
    elif isinstance(item, dict):
        for part in item.values():
            _collect(part, found)


def written_tensors(operator: Operator, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[torch.Tensor]:
    """The tensors that the call writes to."""
    found: list[torch.Tensor] = []
    for position, name in operator.written:
        _collect(args[position] if position < len(args) else kwargs.get(name), found)
    for position in statistics_places(operator, args):
        _collect(args[position], found)
    return found


def statistics_places(operator: Operator, args: Sequence[Any]) -> tuple[int, ...]:
    """The places of the running statistics that the call writes to: batch norm's, in training."""
    return operator.statistics if operator.statistics and args[_IS_TRAINING] else ()


def is_random(operator: Operator, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether two calls with equal inputs may differ. Attention is tagged random but is not without
    dropout.
    """
    if not operator.is_seeded:
        return False
    return operator.dropout is None or _value(operator.dropout, "dropout_p", args, kwargs) > 0.0


def is_causal(operator: Operator, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bool:
    """Whether the call is attention that skips the masked half."""
    return operator.causal is not None and bool(_value(operator.causal, "is_causal", args, kwargs))


def _value(at: tuple[int, Any], name: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    position, default = at
    return args[position] if position < len(args) else kwargs.get(name, default)


@dataclass(frozen=True, slots=True)
class CallCost:
    """What a call takes: its FLOPs, and the bytes of its kernel's workspace."""

    flops: int
    workspace_bytes: int


@dataclass(frozen=True, slots=True)
class _Answer:
    """The layouts of a call's results, in the shape in which it returned them."""

    layouts: tuple[Any, ...]
    is_single: bool
    container: type
    cost: "CallCost"


class CallTable:
    """Runs calls, and answers repeated ones on meta tensors without running them.

    Args:
        kernels: whose workspaces to count.
    """

    def __init__(self, kernels: Kernels) -> None:
        self._kernels = kernels
        self._answers: dict[Any, _Answer | None] = {}
        self._rules: dict[Any, Rule | None] = {}

    def run(self, func: Any, operator: Operator, args: Any, kwargs: Any) -> tuple[Any, CallCost]:
        """The call's result, made of new tensors where the operator makes new ones, and what it takes."""
        key = _call_key(func, args, kwargs) if operator.is_functional else None
        answer = self._answers.get(key) if key is not None else None
        if answer is not None:
            return _results(answer), answer.cost
        result = func(*args, **kwargs)
        cost = CallCost(
            flops=int(operator.flops(*args, **kwargs, out_val=result)) if operator.flops is not None else 0,
            workspace_bytes=self._workspace_bytes(func, operator, args, kwargs, result),
        )
        if key is not None and key not in self._answers:
            self._answers[key] = _answer(result, args, kwargs, cost)
        return result, cost

    def _workspace_bytes(self, func: Any, operator: Operator, args: Any, kwargs: Any, result: Any) -> int:
        if func not in self._rules:
            self._rules[func] = workspace_rule(func, operator.name, self._kernels)
        rule = self._rules[func]
        return 0 if rule is None else workspace_bytes(rule, func, args, kwargs, tensors_in(result))


class _NoKeyError(Exception):
    """The result may depend on more than the layouts of the arguments."""


def _call_key(func: Any, args: Any, kwargs: Any) -> Any:
    try:
        return (func, _key(args), _key(tuple(kwargs.items())) if kwargs else None)
    except _NoKeyError:
        return None


def _key(item: Any) -> Any:
    if isinstance(item, torch.Tensor):
        if not item.is_meta or item.is_complex() or type(item) not in (torch.Tensor, torch.nn.Parameter):
            raise _NoKeyError
        return (item.shape, item.stride(), item.dtype)
    if isinstance(item, tuple | list):
        return tuple([_key(part) for part in item])
    return (type(item), item)  # 1, 1.0 and True are equal, and promote differently


def _answer(result: Any, args: Any, kwargs: Any, cost: CallCost) -> _Answer | None:
    """The layouts of the results, or None if they are not all tensors of their own on the meta device."""
    is_single = isinstance(result, torch.Tensor)
    if not is_single and type(result) not in (tuple, list):
        return None
    items = (result,) if is_single else tuple(result)
    outputs = tensors_in(items)
    addresses = [tensor.untyped_storage()._cdata for tensor in (*tensors_in((args, kwargs)), *outputs)]
    if len(set(addresses[-len(outputs) :] if outputs else [])) < len(outputs) or any(
        address in addresses[: len(addresses) - len(outputs)] for address in addresses[len(addresses) - len(outputs) :]
    ):
        return None
    if not all(_is_plain(item) if isinstance(item, torch.Tensor) else not isinstance(item, list) for item in items):
        return None
    return _Answer(
        tuple(
            (tuple(item.shape), item.stride(), item.dtype) if isinstance(item, torch.Tensor) else item for item in items
        ),
        is_single,
        type(result),
        cost,
    )


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether `empty_strided` makes an equal one: nothing around it in its storage, no lazy conjugate."""
    if not tensor.is_meta or tensor.is_complex() or tensor.storage_offset() or tensor.layout is not torch.strided:
        return False
    return tensor.untyped_storage().nbytes() == layout_bytes(tensor)


def layout_bytes(tensor: torch.Tensor) -> int:
    """Bytes from the tensor's first element to its last."""
    if not tensor.numel():
        return 0
    last = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return (last + 1) * tensor.element_size()


def _results(answer: _Answer) -> Any:
    made = [
        torch.ops.aten.empty_strided.default(item[0], item[1], dtype=item[2], device="meta")
        if type(item) is tuple
        else item
        for item in answer.layouts
    ]
    return made[0] if answer.is_single else answer.container(made)
