"""A flag for flash attention that Megatron-LM no longer reads."""

from collections.abc import Iterator

from planner.configs.config import Config, report
from planner.diagnostics import Report, Rule, Severity, Source

_FIRST_WITHOUT_READER = (0, 18, 0)


def find(config: Config) -> Iterator[Report]:
    """A report where the flag is given and nothing reads it."""
    flag = config.on("use-flash-attn")
    if flag is None or config.target < _FIRST_WITHOUT_READER:
        return
    impl, backend = config.get("transformer-impl"), config.get("attention-backend")
    if impl is not None and impl.value == "local":
        kept = "--transformer-impl local keeps all scores"
    elif backend is not None and backend.value in ("unfused", "local"):
        kept = f"--attention-backend {backend.value} keeps all scores"
    else:
        return  # Transformer Engine chooses a fused kernel by itself: nobody misses what the flag asked for
    other = impl if impl is not None and impl.value == "local" else backend
    yield report(
        flag.at_key,
        f"nothing reads this flag since 0.18, and {kept}: attention is not flash attention",
        help="use --transformer-impl transformer_engine with --attention-backend flash",
        related=[(other, "the attention is chosen here")] if other is not None else [],
    )


RULE = Rule(
    code="AT402",
    name="flash-flag-without-effect",
    severity=Severity.NO_OP,
    summary="--use-flash-attn is given, nothing reads it, and the attention that is chosen keeps its scores.",
    why="The flag was for Megatron-LM's own layers, which 0.18 removed. Attention is chosen by --transformer-impl and "
    "--attention-backend since; the flag is still accepted.",
    instead="`--transformer-impl transformer_engine --attention-backend flash`.",
    sources=(
        Source(
            title="Megatron-LM, megatron-core 0.18.0 and 0.19.2",
            where="megatron/training/arguments.py: _add_training_args; no other file names use_flash_attn",
        ),
    ),
    find=find,
    dialects=("megatron",),
)
