"""Which framework a config is for, from its content: never from its name, which people choose."""

from collections.abc import Callable

from planner.configs.tree import Document, Mapping, Scalar, Sequence, SourceFormat
from planner.linting.signatures import SIGNATURES
from planner.linting.signatures import below as _below
from planner.linting.signatures import count as _count

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


# Keys of TrainingArguments that other frameworks do not happen to share.
_TRAINING_ARGUMENTS = (
    "per_device_train_batch_size",
    "per_device_eval_batch_size",
    "gradient_accumulation_steps",
    "num_train_epochs",
    "lr_scheduler_type",
    "warmup_ratio",
    "eval_strategy",
    "evaluation_strategy",
    "save_strategy",
    "save_total_limit",
    "logging_steps",
    "load_best_model_at_end",
    "remove_unused_columns",
    "gradient_checkpointing",
    "dataloader_num_workers",
    "ddp_find_unused_parameters",
    "report_to",
    "output_dir",
)
# Of TRL's own scripts and trainers.
_TRL = (
    "dataset_name",
    "dataset_train_split",
    "dataset_mixture",
    "dataset_mixer",
    "dataset_num_proc",
    "dataset_text_field",
    "attn_implementation",
    "use_peft",
    "torch_dtype",
    "lora_r",
    "max_prompt_length",
    "max_completion_length",
    "num_generations",
    "packing",
    "max_seq_length",
    "max_length",
    "beta",
    "loss_type",
    "reward_funcs",
    "use_vllm",
)
# Of trainers that share names with TrainingArguments without reading them.
_OTHER_TRAINERS = (
    "finetuning_type",  # LLaMA-Factory
    "checkpointing_steps",  # open-instruct and scripts on Accelerate alone
    "use_slow_tokenizer",
    "with_tracking",
)
_DEEPSPEED = (
    "zero_optimization",
    "train_batch_size",
    "train_micro_batch_size_per_gpu",
    "zero_allow_untested_optimizer",
    "zero_force_ds_cpu_optimizer",
    "steps_per_print",
    "wall_clock_breakdown",
    "gradient_clipping",
    "fp16",
    "bf16",
    "activation_checkpointing",
    "autotuning",
    "prescale_gradients",
    "communication_data_type",
)


def _is_deepspeed(document: Document, root: Mapping) -> bool:
    zero = _below(root, "zero_optimization")
    parts = (zero, *(_below(root, key) for key in ("fp16", "bf16", "optimizer", "autotuning")))
    is_old_form = isinstance(zero, Scalar) and zero.value is True
    return (
        document.format is SourceFormat.JSON
        and (is_old_form or any(isinstance(part, Mapping) for part in parts))
        and (_count(root, *_DEEPSPEED) >= 2 or list(root.by_key) == ["zero_optimization"])
        and not _count(root, "num_layers", "num-layers", "hidden_size", "hidden-size")  # gpt-neox, or a model
    )


def _is_accelerate(document: Document, root: Mapping) -> bool:
    kind = _below(root, "distributed_type")
    return isinstance(kind, Scalar) and (
        len(root.by_key) <= 2
        or _count(
            root,
            "compute_environment",
            "num_processes",
            "num_machines",
            "mixed_precision",
            "fsdp_config",
            "deepspeed_config",
            "machine_rank",
        )
        >= 1
    )


def _is_trl(document: Document, root: Mapping) -> bool:
    return (
        isinstance(_below(root, "model_name_or_path"), Scalar)
        and _count(root, *_TRL) >= 1
        and _count(root, *_TRAINING_ARGUMENTS, "learning_rate") >= 2
        and not _count(root, *_OTHER_TRAINERS)
    )


def _is_transformers(document: Document, root: Mapping) -> bool:
    written = sum(isinstance(_below(root, key), Scalar) for key in _TRAINING_ARGUMENTS)
    return (
        document.format is not SourceFormat.TOML
        and written >= 4
        and _count(root, "per_device_train_batch_size", "num_train_epochs") >= 1
        and not _count(root, *_OTHER_TRAINERS)
    )


def _is_llamafactory(document: Document, root: Mapping) -> bool:
    """A config of its trainer, or of its commands that export a model and talk to one; or such a command's flags."""
    if document.format is SourceFormat.TOML or "model_name_or_path" not in root.by_key:
        return False
    if "stage" in root.by_key and "finetuning_type" in root.by_key:
        return True
    own = ("finetuning_type", "infer_backend", "export_dir", "cutoff_len", "lora_target", "quantization_bit")
    return "template" in root.by_key and _count(root, *own) >= 1


def _is_llamafactory_v1(document: Document, root: Mapping) -> bool:
    own = (
        "dist_config",
        "kernel_config",
        "init_config",
        "peft_config",
        "quant_config",
        "model_class",
        "sample_backend",
    )
    return (
        document.format in (SourceFormat.YAML, SourceFormat.JSON)
        and isinstance(_below(root, "model"), Scalar)
        and _count(root, *own) >= 2
        and _count(root, "train_dataset", "micro_batch_size", "sample_backend") >= 1
    )


