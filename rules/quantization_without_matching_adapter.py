"""Quantized weights that axolotl does not train as the config asks."""

from collections.abc import Iterator

from planner.configs.config import Config, report
from planner.diagnostics import Report, Rule, Severity, Source


def find(config: Config) -> Iterator[Report]:
    """A report where weights are quantized and no adapter is trained, or QLoRA has not 4 bits."""
    return _llamafactory(config) if config.dialect.name == "llamafactory" else _axolotl(config)


def _llamafactory(config: Config) -> Iterator[Report]:
    bits, kind = config.get("quantization_bit"), config.get("finetuning_type")
    if bits is not None and bits.value and kind is not None and kind.value in ("full", "freeze"):
        yield report(
            bits,
            f"LLaMA-Factory refuses quantization_bit with finetuning_type: {kind.value}: quantized weights cannot be "
            "trained",
            help="set finetuning_type: lora, or remove quantization_bit",
            related=[(kind, "the kind of fine-tuning")],
        )


def _axolotl(config: Config) -> Iterator[Report]:
    adapter = config.get("adapter")
    name = adapter.value if adapter is not None else None
    four, eight = config.on("load_in_4bit"), config.on("load_in_8bit")
    if config.on("merge_lora") or config.on("inference"):
        return
    related = [(adapter, "the adapter")] if adapter is not None else []
    if quantized := None if name else four or eight:
        yield report(
            quantized,
            f"axolotl refuses {quantized.key} without an adapter: quantized weights cannot be trained",
            help="set adapter: qlora for 4 bits or lora for 8, or remove the quantization",
            related=related,
        )
    elif name == "qlora" and eight:
        yield report(
            eight, "axolotl refuses load_in_8bit with adapter: qlora", help="set load_in_4bit: true", related=related
        )
    elif adapter is not None and name == "qlora" and not config.value("load_in_4bit"):
        yield report(
            adapter, "axolotl refuses adapter: qlora without load_in_4bit: true", help="set load_in_4bit: true"
        )


RULE = Rule(
    code="LO101",
    name="quantization-without-matching-adapter",
    severity=Severity.ERROR,
    summary="Quantized weights without an adapter, or QLoRA without 4 bits.",
    why="Only adapters beside quantized weights have gradients. The frameworks check the combination before training.",
    instead="`adapter: qlora` with `load_in_4bit: true`, or `adapter: lora` with `load_in_8bit: true`.",
    sources=(
        Source(title="axolotl 0.19.0", where="utils/schemas/peft.py, validate_adapter and validate_qlora"),
        Source(title="LLaMA-Factory 0.9.5", where="llamafactory/hparams/parser.py, _verify_model_args"),
    ),
    find=find,
    dialects=("axolotl", "llamafactory"),
)
