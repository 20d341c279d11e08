"""Four bits that axolotl does not quantize to, because the adapter is called lora."""

from collections.abc import Iterator

from planner.configs.config import Config, report
from planner.diagnostics import Report, Rule, Severity, Source

# Parts of hub names of models that are quantized already: those keep their own format.
_QUANTIZED_NAMES = ("bnb", "4bit", "4-bit", "int4", "nf4", "gptq", "awq", "quantized")
_SINCE = (0, 13)  # before, load_in_4bit was handed to transformers with any adapter


def find(config: Config) -> Iterator[Report]:
    """A report where 4 bits are asked for with `adapter: lora`."""
    four, adapter, model = config.on("load_in_4bit"), config.get("adapter"), config.value("base_model")
    if four is None or adapter is None or adapter.value != "lora" or config.target < _SINCE:
        return
    if config.on("quantize_moe_experts"):
        return  # which quantizes the experts itself
    if config.on("gptq") or any(part in str(model).lower() for part in _QUANTIZED_NAMES):
        return
    yield report(
        four,
        "axolotl quantizes to 4 bits only with adapter: qlora: with lora the weights stay at 16 bits or more, at least "
        "four times as many bytes",
        help="set adapter: qlora, or load_in_8bit: true instead",
        related=[(adapter, "the adapter")],
    )


RULE = Rule(
    code="LO102",
    name="four-bits-without-qlora",
    severity=Severity.NO_OP,
    summary="The weights are to be loaded in 4 bits, and the adapter is called lora.",
    why="axolotl makes a 4-bit configuration for `adapter: qlora` and an 8-bit one for `adapter: lora`, and none for "
    "other pairs. Its checks pass, and the weights are loaded unquantized: 16 GB instead of about 5 GB for 8 billion.",
    instead="`adapter: qlora` with `load_in_4bit: true`.",
    sources=(Source(title="axolotl 0.19.0", where="loaders/model.py, _set_quantization_config"),),
    find=find,
    dialects=("axolotl",),
)
