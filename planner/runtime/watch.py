"""What must not change under an applied plan, and what must be equal for a tape to hold: cheap enough to
ask each time.
"""

from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from itertools import chain
from operator import attrgetter, is_
from typing import Any

import torch
from torch.utils._pytree import tree_flatten

from planner.errors import PlanMismatchError
from planner.runtime.autocasting import autocast_state

_SCALARS = bool | int | float | complex | str | torch.dtype | None
# Compared by more than equality.
_UNHASHED = frozenset({torch.Tensor, list, tuple})
# Bookkeeping of torch.nn.Module, and what a signature holds anyway.
_NOT_WATCHED = frozenset({"training", "_is_full_backward_hook", "_compiled_call_impl"})
_LONGEST_SEQUENCE = 64
_dtype_of, _device_of = attrgetter("dtype"), attrgetter("device")
# Changes without effect after which an attribute, such as a step counter, is no longer watched.
_MAX_FALSE_ALARMS = 3


class ModelWatch:
    """The modules, parameters and plain attributes of a model as they were when a plan was applied.

    Attributes:
        fsdp_units: paths of the modules that `fully_shard` was called on, the root first.
    """

    def __init__(self, model: torch.nn.Module) -> None:
        self._modules = list(model.modules())
        self._child_tables = [module._modules for module in self._modules if module._modules]
        self._child_names = list(chain.from_iterable(self._child_tables))
        self._child_modules = _values_of(self._child_tables)
        self._children = [
            (module._modules, name, child, f"{fqn}.{name}" if fqn else name)
            for fqn, module in model.named_modules()
            for name, child in module._modules.items()
        ]
        self._tensors = [
            (table, name, _kind(table[name]), f"{fqn}.{name}" if fqn else name)
            for fqn, module in model.named_modules()
            for table in (module._parameters, module._buffers)
            for name in table
        ]
        self._accepted = self._kinds()
        self._model = model
        self.fsdp_units = tuple(fqn for fqn, module in model.named_modules() if _is_fsdp_unit(module))
        self._attributes = list(_attributes(self._modules))
        self._snapshot = self._values()
        self._false_alarms = [0] * len(self._attributes)

    def check(self) -> None:
        """Returns when the model is still the one to which the plan was applied.

        Raises:
            PlanMismatchError: a module was replaced, or a tensor moved or recast.
        """
        if not self._has_its_children():
            self._refuse_replaced()
        if self.fsdp_units:
            return  # FSDP swaps a parameter and its shard
        if _is_fsdp_unit(self._model):
            raise PlanMismatchError("fully_shard was called after the plan was applied; call it first")
        kinds = self._kinds()
        if kinds != self._accepted:
            self._refuse_recast()
            self._accepted = kinds

    def _has_its_children(self) -> bool:
        """Whether each module has the children it had, which is cheap to tell: it mostly has."""
        now = _values_of(self._child_tables)
        return (
            len(now) == len(self._child_modules)
            and all(map(is_, now, self._child_modules))
            and list(chain.from_iterable(self._child_tables)) == self._child_names
        )

    def _refuse_replaced(self) -> None:
        for table, name, child, path in self._children:
            if table.get(name) is not child:
                raise PlanMismatchError(
                    f"module {path} was replaced after the plan was applied; remove the plan and apply one for the "
                    "new model"
                )

    def _refuse_recast(self) -> None:
        for tensors, name, kind, path in self._tensors:
            now = _kind(tensors.get(name))
            if now != kind and not (kind and now and kind[1] == "meta" and kind[0] == now[0]):
                raise PlanMismatchError(
                    f"{path} was {_described(kind)} when the plan was applied and is {_described(now)} now; remove the "
                    "plan, and apply it once the model is as it is to be trained"
                )

    def _kinds(self) -> tuple[list[bool], list[torch.dtype], list[torch.device]]:
        """What `_refuse_recast` looks at, in a form that is quick to make and to compare."""
        now = self._now()
        present = [tensor for tensor in now if tensor is not None]
        missing = [] if len(present) == len(now) else [tensor is None for tensor in now]
        return missing, list(map(_dtype_of, present)), list(map(_device_of, present))

    def _now(self) -> list[torch.Tensor | None]:
        """The parameters and buffers in place now."""
        return [table.get(name) for table, name, _, _ in self._tensors]

    def finders(self) -> Mapping[str, Callable[[], torch.Tensor]]:
        """A way to each parameter and buffer that finds the one in place when it is called."""
        return {
            path: lambda table=table, name=name: table[name]  # type: ignore[misc]
            for table, name, _, path in self._tensors
        }

    def parameter_names(self) -> dict[int, str]:
        """The names of the parameters in place now, by `id`."""
        paths = zip(reversed(self._now()), reversed(self._tensors), strict=True)
        return {id(tensor): path for tensor, (_, _, _, path) in paths if tensor is not None}

    def signature(self, device: torch.device, args: Any, kwargs: Any) -> tuple[Hashable, list[torch.Tensor]]:
        """What must be equal for a tape to hold, and the tensors among the arguments.

        Layouts and aliasing of the inputs, other arguments, modes.
        """
        leaves, spec = tree_flatten((args, kwargs))
        inputs = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        signature = (
            spec,
            _layouts(inputs),
            tuple([None if isinstance(leaf, torch.Tensor) else _plain(leaf) for leaf in leaves]),
            tuple([module.training for module in self._modules]),
            tuple([tensor is not None and tensor.requires_grad for tensor in self._now()]),
            autocast_state(device.type),
        )
        return signature, inputs

    def changed_attributes(self) -> list[int]:
        """Positions of the watched attributes that changed since they were last asked for."""
        values = self._values()
        if values == self._snapshot:
            return []
        changed = [place for place, (old, new) in enumerate(zip(self._snapshot, values, strict=True)) if old != new]
        self._snapshot = values
        return changed

    def forgive(self, places: list[int]) -> None:
        """Count that these attributes changed and forward did not."""
        for place in places:
            self._false_alarms[place] += 1
        left = [place for place, alarms in enumerate(self._false_alarms) if alarms < _MAX_FALSE_ALARMS]
        if len(left) < len(self._attributes):
            self._attributes = [self._attributes[place] for place in left]
            self._snapshot = [self._snapshot[place] for place in left]
            self._false_alarms = [self._false_alarms[place] for place in left]

    def _values(self) -> list[Any]:
        items = [attributes.get(name) for attributes, name in self._attributes]
        return [_plain(item) if type(item) in _UNHASHED else item for item in items]


