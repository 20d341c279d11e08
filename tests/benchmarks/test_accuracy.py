"""Reading measurement files, judging their rows, and the statistics; tiny files written here, nothing fetched."""

import json
from pathlib import Path

import pytest

from benchmarks import accuracy
from benchmarks.measurements.files import FileError, read
from benchmarks.measurements.judging import Judged, acceptance, judge, summary
from benchmarks.measurements.row import Kind, Row

HEADER = (
    "id,source,model,layers,hidden,heads,kv_heads,ffn,vocab,arch,micro_batch,seq,param_dtype,optimizer,ac_mode,"
    "offload,dp_shard,compile,lora,gpu,reported_mem_gib,mem_kind,notes"
)
LITGPT = "Lightning-AI/litgpt:config_hub/finetune/README.md"
LLAMA = "Llama-3.2-1B,16,2048,32,8,8192,128256,swiglu tied"


def row_of(
    *, figure: str, kind: str = "allocated", source: str = LITGPT, model: str = LLAMA, lora: str = "r32 q,v", **_: str
) -> str:
    return f'r1,{source},{model},1,<=512,bf16-true,AdamW,none,,1,no,"{lora}",A10G-24GB,{figure},{kind},x/lora.yaml; n'


def file_of(tmp_path: Path, *lines: str, ending: str = "\n") -> Path:
    path = tmp_path / "figures.csv"
    path.write_bytes(ending.join((HEADER, *lines, "")).encode())
    return path


def judged(
    error: float, *, kind: Kind = Kind.ALLOCATED, phase: str = "backward", parameters: int = 2 * 10**9
) -> Judged:
    """A row of 1,000 bytes with that error; its run is that of any row, which nothing here reads."""
    row = Row(
        id="a",
        source="b",
        kind=kind,
        measured_bytes=1000,
        run=_any_run(),
        refusal=None,
        parameters=2 * 10**9,
        is_dense=True,
        label="c",
        device_bytes=0,
    )
    size_bytes = round(1000 * (1 + error))
    return Judged(row=row, estimate_bytes=size_bytes, phase=phase, low_bytes=size_bytes, high_bytes=size_bytes)


def _any_run():  # type: ignore[no-untyped-def]
    from planner.estimation.run import Run
    from planner.families import architecture_of

    return Run(architecture=architecture_of("gpt2", {}), micro_batch=1, length=8)


def test_a_litgpt_row_is_within_two_percent(tmp_path):
    (row,) = read(file_of(tmp_path, row_of(figure="4.182")))
    assert row.refusal is None
    assert abs(judge(row).error) < 0.02


def test_windows_line_ends_and_a_byte_order_mark_change_nothing(tmp_path):
    (plain,) = read(file_of(tmp_path, row_of(figure="4.182")))
    path = file_of(tmp_path, row_of(figure="4.182"), ending="\r\n")
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())
    assert [plain] == read(path)


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (row_of(figure="lots"), "the figure is not a number ('lots')"),
        (row_of(figure=""), "the figure is not a number ('')"),
        (row_of(figure="nan"), "the figure is not a size ('nan' GiB)"),
        (row_of(figure="-1"), "the figure is not a size ('-1' GiB)"),
        (row_of(figure="4", kind="guessed"), "mem_kind 'guessed' is not one that is known"),
        (row_of(figure="4", source="someone/else:README"), "the stack of someone/else is not described"),
        (row_of(figure="4", source=""), "the stack of no source is not described"),
        (row_of(figure="4", lora="q,v"), "the rank of the adapters is not stated"),
        (row_of(figure="4", model=LLAMA.replace("16,2048", "many,2048")), "layers is not stated ('many')"),
        (row_of(figure="4", model=LLAMA.replace("16,2048", "0,2048")), "layers is not stated ('0')"),
        (
            row_of(figure="4", model=LLAMA.replace("16,2048", "100000000,2048")),
            "more than 10,000 layers ('100000000')",
        ),
        (row_of(figure="4").replace(",none,,1,no", ",none,,0,no"), "the number of ranks is not stated ('0')"),
        ("r1", "mem_kind '' is not one that is known"),
    ],
)
def test_what_cannot_be_expressed_is_refused_with_the_reason(tmp_path, line, reason):
    (row,) = read(file_of(tmp_path, line))
    assert (reason, None) == (row.refusal, row.run)


