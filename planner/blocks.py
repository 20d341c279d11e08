"""Which modules repeat: the units people checkpoint and shard. Works on module records, without the model."""

from collections import Counter
from collections.abc import Iterable

from planner.graph import ModuleInfo


def block_levels(modules: Iterable[ModuleInfo]) -> tuple[tuple[str, ...], ...]:
    """The candidate divisions of a model into blocks, outermost first; each is a tuple of module paths in
    order.

    A library that marks its own checkpoint units (transformers does) settles it: one level. Otherwise a
    block is a child of a ModuleList or Sequential whose class occurs there more than once, and such
    containers may nest, as stages
    of bottlenecks do: each depth is a level of its own. A model without repetition has no level.
    """
    table = tuple(modules)
    units = tuple(module.fqn for module in table if module.is_checkpoint_unit)
    if units:
        return (units,)
    containers = {module.fqn for module in table if module.is_container}
    classes = Counter((_parent(module.fqn), module.class_name) for module in table)
    repeated = {
        module.fqn: 0
        for module in table
        if module.fqn
        and _parent(module.fqn) in containers
        and module.parameters > 0
        and classes[_parent(module.fqn), module.class_name] > 1
    }
    levels: dict[int, list[str]] = {}
    for fqn in repeated:  # registration order: a parent comes before its children
        depth = sum(fqn.startswith(other + ".") for other in repeated)
        levels.setdefault(depth, []).append(fqn)
    return tuple(tuple(levels[depth]) for depth in sorted(levels))


def containing_block(blocks: Iterable[str], fqn: str) -> str | None:
    """The block that a module path lies in, or None for what lies outside all of them."""
    return next((block for block in blocks if fqn == block or fqn.startswith(block + ".")), None)


class BlockIndex:
    """Answers `containing_block` for many paths."""

    def __init__(self, blocks: Iterable[str]) -> None:
        self._blocks = frozenset(blocks)

    def __call__(self, fqn: str) -> str | None:
        """The block that the path lies in, or None."""
        while fqn:
            if fqn in self._blocks:
                return fqn
            fqn = _parent(fqn)
        return None


def _parent(fqn: str) -> str:
    return fqn.rpartition(".")[0]
