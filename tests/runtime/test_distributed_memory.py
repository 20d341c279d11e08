"""The peak of each rank under DDP and FSDP2 against the prediction for the same spec, and offloading there."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

_ROOT = Path(__file__).parents[2]
_RANKS = 2
_TOLERANCE = 0.02


@pytest.mark.slow
@pytest.mark.skipif(not torch.distributed.is_available(), reason="needs torch.distributed")
@pytest.mark.parametrize("kind", ["ddp", "fsdp"])
def test_each_rank_peaks_as_predicted_and_offloading_gives_the_same_bits(kind: str, tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    command = [sys.executable, "-m", "tests.runtime.distributed_memory_worker", kind]
    processes = [
        subprocess.Popen(
            [*command, str(rank), str(tmp_path / "store")],
            cwd=_ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(_RANKS)
    ]
    try:
        results = [process.communicate(timeout=400) for process in processes]
    finally:
        for process in processes:
            process.kill()
    assert [0] * _RANKS == [process.returncode for process in processes], results[0][1][-3000:]

    for output, _ in results:
        for row in json.loads(output.splitlines()[-1]):
            assert row["predicted"] == pytest.approx(row["measured"], rel=_TOLERANCE), row