def _is_torchtune(document: Document, root: Mapping) -> bool:
    parts = (
        _below(root, key) for key in ("model", "tokenizer", "dataset", "checkpointer", "optimizer", "metric_logger")
    )
    return sum(isinstance(part, Mapping) and "_component_" in part.by_key for part in parts) >= 2


def _is_torchtitan(document: Document, root: Mapping) -> bool:
    """A TOML file with two of torchtitan's own words: [training] and [model] are anybody's."""
    sections = {name: below for name in _TITAN_WORDS if isinstance(below := _below(root, name), Mapping)}
    words = sum(_count(below, *_TITAN_WORDS[name]) for name, below in sections.items())
    return document.format is SourceFormat.TOML and "training" in sections and len(sections) >= 2 and words >= 2


_TITAN_WORDS = {
    "job": ("dump_folder", "custom_config_module"),
    "model": ("flavor", "converters", "hf_assets_path"),
    "training": ("seq_len", "local_batch_size", "mixed_precision_param", "enable_cpu_offload"),
    "parallelism": (
        "data_parallel_replicate_degree",
        "data_parallel_shard_degree",
        "tensor_parallel_degree",
        "pipeline_parallel_degree",
        "context_parallel_degree",
        "fsdp_reshard_after_forward",
    ),
    "activation_checkpoint": ("mode", "selective_ac_option"),
}


def _is_litgpt(document: Document, root: Mapping) -> bool:
    train = _below(root, "train")
    return (
        document.format is SourceFormat.YAML
        and isinstance(train, Mapping)
        and _count(train, "micro_batch_size", "global_batch_size") >= 1
        and _count(root, "checkpoint_dir", "model_name", "model_config") >= 1
        and _count(root, "data", "eval", "out_dir", "precision", "logger_name", "devices", "lora_r", "quantize") >= 2
    )


def _is_lightning(document: Document, root: Mapping) -> bool:
    """A config of Lightning's command line, which names classes by class_path: NeMo's have a trainer without."""
    trainer = _below(root, "trainer")
    if document.format is not SourceFormat.YAML or not isinstance(trainer, Mapping):
        return False
    if _count(root, "defaults", "hydra", "exp_manager") or _count(trainer, "_target_", "class_path"):
        return False
    if not _count(trainer, *_TRAINER_WORDS):
        return False
    parts = [_below(root, key) for key in ("model", "data", "optimizer")] + [_below(trainer, "strategy")]
    callbacks = _below(trainer, "callbacks")
    parts += callbacks.items if isinstance(callbacks, Sequence) else [callbacks]
    return "seed_everything" in root.by_key or any(
        isinstance(part, Mapping) and "class_path" in part.by_key for part in parts
    )


# Of Lightning's Trainer: at least one stands in every config that says anything of how to train.
_TRAINER_WORDS = (
    "accelerator",
    "devices",
    "strategy",
    "precision",
    "num_nodes",
    "max_epochs",
    "max_steps",
    "accumulate_grad_batches",
    "gradient_clip_val",
    "gpus",
)


def _is_gpt_neox(document: Document, root: Mapping) -> bool:
    keys = {key.replace("-", "_") for key in root.by_key}
    model = {
        "num_layers",
        "hidden_size",
        "num_attention_heads",
        "max_position_embeddings",
        "pos_emb",
        "attention_config",
    }
    return (
        document.format is SourceFormat.YAML
        and len(keys & model) >= 2
        and len(keys & {"pipe_parallel_size", "model_parallel_size", "train_micro_batch_size_per_gpu", "train_iters"})
        >= 2
    )


def _is_planner_spec(document: Document, root: Mapping) -> bool:
    model = _below(root, "model")
    return (
        document.format is SourceFormat.YAML
        and isinstance(model, Mapping)
        and _count(model, "preset", "transformers", "factory") >= 1
        and all(isinstance(_below(model, key), Scalar | None) for key in ("preset", "transformers", "factory"))
        and _count(root, "batch", "inputs", "device", "precision", "optimizer", "parallel", "checkpointing") >= 1
    )


# In this order: the first that recognises a file has it, so what is most particular comes first.
_SIGNATURES: tuple[tuple[str, Signature], ...] = (
    ("axolotl", _is_axolotl),
    ("llamafactory", _is_llamafactory),
    ("llamafactory_v1", _is_llamafactory_v1),
    ("accelerate", _is_accelerate),
    ("deepspeed", _is_deepspeed),
    ("torchtune", _is_torchtune),
    ("torchtitan", _is_torchtitan),
    ("litgpt", _is_litgpt),
    ("lightning", _is_lightning),
    ("gpt_neox", _is_gpt_neox),
    ("planner_spec", _is_planner_spec),
    *SIGNATURES,
    ("trl", _is_trl),
    ("transformers", _is_transformers),
)

DIALECTS = tuple(dict.fromkeys(dialect for dialect, _ in _SIGNATURES))
