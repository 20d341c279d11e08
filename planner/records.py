"""Frozen, slotted records with keywords only, as dataclasses are, that cost next to nothing to define.

A dataclass has its methods written as source and compiled: half a millisecond for each class. `planner lint` loads some
thirty of them and should take no longer than the libraries it needs, so what it loads uses these instead. Type checkers
see dataclasses. Left out: whatever else dataclasses can do.
"""

from collections.abc import Callable, Mapping
from typing import Any, NoReturn, TypeVar, cast, dataclass_transform, overload

T = TypeVar("T")


class _Factory:
    """What makes a default anew for each record."""

    __slots__ = ("make",)

    def __init__(self, make: Callable[[], object]) -> None:
        self.make = make


def field(*, default_factory: Callable[[], T]) -> T:
    """A default that is made anew for each record."""
    return cast(T, _Factory(default_factory))


@overload
def record(cls: type[T], /) -> type[T]: ...
@overload
def record(*, eq: bool = True) -> Callable[[type[T]], type[T]]: ...
@dataclass_transform(frozen_default=True, kw_only_default=True, field_specifiers=(field,))
def record(cls: type[T] | None = None, /, *, eq: bool = True) -> type[T] | Callable[[type[T]], type[T]]:
    """The class as a record of its annotated names; with ``eq=False``, each record equals only itself."""
    return _made(cls, eq=eq) if cls is not None else lambda cls: _made(cls, eq=eq)


def replace(record: T, **changes: object) -> T:
    """The record with other values for some of its names."""
    cls: Any = type(record)
    copy: T = cls(**{name: getattr(record, name) for name in cls.__slots__} | changes)
    return copy


def as_dict(record: object) -> dict[str, Any]:
    """The values of a record by name, in the order of its class."""
    return {name: getattr(record, name) for name in type(record).__slots__}  # type: ignore[attr-defined]


def _made(cls: type[T], *, eq: bool) -> type[T]:
    names = tuple(cls.__annotations__)
    namespace = {name: value for name, value in vars(cls).items() if name not in ("__dict__", "__weakref__")}
    defaults = {name: namespace.pop(name) for name in names if name in namespace}
    namespace |= {"__slots__": names, "__setattr__": _refuse, "__delattr__": _refuse, "__repr__": _repr}
    if eq:
        namespace |= {"__eq__": _eq, "__hash__": _hash}
    made: Any = type(cls.__name__, cls.__bases__, namespace)
    made.__init__ = _initializer(made, names, defaults)
    return cast(type[T], made)


def _initializer(cls: type, names: tuple[str, ...], defaults: Mapping[str, Any]) -> Callable[..., None]:
    """What sets the slots of a new record: through their descriptors, since the record itself refuses."""
    known = frozenset(names)
    slots = tuple((name, vars(cls)[name].__set__) for name in names)
    required = tuple(slot for slot in slots if slot[0] not in defaults)
    optional = tuple((name, put, defaults[name]) for name, put in slots if name in defaults)

    def init(self: object, /, **values: Any) -> None:
        if not values.keys() <= known:
            raise TypeError(f"{cls.__name__} has no {', '.join(sorted(values.keys() - known))}")
        try:
            for name, put in required:
                put(self, values[name])
        except KeyError as error:
            raise TypeError(f"{cls.__name__} needs {error.args[0]}") from None
        for name, put, default in optional:
            value = values.get(name, default)
            put(self, value.make() if value.__class__ is _Factory else value)

    return init


def _refuse(self: object, name: str, value: object = None) -> NoReturn:
    raise AttributeError(f"{type(self).__name__} is frozen: {name} cannot be changed")


def _eq(self: Any, other: Any) -> bool:
    if other.__class__ is not self.__class__:
        return NotImplemented  # type: ignore[no-any-return]
    return all(getattr(self, name) == getattr(other, name) for name in self.__slots__)


def _hash(self: Any) -> int:
    return hash(tuple(getattr(self, name) for name in self.__slots__))


def _repr(self: Any) -> str:
    return f"{type(self).__name__}({', '.join(f'{name}={getattr(self, name)!r}' for name in self.__slots__)})"
