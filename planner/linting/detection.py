"""Which framework a config is for, from its content: never from its name, which people choose."""

from collections.abc import Callable

from planner.configs.tree import Document, Mapping, Node, Scalar, Sequence, SourceFormat

Signature = Callable[[Document, Mapping], bool]


def detect(document: Document, root: Mapping) -> str | None:
    """The name of the dialect, or None for what is no training config.

    Args:
        document: The file.
        root: Its root, or that of one command in a shell script.
    """
    for dialect, signature in _SIGNATURES:
        if signature(document, root):
            return dialect
    return None


def _has(root: Mapping, *keys: str) -> bool:
    return all(key in root.by_key for key in keys)


def _count(root: Mapping, *keys: str) -> int:
    return sum(key in root.by_key for key in keys)


def _below(root: Mapping, key: str) -> Node | None:
    entry = root.by_key.get(key)
    return entry.value if entry else None


def _is_axolotl(document: Document, root: Mapping) -> bool:
    return (
        document.format is SourceFormat.YAML
        and "base_model" in root.by_key
        and (
            isinstance(_below(root, "datasets"), Sequence | Scalar)
            or _count(root, "pretraining_dataset", "micro_batch_size", "sequence_len", "sample_packing", "val_set_size")
            >= 2
        )
    )


# In this order: the first that recognises a file has it, so what is most particular comes first.
_SIGNATURES: tuple[tuple[str, Signature], ...] = (("axolotl", _is_axolotl),)

DIALECTS = tuple(dict.fromkeys(dialect for dialect, _ in _SIGNATURES))