def _is_fsdp_unit(module: torch.nn.Module) -> bool:
    return hasattr(module, "_get_fsdp_state")


def _attributes(modules: list[torch.nn.Module]) -> Iterator[tuple[dict[str, Any], str]]:
    """The plain attributes of the modules, and of the objects they hold, such as their configuration."""
    seen: set[int] = set()
    for module in modules:
        for name, item in vars(module).items():
            if _is_plain(item):
                if name not in _NOT_WATCHED:
                    yield vars(module), name
            elif id(item) not in seen and _is_record(item):
                seen.add(id(item))
                yield from ((vars(item), key) for key, value in vars(item).items() if _is_plain(value))


def _is_plain(item: Any) -> bool:
    if isinstance(item, _SCALARS) or type(item) is torch.Tensor:
        return True
    return (
        type(item) in (tuple, list)
        and len(item) <= _LONGEST_SEQUENCE
        and all(isinstance(part, _SCALARS) for part in item)
    )


def _is_record(item: Any) -> bool:
    return (
        hasattr(item, "__dict__") and not callable(item) and not isinstance(item, torch.Tensor | torch.nn.Module | type)
    )


def _plain(item: Any) -> Any:
    if isinstance(item, torch.Tensor):
        return id(item), -1 if item.is_inference() else item._version
    if isinstance(item, _SCALARS):
        return (type(item), item)  # 1, 1.0 and True are equal
    if type(item) in (tuple, list):
        return tuple(item) if _is_plain(item) else type(item)
    return type(item)


def _layouts(inputs: list[torch.Tensor]) -> Hashable:
    """Layouts; offsets from the first input on the same storage, so that slices of one batch are alike."""
    first: dict[int, tuple[int, int]] = {}
    found = []
    for place, tensor in enumerate(inputs):
        offset = int(tensor.storage_offset())
        start, alias = first.setdefault(tensor.untyped_storage()._cdata, (offset, place))
        found.append((*_layout(tensor), alias, offset - start))
    return tuple(found)


def _layout(tensor: torch.Tensor) -> tuple[Hashable, ...]:
    return type(tensor), tensor.shape, tensor.stride(), tensor.dtype, tensor.device, tensor.requires_grad


def _values_of(tables: Iterable[Mapping[str, Any]]) -> list[Any]:
    return list(chain.from_iterable([table.values() for table in tables]))


def _kind(tensor: torch.Tensor | None) -> tuple[torch.dtype, str] | None:
    return None if tensor is None else (tensor.dtype, tensor.device.type)


def _described(kind: tuple[torch.dtype, str] | None) -> str:
    return "missing" if kind is None else f"{str(kind[0]).removeprefix('torch.')} on {kind[1]}"
