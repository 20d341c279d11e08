"""Runs from Megatron-LM's functional tests: what a row becomes, and how far the estimate is from its golden value.

The rows are those of the tests named, at commit d98e8a6 of NVIDIA/Megatron-LM.
"""

import csv
from pathlib import Path

import pytest

from benchmarks.measurements.megatron import read
from benchmarks.measurements.row import Row
from planner.estimation.estimate import step_moments
from planner.estimation.parallel import in_flight
from planner.estimation.run import Degrees, Sharding

# Those that `read` reads.
COLUMNS = (
    "name",
    "env",
    "plat",
    "world",
    "layers",
    "hidden",
    "heads",
    "kv",
    "ffn",
    "swiglu",
    "vocab",
    "tok",
    "untie",
    "seq",
    "mbs",
    "gbs",
    "tp",
    "pp",
    "cp",
    "ep",
    "vpp",
    "sp",
    "distopt",
    "recompute",
    "impl",
    "dtype",
    "fp8",
    "experts",
    "attn",
    "fsdp",
    "dropout",
    "optimizer",
    "mem_max",
)
ROW = dict.fromkeys(COLUMNS, "") | {
    "env": "dev",
    "plat": "dgx_a100",
    "world": "8",
    "layers": "12",
    "hidden": "512",
    "heads": "8",
    "kv": "8",
    "swiglu": "False",
    "tok": "GPT2BPE",
    "untie": "False",
    "seq": "1024",
    "mbs": "4",
    "gbs": "32",
    "tp": "1",
    "pp": "1",
    "cp": "1",
    "ep": "1",
    "sp": "False",
    "distopt": "False",
    "impl": "transformer_engine",
    "dtype": "bf16",
    "fsdp": "False",
    "mem_max": "1.0",
}


def row(directory: Path, **cells: str) -> Row:
    path = directory / "rows.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerow({**ROW, **cells})
    (found,) = read(path)
    return found


GOLDEN = [
    ("gpt/gpt3_mcore_te_tp1_pp1_dist_optimizer_no_mmap_bin_files", 4673069568, {"distopt": "True", "attn": "unfused"}),
    ("gpt/gpt3_mcore_te_tp1_pp1_frozen_resume_torch_dist_dist_optimizer", 2711714304, {"distopt": "True"}),
    ("gpt/gpt3_mcore_te_tp1_pp4_vp1", 4122704384, {"pp": "4", "vpp": "1", "attn": "unfused"}),
    (
        "gpt/gpt3_mcore_te_tp1_pp4_vp1_tunable_overlap",
        4596793344,
        {"pp": "4", "vpp": "1", "gbs": "40", "attn": "unfused"},
    ),
    (
        "gpt/gpt3_mcore_tp1_pp1_resume_torch_dist_dist_optimizer_overlap_grad_reduce_param_gather",
        4607767040,
        {"distopt": "True", "impl": "local", "dtype": "fp16"},
    ),
    ("gpt/gpt3_mcore_te_tp2_pp2", 1900158464, {"tp": "2", "pp": "2", "attn": "unfused"}),
]


@pytest.mark.parametrize(("name", "measured_bytes", "cells"), GOLDEN, ids=[name for name, *_ in GOLDEN])
def test_estimates_are_within_two_percent_of_what_was_measured(
    name: str, measured_bytes: int, cells: dict[str, str], tmp_path: Path
) -> None:
    found = row(tmp_path, name=name, mem_max=str(measured_bytes), **cells)
    assert found.run is not None
    peak = max(moment.size_bytes for moment in step_moments(found.run))
    assert pytest.approx(measured_bytes, rel=0.02) == peak


def test_a_row_is_of_the_last_rank_and_of_what_remains_of_the_world(tmp_path: Path) -> None:
    found = row(tmp_path, name="gpt/a", tp="2", pp="2", sp="True", distopt="True", attn="unfused", gbs="64").run
    assert found is not None
    assert Degrees(data=2, tensor=2, sequence=True, pipeline=2) == found.degrees
    assert (1, 8, Sharding.ZERO1) == (found.stage, found.micro_batches, found.sharding)
    assert 50432 == found.architecture.vocab  # 50257, up to a multiple of 256
    assert 1 == in_flight(found)


@pytest.mark.parametrize(
    ("cells", "refusal"),
    [
        ({"fp8": "hybrid"}, "FP8"),
        ({"name": "multimodal/a"}, "a vision encoder beside the language model"),
        ({"dtype": "?"}, "no precision in the row"),
        ({"env": "lts"}, "older than its configuration, which has since left the attention kernel to the library"),
        ({"tok": "TikTokenizer"}, "the vocabulary of TikTokenizer is not in the row"),
        ({"tp": "3", "attn": "unfused"}, "3 ranks cannot share 8 heads; use a divisor"),
    ],
)
def test_what_a_row_does_not_say_is_a_refusal(cells: dict[str, str], refusal: str, tmp_path: Path) -> None:
    found = row(tmp_path, **{"name": "gpt/a", **cells})
    assert (None, refusal) == (found.run, found.refusal)
