"""Offloading by module that names no module."""

from collections.abc import Iterator

from planner.configs.config import Config, report
from planner.configs.megatron import cores
from planner.diagnostics import Report, Rule, Severity, Source


def find(config: Config) -> Iterator[Report]:
    """A report where modules are to be offloaded and none is named, or one without the other that it needs."""
    for core in cores(config):
        asked = core.asked("fine_grained_activation_offloading")
        if asked is None:
            continue
        modules = core.get("offload_modules")
        if (modules is None and core.is_complete) or (modules is not None and modules.value in (None, [], "")):
            yield report(
                asked,
                f"{core.key('offload_modules')} names nothing to offload, and Megatron-Core asserts that it does",
                help=f"set {core.key('offload_modules')}, for instance to attn_norm core_attn attn_proj mlp_norm",
            )
        named = _names(modules.value) if modules is not None else []
        if modules is not None and "attn_proj" in named and "core_attn" not in named:
            yield report(
                modules,
                "the input of attn_proj is the output of core_attn, whose backward needs it on the GPU: Megatron-Core "
                "refuses to offload it alone",
                help="add core_attn, or remove attn_proj",
            )


def _names(value: object) -> list[str]:
    if isinstance(value, list):
        return [str(name) for name in value]
    text = str(value)
    return [] if "$" in text else text.replace(",", " ").split()


RULE = Rule(
    code="OF402",
    name="fine-grained-offloading-without-modules",
    severity=Severity.ERROR,
    summary="Activations are to be offloaded by module, and `offload_modules` names none, or attn_proj without "
    "core_attn.",
    why="`fine_grained_activation_offloading` has no default for what to offload. Megatron-Core asserts that "
    "something is named when it builds the model's configuration.",
    instead="Name the modules whose inputs are to be offloaded.",
    sources=(
        Source(
            title="Megatron-Core 0.19.2",
            where="megatron/core/transformer/transformer_config.py: TransformerConfig.__post_init__",
        ),
    ),
    find=find,
    dialects=("megatron", "megatron_bridge", "verl"),
)
