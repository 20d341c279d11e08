"""`planner estimate` as a user meets it."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from planner.cli import main

LLAMA = "model: {preset: llama-3-8b}\nbatch: {micro_batch: 4, sequence_length: 4096}\n"
BF16 = "precision: {parameters: bfloat16}\n"


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    path = tmp_path / "model.yaml"
    path.write_text(LLAMA + BF16)
    return path


def run(*arguments: object) -> Result:
    result = CliRunner().invoke(main, ["estimate", *map(str, arguments)])
    assert result.exception is None or isinstance(result.exception, SystemExit), result.exception
    return result


def document(*arguments: object) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(run(*arguments, "--json").stdout)
    return found


def test_the_json_has_every_figure(spec: Path) -> None:
    found = document(spec)
    expected = {
        *("model", "device", "stack", "verdict", "reason", "notes", "knobs", "parts", "phases"),
        *("allocated_peak_bytes", "allocated_peak_phase", "allocated_peak_at", "device_bytes"),
        *("reserved_low_bytes", "reserved_high_bytes", "context_low_bytes", "context_high_bytes"),
        *("communication_low_bytes", "communication_high_bytes", "total_low_bytes", "total_high_bytes"),
    }
    assert expected == set(found)
    assert "OOM" == found["verdict"]
    assert "llama-3-8b" == found["model"]
    assert "transformers 5.24" in found["stack"]
    names = [one["phase"] for one in found["phases"]]
    steps = ["first optimizer step", "optimizer step"]
    assert ["load", "forward", "loss", "backward", *steps, "evaluation"] == names
    assert all(sum(one["parts"].values()) == one["bytes"] for one in found["phases"])
    assert found["allocated_peak_bytes"] == max(one["bytes"] for one in found["phases"])
    assert found["allocated_peak_bytes"] == sum(found["parts"].values())


def test_gradients_are_reduced_where_there_are_ranks_to_reduce_among(tmp_path: Path) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(LLAMA + BF16 + "parallel: {ddp: 2}")
    found = document(path)
    assert "gradient reduction" in [one["phase"] for one in found["phases"]]
    assert found["communication_high_bytes"] > found["communication_low_bytes"] > 0


def test_the_exit_status_is_1_only_when_it_cannot_fit(spec: Path) -> None:
    assert 1 == run(spec).exit_code
    spec.write_text(LLAMA + BF16 + "device: {memory: 400GB}")
    assert 0 == run(spec).exit_code


def test_a_larger_device_fits_and_needs_no_advice(spec: Path) -> None:
    spec.write_text(LLAMA + BF16 + "device: {memory: 400GB}")
    found = document(spec)
    assert ("FITS", []) == (found["verdict"], found["knobs"])
    assert found["total_high_bytes"] <= found["device_bytes"]


def test_each_knob_gives_what_it_says_when_it_is_written_in_the_spec(spec: Path) -> None:
    written = {
        "loss_kernel: fused-linear": "loss_kernel: fused-linear",
        "optimizer.implementation: fused": "optimizer: {name: adamw, implementation: fused}",
        "optimizer.in_backward: true": "optimizer: {name: adamw, in_backward: true}",
        "optimizer.name: adamw-8bit": "optimizer: {name: adamw-8bit}",
        "checkpointing: selective": "checkpointing: selective",
        "checkpointing: block": "checkpointing: block",
        "offload.optimizer: true": "offload: {optimizer: true}",
    }
    knobs = [knob for knob in document(spec)["knobs"] if knob["change"] in written]
    assert len(knobs) >= 3
    for knob in knobs:
        spec.write_text(LLAMA + BF16 + written[knob["change"]])
        found = document(spec)
        assert found["allocated_peak_bytes"] == knob["allocated_peak_bytes"], knob["change"]
        assert found["verdict"] == knob["verdict"]


def test_several_changes_together_when_none_alone_is_enough(spec: Path) -> None:
    last = document(spec, "--device", "rtx-4090")["knobs"][-1]
    assert "together" == last["effect"]
    assert len(last["change"].split("; ")) > 1


def test_a_preset_stands_for_a_run_and_says_which() -> None:
    result = run("gpt2")
    assert result.stdout.startswith("FITS: gpt2 on h100-80gb needs ")
    assert "one sequence of 1,024 tokens" in result.stdout


def test_the_report_is_short_and_in_gigabytes(spec: Path) -> None:
    lines = run(spec).stdout.splitlines()
    assert len(lines) < 50
    assert all(len(line) <= 100 for line in lines)
    assert not re.search(r"\d (MB|MiB|GiB|KB)", "\n".join(lines))


def test_explained_formulas_give_the_figures_of_the_report(spec: Path) -> None:
    found = document(spec, "--explain")
    formulas = [formula for section in found["explained"] for formula in section["formulas"]]
    assert all(formula["source"] for formula in formulas)
    for formula in formulas:
        terms = [re.findall(r"(?:^| × )([0-9.,e-]+) ", term) for term in formula["formula"].split(" + ")]
        values = [[float(number.replace(",", "")) for number in term] for term in terms]
        assert formula["bytes"] == sum(round(product(term)) for term in values), formula
    totals = [formula["bytes"] for formula in formulas if formula["name"].endswith("in all")]
    assert [one["bytes"] for one in found["phases"]] == totals
    text = run(spec, "--explain").stdout
    assert all(len(line) <= 100 for line in text.splitlines())
    assert f"= {found['total_high_bytes']:,} bytes" in re.sub(r"\s+", " ", text)


def test_a_pipeline_is_not_advised_to_free_gradients_that_it_adds_up(spec: Path) -> None:
    spec.write_text(LLAMA + BF16 + "parallel: {pp: 2}\ndevice: rtx-4090")
    changes = [knob["change"] for knob in document(spec)["knobs"]]
    assert changes
    assert not [change for change in changes if "in_backward" in change]


def product(values: list[float]) -> float:
    result = 1.0
    for value in values:
        result *= value
    return result


def test_a_device_that_says_only_its_memory_is_taken_at_its_word(spec: Path) -> None:
    spec.write_text(LLAMA + BF16 + "device: {memory: 24GB}")
    found = document(spec)
    assert 24 * 10**9 == found["device_bytes"]
    assert "what a process can have of the device is taken to be its memory as stated" in found["notes"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing.yaml"], "nothing.yaml: no such file"),
        (["llama-3-8"], "llama-3-8: no such file, and no such preset; did you mean 'llama-3-8b'?"),
        ([""], "SPEC: no such file, and no such preset; known presets: gpt2"),
        (
            ["gpt2", "--lengths", "512,2048"],
            "gpt2: batch.sequence_length: --lengths 2048: the model has 1,024 positions",
        ),
        (["gpt2", "--device", "h10"], "unknown device 'h10'; did you mean 'h100-80gb'?"),
        (["vit-l"], "vit-l: model.preset: ViTForImageClassification is not an architecture"),
    ],
)
def test_what_cannot_be_estimated_is_one_line(arguments: list[str], message: str) -> None:
    result = run(*arguments)
    assert 2 == result.exit_code
    assert "" == result.stdout
    assert message in result.stderr
    assert 1 == len(result.stderr.splitlines())


def test_nothing_heavy_is_imported() -> None:
    code = (
        "import sys\nfrom planner.cli import main\n"
        "try: main(['estimate', 'llama-3-8b', '--explain'])\nexcept SystemExit: pass\n"
        "print([name for name in ('torch', 'transformers', 'networkx', 'numpy', 'ortools') if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "[]" == done.stdout.splitlines()[-1]