def test_more_cells_than_the_header_has_are_left_out(tmp_path):
    (row,) = read(file_of(tmp_path, row_of(figure="4.182") + ",and,more"))
    assert row.refusal is None


def test_a_figure_below_the_static_floor_is_impossible_whatever_its_label(tmp_path):
    full = row_of(figure="8.103", lora="")
    (row,) = read(file_of(tmp_path, full))
    # Parameters, gradients and two states of 2 bytes: 8 for each of 1,498,482,688, the output matrix its own.
    assert judge(row).impossible == "8.70 GB is below the 12.0 GB that parameters, gradients and adamw state alone take"
    (marked,) = read(file_of(tmp_path, row_of(figure="30", kind="SUSPECT", lora="")))
    assert judge(marked).impossible is None


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"a,b\n1,2\n", "of neither form"),
        (b"", "of neither form"),
        (b"\xff\xfe\x00", "not a CSV file in UTF-8"),
        (b"id,source,\x00\n", "of neither form"),
    ],
)
def test_a_file_of_neither_form_is_one_line_of_error(tmp_path, content, message):
    path = tmp_path / "odd.csv"
    path.write_bytes(content)
    with pytest.raises(FileError) as caught:
        read(path)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_is_not_there_ends_the_command_with_2(tmp_path, capsys):
    assert accuracy.main([str(tmp_path / "none.csv")]) == 2
    assert "No such file" in capsys.readouterr().err


def test_a_summary_by_hand():
    found = summary([-0.03, 0.01, 0.02, -0.10])
    assert found is not None
    assert (4, -0.10, 0.02) == (found.count, found.lowest, found.highest)
    assert found.median == pytest.approx(0.025)
    assert found.p90 == 0.10


def test_no_errors_have_no_summary():
    assert summary([]) is None


def test_demands_without_rows_are_neither_met_nor_failed():
    assert {(None, False)} == {(one.found, one.holds) for one in acceptance([])}


def test_one_large_underestimate_fails_that_demand_alone():
    found = acceptance([judged(-0.09), *(judged(0.01) for _ in range(19))])
    assert ["dense, at least 1B, allocated: underestimates at most 8%"] == [
        one.demand for one in found if one.found is not None and not one.holds
    ]


def test_the_optimizer_step_is_held_to_half_a_percent():
    found = {one.demand: one.holds for one in acceptance([judged(0.006, phase="optimizer step")])}
    assert not found["peak in the optimizer step: within 0.5%"]


def test_reserved_rows_are_held_against_their_intervals():
    rows = [judged(0.0, kind=Kind.RESERVED)] * 9 + [judged(0.5, kind=Kind.RESERVED)]
    found = {one.demand: one for one in acceptance(rows)}
    assert found["reserved: at least 90% of rows in the interval"].holds
    assert not {one.demand: one for one in acceptance(rows[1:])}["reserved: at least 90% of rows in the interval"].holds


def test_the_json_has_every_row_once(tmp_path, capsys):
    path = file_of(tmp_path, row_of(figure="4.182"), row_of(figure="lots"))
    assert accuracy.main([str(path), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (2, 1, 1, 1) == (
        document["rows"],
        document["expressed"],
        len(document["judged"]),
        len(document["refused"]),
    )


def test_the_text_names_every_refusal(tmp_path, capsys):
    accuracy.main([str(file_of(tmp_path, row_of(figure="lots"))), "--rows"])
    out = capsys.readouterr().out
    assert "1 rows, 0 of them expressed (0%)" in out
    assert out.count("the figure is not a number ('lots')") == 2
