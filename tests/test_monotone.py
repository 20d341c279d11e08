"""More budget never costs more time: on traced models, at 50 budgets, through the same functions that users call."""

from itertools import pairwise
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import planner
from planner.device import load_device
from planner.graph import OpGraph
from planner.planning import smallest_peak
from planner.solving.search import Limits
from planner.spec import from_mapping
from planner.tradeoff import spread

BUDGETS = 50
EXACT = Limits(time_s=60.0, gap=0.0)


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(nn.functional.gelu(self.up(x)))


def perceptron() -> OpGraph:
    return planner.trace(nn.Sequential(*(Block(32) for _ in range(4))), (torch.randn(512, 32),))


def llama() -> OpGraph:
    pytest.importorskip("transformers")
    sizes = {"hidden_size": 32, "intermediate_size": 80, "num_hidden_layers": 4, "num_attention_heads": 4}
    spec = {
        "model": {"transformers": "LlamaForCausalLM", "config": {**sizes, "num_key_value_heads": 2, "vocab_size": 96}},
        "batch": {"micro_batch": 8, "sequence_length": 128},
    }
    return planner.trace(from_mapping(spec))


@pytest.mark.filterwarnings("ignore")  # what model libraries say of tiny configurations
@pytest.mark.parametrize("model", [perceptron, pytest.param(llama, marks=pytest.mark.slow)])
def test_along_a_frontier(model: Any) -> None:
    found = planner.frontier(model(), points=BUDGETS)

    assert BUDGETS == len(found.points)
    assert all(point.peak_bytes <= point.budget_bytes for point in found.points)
    assert all(later.overhead <= earlier.overhead for earlier, later in pairwise(found.points))
    assert found.points[0].overhead > found.points[-1].overhead == 0


def test_for_budgets_that_know_nothing_of_each_other_when_every_plan_is_proven() -> None:
    graph = perceptron()
    lowest = smallest_peak(graph, load_device("h100-80gb")).timeline.peak_bytes
    highest = planner.solve(graph, budget=2**60).plan.predicted.peak_bytes
    budgets = spread(lowest, highest, BUDGETS)

    plans = [planner.solve(graph, budget=budget, limits=EXACT).plan for budget in budgets]

    assert BUDGETS == len(plans)
    assert {0.0} == {plan.solver.gap for plan in plans}
    assert all(plan.predicted.peak_bytes <= budget for plan, budget in zip(plans, budgets, strict=True))
    assert all(later.predicted.step_s <= earlier.predicted.step_s for earlier, later in pairwise(plans))
    assert plans[0].predicted.recompute_s > plans[-1].predicted.recompute_s == 0
