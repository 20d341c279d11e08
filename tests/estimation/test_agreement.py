"""The closed form against the traced step under the same checkpointing: two ways to the same bytes."""

from collections.abc import Sequence
from dataclasses import replace
from math import isqrt

import pytest

from planner.estimation.from_spec import run_of
from planner.estimation.phases import Phase, phases_of
from planner.estimation.step import Checkpointing
from planner.spec import from_mapping
from tests.estimation.specs import DENSE, FULL_SIZE, Mapping

pytest.importorskip("torch")
pytest.importorskip("transformers")
pytest.importorskip("ortools")

WITHIN = 0.03
MODES = (
    ("no checkpointing", Checkpointing.NONE),
    ("every block", Checkpointing.BLOCK),
    ("every √N blocks", Checkpointing.BLOCK),
    ("selective", Checkpointing.SELECTIVE),
)
WITHIN_THE_STEP = (Phase.FORWARD, Phase.LOSS, Phase.BACKWARD)


@pytest.mark.parametrize("mapping", DENSE.values(), ids=DENSE)
def test_estimates_agree_with_the_traced_step(mapping: Mapping) -> None:
    agrees(mapping)


@pytest.mark.parametrize("more", [{"num_kv_heads": 2, "new_decoder_architecture": True}, {"multi_query": True}])
@pytest.mark.parametrize("dtype", ["bfloat16", "float32"])
def test_falcons_agree_that_keep_everything(more: Mapping, dtype: str) -> None:
    config = {"hidden_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8, "vocab_size": 8000, **more}
    # With checkpoints the trace keeps more: a plan cannot run again what the lists of indices in Falcon's code choose.
    mapping = {
        "model": {"transformers": "FalconForCausalLM", "config": config},
        "batch": {"micro_batch": 2, "sequence_length": 512},
        "precision": {"parameters": dtype},
    }
    agrees(mapping, modes=MODES[:1])


@pytest.mark.slow
@pytest.mark.parametrize("mapping", FULL_SIZE.values(), ids=FULL_SIZE)
def test_estimates_of_models_in_use_agree_with_the_traced_step(mapping: Mapping) -> None:
    agrees(mapping)


def agrees(mapping: Mapping, modes: Sequence[tuple[str, Checkpointing]] = MODES) -> None:
    from planner import trace
    from planner.device import load_device
    from planner.problem import build_problem
    from planner.solving.baselines import baselines

    spec = from_mapping(mapping)
    graph = trace(spec)
    problem = build_problem(graph, load_device("h100-80gb"), host_budget_bytes=0)
    traced = {one.name: one.timeline for one in baselines(problem, graph)}
    run = replace(run_of(spec), is_planned=True)
    for name, mode in modes:
        size = isqrt(run.architecture.layers) if "√N" in name else 1
        found = phases_of(replace(run, checkpointing=mode, group=size))
        peak = max(one.size_bytes for one in found if one.phase is not Phase.EVALUATION)
        without_step = max(one.size_bytes for one in found if one.phase in WITHIN_THE_STEP)
        assert pytest.approx(traced[name].peak_bytes, rel=WITHIN) == peak, name
        assert pytest.approx(max(traced[name].live_bytes), rel=WITHIN) == without_step, name
