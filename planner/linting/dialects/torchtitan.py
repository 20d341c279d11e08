"""What a torchtitan TOML file asks for."""

from planner.configs.config import Config
from planner.configs.facts import Checkpointing, Fact, Facts, Loss, Sharding
from planner.linting.dialects import simple_facts

_DTYPES = ("bfloat16", "float32")
# By model.flavor. Source: torchtitan 0.2.2, torchtitan/models/llama3/__init__.py
_LLAMA3 = {
    "8B": "meta-llama/Meta-Llama-3-8B",
    "70B": "meta-llama/Meta-Llama-3-70B",
    "405B": "meta-llama/Llama-3.1-405B",
}


def read(config: Config) -> Facts:
    """The training facts of a torchtitan config."""
    facts = simple_facts(config)
    if "parameter_offload" in facts:
        facts["optimizer_offload"] = facts["parameter_offload"]
    if "tensor_parallel" in facts:
        degree = facts["tensor_parallel"]
        facts["sequence_parallel"] = Fact(value=degree.value > 1, setting=degree.setting)
    if config.on("validation.enable") is not None:
        batch = config.number("validation.local_batch_size")
        if isinstance(batch, int):
            facts["eval_batch"] = Fact(value=batch, setting=config.get("validation.local_batch_size"))
    flavor = config.value("model.flavor")
    if config.value("model.name") == "llama3" and isinstance(flavor, str) and flavor in _LLAMA3:
        facts["model"] = Fact(value=_LLAMA3[flavor], setting=config.get("model.flavor"))
    dtype = config.value("training.dtype")
    if isinstance(dtype, str) and dtype in _DTYPES:
        facts["parameter_dtype"] = Fact(value=dtype, setting=config.get("training.dtype"))
    shards, replicas = (config.number(f"parallelism.data_parallel_{kind}_degree") for kind in ("shard", "replicate"))
    if isinstance(shards, int) and shards > 0 and replicas == 1:
        facts["data_parallel"] = Fact(value=shards, setting=config.get("parallelism.data_parallel_shard_degree"))
    return Facts(
        **facts,
        loss=Fact(value=Loss.FULL),
        compute_dtype=_compute_dtype(config),
        compile=_compile(config),
        checkpointing=_checkpointing(config),
        reentrant=Fact(value=False),
        sharding=_sharding(config),
    )


def _checkpointing(config: Config) -> Fact[Checkpointing] | None:
    mode, setting = config.value("activation_checkpoint.mode"), config.get("activation_checkpoint.mode")
    known = {
        "none": Checkpointing.NONE,
        "selective": Checkpointing.SELECTIVE,
        "memory_budget": Checkpointing.SELECTIVE,
        "full": Checkpointing.FULL,
    }
    return Fact(value=known[mode], setting=setting) if isinstance(mode, str) and mode in known else None


def _compile(config: Config) -> Fact[bool] | None:
    """Whether the model is compiled: the loss alone may be."""
    old = config.get("training.compile")  # until 0.1.0
    switch = config.get("compile.enable") or old
    components = config.value("compile.components")
    if switch is None:
        return Fact(value=False)
    if not isinstance(switch.value, bool) or not isinstance(components, list):
        return None
    return Fact(value=switch.value and (switch is old or "model" in components), setting=switch)


def _compute_dtype(config: Config) -> Fact[str] | None:
    parameters = config.value("training.dtype")
    key = "training.dtype" if parameters == "bfloat16" else "training.mixed_precision_param"
    dtype = config.value(key)
    return Fact(value=dtype, setting=config.get(key)) if isinstance(dtype, str) and dtype in _DTYPES else None


def _sharding(config: Config) -> Fact[Sharding] | None:
    """Parameters are sharded unless told otherwise: a degree of -1, the default, takes all ranks that are left."""
    degree = config.number("parallelism.data_parallel_shard_degree")
    setting = config.get("parallelism.data_parallel_shard_degree")
    if degree is None:
        return None
    return Fact(value=Sharding.NONE if degree == 1 else Sharding.PARAMETERS, setting=setting)
