"""`planner kv`: the KV cache of inference, and what fits beside the weights."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from planner.commands.options import Number, device_of, json_option
from planner.commands.output import print_json
from planner.errors import SpecError, UnitError

if TYPE_CHECKING:
    from planner.architecture import Architecture
    from planner.device import DeviceProfile
    from planner.estimation.kv import KvBudget, KvSetting
    from planner.estimation.kv_claims import Judgement

GIVEN = "given"
_SOME_DECODERS = (
    "LlamaForCausalLM",
    "Qwen3ForCausalLM",
    "Gemma2ForCausalLM",
    "GPT2LMHeadModel",
    "DeepseekV3ForCausalLM",
)
_MOST = 10**9  # tokens, sequences: beyond any context or load
_MOST_RANKS = 10**5
_ASSUMED_CONTEXT_TOKENS = 8192
_COUNT = click.IntRange(1, _MOST)
_RANKS = click.IntRange(1, _MOST_RANKS)


@click.command(short_help="Show the KV cache of inference, and what fits.")
@click.argument("spec", metavar="SPEC|PRESET|CONFIG.json")
@click.option(
    "--context", type=_COUNT, metavar="TOKENS", help="Length of each sequence [default: the model's longest]."
)
@click.option("--sequences", type=_COUNT, metavar="N", help="Ask whether so many fit; exit status 1 if they do not.")
@click.option(
    "--dtype", default="bf16", show_default=True, help="Format of keys and values, such as fp8, int8 or q8_0."
)
@click.option("--tp", type=_RANKS, default=1, show_default=True, help="Tensor-parallel ranks, which divide heads.")
@click.option("--pp", type=_RANKS, default=1, show_default=True, help="Pipeline stages, which divide layers.")
@click.option("--cp", type=_RANKS, default=1, show_default=True, help="Ranks that divide each sequence's tokens.")
@click.option("--block-size", type=_COUNT, default=16, show_default=True, help="Tokens in a block of the cache.")
@click.option(
    "--shared-prefix",
    type=click.IntRange(0, _MOST),
    default=0,
    metavar="TOKENS",
    help="Common beginning of all sequences, stored once.",
)
@click.option("--device", metavar="NAME|FILE", help="A name from `planner devices` or a profile file.")
@click.option("--memory", metavar="SIZE", help="Device memory, as the driver reports it, such as 79.18GiB.")
@click.option(
    "--memory-fraction",
    type=Number(min=0, max=1, min_open=True),
    default=0.9,
    show_default=True,
    metavar="FRACTION",
    help="Of device memory, what the engine takes.",
)
@click.option(
    "--weights", default="bf16", show_default=True, metavar="FORMAT|SIZE", help="Their format, or bytes on each GPU."
)
@click.option(
    "--activations", metavar="SIZE", help="Peak of a forward pass, as an engine logs it [default: estimated]."
)
@click.option(
    "--reserve", default="0", metavar="SIZE", show_default=True, help="Memory outside PyTorch, CUDA graphs, and so on."
)
@click.option(
    "--claim", metavar="SIZE", help="Judge a published size of this cache: --sequences, or one, of --context."
)
@click.option("--explain", is_flag=True, help="Print each number's formula with the values put in, and its source.")
@json_option
def kv(
    *,
    spec: str,
    context: int | None,
    sequences: int | None,
    dtype: str,
    tp: int,
    pp: int,
    cp: int,
    block_size: int,
    shared_prefix: int,
    device: str | None,
    memory: str | None,
    memory_fraction: float,
    weights: str,
    activations: str | None,
    reserve: str,
    claim: str | None,
    explain: bool,
    as_json: bool,
) -> None:
    """Show the KV cache of a decoder at inference, and how many tokens and sequences fit beside its weights.

    SPEC is a spec file, of which only the model and the device matter; the name of a preset; or a model's config.json.
    Needs neither torch nor weights. Exit status 1 when the sequences, or one, do not fit.

    \b
    Examples:
      planner kv llama-3-8b
      planner kv llama-3-70b --tp 4 --context 32768 --dtype fp8 --weights fp8
      planner kv llama-3-8b --shared-prefix 2048 --sequences 200 --explain
      planner kv config.json --device a100-40gb --memory-fraction 0.85 --json
      planner kv llama-3-70b --context 131072 --claim 340GB
    """
    from planner.estimation import kv as cache
    from planner.estimation.kv_formats import kv_format
    from planner.reporting.kv import KvReport, explain_text, kv_document, kv_text

    subject = _subject(spec, device)
    a = subject.architecture
    attention = cache.attention_of(a)
    context_tokens, notes = _context(subject, context)
    setting = cache.KvSetting(
        context_tokens=context_tokens,
        how=kv_format(dtype),
        block_tokens=block_size,
        prefix_tokens=shared_prefix,
        tensor=tp,
        pipeline=pp,
        context=cp,
    )
    memory_bytes = subject.device.memory_bytes if memory is None else _bytes("--memory", memory)
    weights_name, weights_bytes = _weights(a, weights, setting)
    budget = cache.KvBudget(
        memory_bytes=memory_bytes,
        fraction=memory_fraction,
        weights_bytes=weights_bytes,
        activations_bytes=cache.activation_peak_bytes(a, memory_bytes)
        if activations is None
        else _bytes("--activations", activations, least=0),
        reserved_bytes=_bytes("--reserve", reserve, least=0),
    )
    found = cache.fit(a, attention, setting, budget)
    report = KvReport(
        model=subject.name,
        device=subject.device.name if memory is None else memory,
        architecture=a,
        attention=attention,
        setting=setting,
        budget=budget,
        weights=weights_name,
        are_activations_estimated=activations is None,
        fit=found,
        unshared=cache.fit(a, attention, replace(setting, prefix_tokens=0), budget) if shared_prefix else None,
        sequences=sequences,
        attentions=cache.compare_attentions(a, setting, budget),
        formats=cache.compare_formats(a, setting, budget),
        claim=None if claim is None else _judged(claim, a, setting, budget, sequences or 1),
        notes=notes,
    )
    if as_json:
        print_json(kv_document(report))
    else:
        click.echo(kv_text(report))
        if explain:
            click.echo("\n" + explain_text(report))
    if not report.is_enough:
        raise SystemExit(1)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Subject:
    """What the argument names; `longest_tokens` is the context that the model was made for, if its config says."""

    name: str
    architecture: "Architecture"
    longest_tokens: int | None
    device: "DeviceProfile"


def _context(subject: _Subject, asked: int | None) -> tuple[int, tuple[str, ...]]:
    """The length of each sequence, and what there is to note about it."""
    longest = subject.longest_tokens
    if asked is None and longest is None:
        note = f"the config has no longest context; {_ASSUMED_CONTEXT_TOKENS:,} tokens are assumed, or --context"
        return _ASSUMED_CONTEXT_TOKENS, (note,)
    if asked is not None and longest is not None and asked > longest:
        return asked, (f"the model was made for at most {longest:,} tokens, its max_position_embeddings",)
    return asked or longest or _ASSUMED_CONTEXT_TOKENS, ()


def _subject(spec: str, device: str | None) -> _Subject:
    from planner.device import DEFAULT_DEVICE, load_device
    from planner.presets import load_preset, preset_names
    from planner.validation import did_you_mean

    named = DEFAULT_DEVICE if device is None else device
    suffix = Path(spec).suffix.lower()
    if suffix == ".json":
        return _of_config_file(spec, load_device(named))
    if suffix in (".yaml", ".yml") or os.path.exists(spec):
        return _of_spec(spec, device)
    if spec not in preset_names():
        hint = did_you_mean(spec, preset_names(), plural="presets")
        raise SpecError("neither a file nor a preset", path=spec or "SPEC", hint=hint)
    preset = load_preset(spec)
    return _of_config(spec, preset.transformers, preset.config, load_device(named), path=spec)


def _of_spec(spec: str, device: str | None) -> _Subject:
    from planner.spec import ModelKind, load_model

    run = load_model(spec)
    if run.model.kind is ModelKind.FACTORY:
        line = run.lines[("model", "factory")].line
        hint = "name it by preset or transformers, with its config"
        message = "what a function builds is not known without building it"
        raise SpecError(message, path=spec, line=line, key="model.factory", hint=hint)
    name = run.model.preset or Path(spec).stem
    lines = {
        (key_path[-1] if key_path[1:2] == ("config",) and len(key_path) == 3 else None): position.line
        for key_path, position in run.lines.items()
        if key_path == ("model",) or key_path[:2] == ("model", "config")
    }
    return _of_config(name, run.model.name, run.model.config, device_of(run, device), path=spec, lines=lines)


def _of_config_file(spec: str, device: "DeviceProfile") -> _Subject:
    from planner.yaml_source import load_json

    config = load_json(spec).data
    names = (config.get("architectures") or [config.get("model_type")]) if isinstance(config, dict) else None
    if not isinstance(config, dict) or not isinstance(names, list) or not isinstance(names[0], str):
        message = "expected a config.json of transformers, with architectures or a model_type"
        raise SpecError(message, path=spec, hint="or write a spec with model.transformers and model.config_file")
    return _of_config(Path(spec).stem, names[0], config, device, path=spec)


def _of_config(
    name: str,
    class_name: str,
    config: Mapping[str, Any],
    device: "DeviceProfile",
    *,
    path: str,
    lines: Mapping[str | int | None, int] | None = None,
) -> _Subject:
    """The subject of a transformers class and its config; `lines` has those of its keys, and under None the model's."""
    from planner.families import ConfigError, UnknownArchitectureError, architecture_of

    place = lines or {}
    try:
        architecture = architecture_of(class_name, config)
    except UnknownArchitectureError as error:
        message = f"{error.family} is not a transformer decoder whose sizes are known"
        hint = f"such as {', '.join(_SOME_DECODERS)}; one of them with the same sizes in its config will do"
        raise SpecError(message, path=path, line=place.get(None), key="model", hint=hint) from None
    except ConfigError as error:
        line = place.get(error.key, place.get(None))
        key = f"model.config.{error.key}" if error.key else "model.config"
        raise SpecError(str(error), path=path, line=line, key=key) from None
    longest = config.get("max_position_embeddings", config.get("n_positions"))
    return _Subject(name=name, architecture=architecture, longest_tokens=longest, device=device)


