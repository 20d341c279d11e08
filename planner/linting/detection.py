"""Which framework a config is for, from its content: never from its name, which people choose."""

from collections.abc import Callable

from planner.configs.tree import Document, Mapping, Node, Scalar, Sequence, SourceFormat

Signature = Callable[[Document, Mapping], bool]


def detect(document: Document) -> str | None:
    """The name of the dialect, or None for a file that is no training config."""
    if not isinstance(document.root, Mapping):
        return None
    for dialect, signature in _SIGNATURES:
        if signature(document, document.root):
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


def _is_torchtune(document: Document, root: Mapping) -> bool:
    parts = (
        _below(root, key) for key in ("model", "tokenizer", "dataset", "checkpointer", "optimizer", "metric_logger")
    )
    return sum(isinstance(part, Mapping) and "_component_" in part.by_key for part in parts) >= 2


def _is_torchtitan(document: Document, root: Mapping) -> bool:
    sections = (
        "job",
        "training",
        "parallelism",
        "activation_checkpoint",
        "lr_scheduler",
        "optimizer",
        "metrics",
        "model",
    )
    tables = [name for name in sections if isinstance(_below(root, name), Mapping)]
    return (
        document.format is SourceFormat.TOML
        and "training" in tables
        and len(tables) >= 3
        and any(name in tables for name in ("job", "parallelism", "activation_checkpoint"))
    )


def _is_litgpt(document: Document, root: Mapping) -> bool:
    train = _below(root, "train")
    return (
        document.format is SourceFormat.YAML
        and isinstance(train, Mapping)
        and _count(train, "micro_batch_size", "global_batch_size") >= 1
        and _count(root, "checkpoint_dir", "model_name", "model_config") >= 1
        and _count(root, "data", "eval", "out_dir", "precision", "logger_name", "lora_r", "quantize") >= 2
    )


def _is_lightning(document: Document, root: Mapping) -> bool:
    """A config of Lightning's command line, which names classes by class_path: NeMo's have a trainer without."""
    trainer = _below(root, "trainer")
    if document.format is not SourceFormat.YAML or not isinstance(trainer, Mapping) or "_target_" in trainer.by_key:
        return False
    if _count(root, "defaults", "hydra", "exp_manager"):
        return False
    parts = [_below(root, key) for key in ("model", "data", "optimizer")] + [_below(trainer, "strategy")]
    callbacks = _below(trainer, "callbacks")
    parts += callbacks.items if isinstance(callbacks, Sequence) else [callbacks]
    return "seed_everything" in root.by_key or any(
        isinstance(part, Mapping) and "class_path" in part.by_key for part in parts
    )


# In this order: the first that recognises a file has it, so what is most particular comes first.
_SIGNATURES: tuple[tuple[str, Signature], ...] = (
    ("axolotl", _is_axolotl),
    ("torchtune", _is_torchtune),
    ("torchtitan", _is_torchtitan),
    ("litgpt", _is_litgpt),
    ("lightning", _is_lightning),
)

DIALECTS = tuple(dict.fromkeys(dialect for dialect, _ in _SIGNATURES))
