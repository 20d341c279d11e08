"""`planner estimate`: whether a run fits a device, without torch."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from planner.commands.options import device_of, json_option, sizes
from planner.commands.output import print_json
from planner.errors import SpecError

if TYPE_CHECKING:
    from planner.estimation.run import Run
    from planner.spec import RunSpec


@click.command(short_help="Say whether a run fits its GPU, without torch.")
@click.argument("spec")
@click.option("--device", metavar="NAME|FILE", help="A name from `planner devices` or a profile file.")
@click.option("--explain", is_flag=True, help="Show the formula of every figure with its values, and its source.")
@click.option(
    "--lengths",
    metavar="512,2048",
    callback=sizes,
    help="Show instead what one block keeps for backward at these lengths, tensor by tensor, and how each grows.",
)
@json_option
def estimate(*, spec: str, device: str | None, explain: bool, lengths: tuple[int, ...] | None, as_json: bool) -> None:
    """Say whether SPEC fits its device: memory by phase and part, in closed form, without torch.

    SPEC is a spec file, or the name of a preset, which stands for one sequence of 2,048 tokens (or as many as the
    model has positions) in bfloat16 autocast. Exit status 1 when the verdict is OOM.

    \b
    Examples:
      planner estimate examples/llama-3-8b.yaml
      planner estimate llama-3-8b --device h200
      planner estimate model.yaml --explain
      planner estimate model.yaml --lengths 512,2048,4096,32768
      planner estimate model.yaml --json | jq .verdict
    """
    from planner.answers.estimates import summary_of
    from planner.estimation.from_spec import run_of
    from planner.estimation.verdict import Verdict
    from planner.reporting.estimate import estimate_document, estimate_text

    if lengths is not None and (explain or device):
        raise click.UsageError("--lengths shows one block alone: it goes with neither --explain nor --device")
    run_spec, notes = _load(spec)
    run = run_of(run_spec)
    model = run_spec.model.preset or run_spec.model.name
    if lengths is not None:
        _check_lengths(run_spec, lengths)
        _show_growth(model, run, lengths, as_json=as_json)
        return
    profile = device_of(run_spec, device)
    summary = summary_of(model, run, profile, notes=notes, explain=explain)
    if as_json:
        print_json(estimate_document(summary))
    else:
        click.echo(estimate_text(summary))
    if summary.estimate.verdict is Verdict.OOM:
        raise SystemExit(1)


def _check_lengths(spec: "RunSpec", lengths: tuple[int, ...]) -> None:
    """Returns when the model has sequences of these lengths, and its ranks can share them; raises SpecError if not."""
    from planner.estimation.from_spec import run_of

    for length in lengths:
        try:
            run_of(replace(spec, batch=replace(spec.batch, sequence_length=length)))
        except SpecError as error:
            raise SpecError(
                f"--lengths {length}: {error.message}", path=error.path, line=error.line, key=error.key, hint=error.hint
            ) from None


def _show_growth(model: str, run: "Run", lengths: tuple[int, ...], *, as_json: bool) -> None:
    from planner.estimation.growth import growth
    from planner.reporting.growth import growth_document, growth_text

    found = growth(run, lengths)
    if as_json:
        print_json(growth_document(model, run.architecture.layers, found))
    else:
        click.echo(growth_text(model, run.architecture.layers, found))


_PRESET_TOKENS = 2048


def _load(name: str) -> "tuple[RunSpec, tuple[str, ...]]":
    """The run of a file, or of a preset where there is no such file, and what was assumed for it."""
    from planner.presets import load_preset, preset_names
    from planner.spec import load, of_preset
    from planner.validation import did_you_mean

    if name and (Path(name).exists() or Path(name).suffix):
        return load(name), ()
    if name not in preset_names():
        hint = did_you_mean(name, preset_names(), plural="known presets")
        raise SpecError("no such file, and no such preset", path=name or "SPEC", hint=hint)
    config = load_preset(name).config
    length = min(_PRESET_TOKENS, config.get("n_positions") or config.get("max_position_embeddings") or _PRESET_TOKENS)
    spec = of_preset(name, micro_batch=1, sequence_length=length, parameters="float32", compute="bfloat16")
    return spec, (f"the preset was taken as one sequence of {length:,} tokens in bfloat16 autocast, with AdamW",)
