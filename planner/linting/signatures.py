"""Signatures of frameworks that build on Megatron-Core, of verl and ms-swift, and of inference servers."""

from planner.configs.tree import Document, Mapping, Node, Scalar, SourceFormat


def count(root: Mapping, *keys: str) -> int:
    """How many of these keys a mapping has."""
    return sum(key in root.by_key for key in keys)


def below(root: Mapping, key: str) -> Node | None:
    """What stands below a key, if anything."""
    entry = root.by_key.get(key)
    return entry.value if entry else None


def command_of(root: Mapping) -> str:
    """The program words of a command in a script."""
    command = below(root, "$command")
    return str(command.value) if isinstance(command, Scalar) else ""


def mapping_below(root: Mapping, *path: str) -> Mapping | None:
    """The mapping below some keys, one in the other, if there is one."""
    node: Node | None = root
    for key in path:
        node = below(node, key) if isinstance(node, Mapping) else None
    return node if isinstance(node, Mapping) else None


def _is_megatron(document: Document, root: Mapping) -> bool:
    if document.format is SourceFormat.SHELL:
        # Megatron-DeepSpeed, a fork of years ago with arguments of its own, has --deepspeed besides.
        return "deepspeed" not in root.by_key and count(root, *_MEGATRON_FLAGS) >= _FEW_FLAGS
    arguments = mapping_below(root, "MODEL_ARGS")
    return arguments is not None and any(key.startswith("--") for key in arguments.by_key)


_FEW_FLAGS = 3  # that only one framework has together
_MEGATRON_FLAGS = (
    "num-layers",
    "hidden-size",
    "num-attention-heads",
    "seq-length",
    "max-position-embeddings",
    "micro-batch-size",
    "global-batch-size",
    "tensor-model-parallel-size",
    "pipeline-model-parallel-size",
    "use-mcore-models",
)


def _is_megatron_bridge(document: Document, root: Mapping) -> bool:
    train, model = mapping_below(root, "train"), mapping_below(root, "model")
    return (
        train is not None
        and model is not None
        and count(train, "train_iters", "global_batch_size", "micro_batch_size") > 0
        and not count(root, "trainer", "policy", "step_scheduler")
        and count(root, "optimizer", "scheduler", "checkpoint", "ddp", "dist", "logger", "dataset") > 0
        and count(model, "_target_", *_CORE_SIZES, *_CORE_SETTINGS) > 0
    )


_CORE_SIZES = ("tensor_model_parallel_size", "pipeline_model_parallel_size", "context_parallel_size")
_CORE_SETTINGS = (
    "seq_length",
    "sequence_parallel",
    "recompute_granularity",
    "recompute_method",
    "recompute_modules",
    "cpu_offloading",
    "fine_grained_activation_offloading",
    "attention_backend",
)


def _is_nemo(document: Document, root: Mapping) -> bool:
    model = mapping_below(root, "model")
    return (
        model is not None
        and mapping_below(root, "trainer") is not None
        and count(model, "encoder_seq_length", "megatron_amp_O2", "activations_checkpoint_method", *_CORE_SIZES) > 0
    )


def _is_nemo_automodel(document: Document, root: Mapping) -> bool:
    scheduler, distributed = mapping_below(root, "step_scheduler"), mapping_below(root, "distributed")
    return (scheduler is not None and count(scheduler, "local_batch_size", "global_batch_size") > 0) and (
        distributed is not None or mapping_below(root, "model") is not None
    )


def _is_verl(document: Document, root: Mapping) -> bool:
    return mapping_below(root, "actor_rollout_ref") is not None


def _is_ms_swift(document: Document, root: Mapping) -> bool:
    if document.format is SourceFormat.SHELL:
        words = command_of(root).replace("/", " ").split()
        return (
            words[:1] == ["swift"]
            or (words[:1] == ["megatron"] and words[1:2] != [])
            or "swift cli" in command_of(root).replace("/", " ")
        )
    return not count(root, "base_model", "stage", "finetuning_type") and count(root, *_SWIFT_KEYS) >= _FEW_SWIFT_KEYS


_FEW_SWIFT_KEYS = 2
_SWIFT_KEYS = (
    "tuner_type",
    "train_type",
    "attn_impl",
    "split_dataset_ratio",
    "load_data_args",
    "mcore_model",
    "model_author",
    "vit_gradient_checkpointing",
    "dataset_num_proc",
)


def _is_vllm(document: Document, root: Mapping) -> bool:
    if document.format is SourceFormat.SHELL:
        command = command_of(root)
        return command.startswith("vllm serve") or "vllm.entrypoints.openai.api_server" in command
    return _is_server(root, _VLLM_KEYS, _SGLANG_KEYS)


def _is_sglang(document: Document, root: Mapping) -> bool:
    if document.format is SourceFormat.SHELL:
        command = command_of(root)
        return "sglang.launch_server" in command or command.startswith("sglang serve")
    return _is_server(root, _SGLANG_KEYS, _VLLM_KEYS)


def _is_server(root: Mapping, own: frozenset[str], others: frozenset[str]) -> bool:
    """Whether a flat file has options of one inference engine, and none that another alone has."""
    names = {key.replace("-", "_") for key in root.by_key}
    return len(names & own) >= _FEW_SERVER_KEYS and not names & others and not names & _NO_SERVER_KEYS


_FEW_SERVER_KEYS = 2
_VLLM_KEYS = frozenset(
    (
        "gpu_memory_utilization",
        "max_model_len",
        "max_num_seqs",
        "max_num_batched_tokens",
        "kv_cache_memory_bytes",
        "enable_chunked_prefill",
        "enforce_eager",
        "tensor_parallel_size",
        "pipeline_parallel_size",
    )
)
_SGLANG_KEYS = frozenset(
    (
        "mem_fraction_static",
        "context_length",
        "chunked_prefill_size",
        "max_running_requests",
        "max_total_tokens",
        "max_prefill_tokens",
        "tp_size",
        "tp",
        "model_path",
    )
)
_NO_SERVER_KEYS = frozenset(("dataset", "datasets", "trainer", "optimizer", "learning_rate", "output_dir", "stage"))


# What is most particular comes first.
SIGNATURES = (
    ("megatron", _is_megatron),
    ("verl", _is_verl),
    ("ms_swift", _is_ms_swift),
    ("nemo_automodel", _is_nemo_automodel),
    ("nemo", _is_nemo),
    ("megatron_bridge", _is_megatron_bridge),
    ("vllm", _is_vllm),
    ("sglang", _is_sglang),
)
