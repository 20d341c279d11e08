"""LoRA kernels that axolotl cannot put on the model."""

from collections.abc import Iterator

from planner.configs.config import Config, Setting, report
from planner.diagnostics import Report, Rule, Severity, Source

_KERNELS = ("lora_mlp_kernel", "lora_qkv_kernel", "lora_o_kernel")
_REMOTE_CODE_REFUSED_SINCE = (0, 15)


def find(config: Config) -> Iterator[Report]:
    """A report at the first kernel that is on, for what rules it out."""
    kernel = next((on for key in _KERNELS if (on := config.on(key))), None)
    if kernel is None:
        return
    adapter = config.get("adapter")
    if adapter is None or not adapter.value:
        yield _refused(kernel, adapter, "no adapter is trained", "set adapter: lora or qlora, or remove the kernels")
    elif adapter.value == "lora" and (eight := config.on("load_in_8bit")):
        yield _refused(kernel, eight, "the weights are in 8 bits", "load in 4 bits with qlora, or remove the kernels")
    remote = config.on("trust_remote_code")
    if remote is not None and config.target >= _REMOTE_CODE_REFUSED_SINCE:
        yield _refused(kernel, remote, "they do not know a model's own code", "remove trust_remote_code or the kernels")


def _refused(kernel: Setting, cause: Setting | None, why: str, remedy: str) -> Report:
    related = [(cause, "set here")] if cause is not None else []
    return report(kernel.at_key, f"axolotl fails with {kernel.key}: {why}", help=remedy, related=related)


RULE = Rule(
    code="LO103",
    name="refused-lora-kernels",
    severity=Severity.ERROR,
    summary="LoRA kernels without LoRA, on 8-bit weights, or with a model's own code.",
    why="The kernels replace the forward of LoRA layers. Without an adapter, axolotl ends with a TypeError after the "
    "model is loaded; 8-bit weights and trust_remote_code are refused before.",
    instead="Leave the keys out: axolotl switches the kernels on by itself where they work.",
    sources=(
        Source(title="axolotl 0.19.0", where="monkeypatch/lora_kernels.py, apply_lora_kernel_patches"),
        Source(title="axolotl 0.19.0", where="utils/schemas/validation.py, LoRAValidationMixin"),
    ),
    find=find,
    dialects=("axolotl",),
)