def _weights(a: "Architecture", text: str, setting: "KvSetting") -> tuple[str, tuple[int, ...]]:
    """The name of the weights' format and their bytes by stage; a size is taken as that of each GPU."""
    from planner.estimation.kv import weights_bytes
    from planner.estimation.kv_formats import weight_format

    if text[:1].isdigit():
        return GIVEN, (_bytes("--weights", text, least=0),) * setting.pipeline
    how = weight_format(text)
    return how.name, weights_bytes(a, how, tensor=setting.tensor, pipeline=setting.pipeline)


def _judged(text: str, a: "Architecture", setting: "KvSetting", budget: "KvBudget", sequences: int) -> "Judgement":
    """What a stated size of so many sequences is, without paging: pages that state one rarely count blocks."""
    from planner.estimation import kv as cache
    from planner.estimation.kv_claims import ClaimedSizes, judge, rounding, slips
    from planner.estimation.kv_formats import vector_bytes

    stated_bytes = _bytes("--claim", text)
    right = cache.fit(a, cache.attention_of(a), replace(setting, block_tokens=1), budget)
    own, multi_head = cache.attention_of(a), cache.attentions(a)[0]
    own_bytes, multi_head_bytes = (
        cache.layer_token_bytes(kind, setting.how, heads=a.heads) for kind in (own, multi_head)
    )
    width = own.vectors[0].width
    sizes = ClaimedSizes(
        layers=a.layers,
        kv_heads=own.kv_heads,
        element_bytes=vector_bytes(setting.how, width) / width,
        heads_sharing=a.heads // own.kv_heads if own.kv_heads else 1,
        multi_head_factor=multi_head_bytes / own_bytes,
        token_bytes=right.token_bytes,
        tokens=setting.context_tokens * sequences,
        ranks=setting.tensor,
    )
    right_bytes = right.needed_bytes(sequences)
    return judge(stated_bytes, right_bytes, slips(sizes), rounding_bytes=rounding(text, stated_bytes))


def _bytes(option: str, text: str, *, least: int = 1) -> int:
    from planner.units import parse_bytes

    try:
        return parse_bytes(text, least=least)
    except UnitError as error:
        raise UnitError(f"{option}: {error}", text=text) from None
