"""A plan on a device that has no autocast of its own."""

import torch
from torch import nn

import planner
from planner.runtime.autocasting import autocast_state, no_autocast
from tests.runtime.plans import keep_least, plan_that_keeps, study


def test_a_device_without_autocast_has_it_off() -> None:
    with torch.autocast("cpu", torch.bfloat16):
        assert (False, None) == autocast_state("meta")
        assert (True, torch.bfloat16) == autocast_state("cpu")


def test_within_a_replay_autocast_is_off() -> None:
    with torch.autocast("cpu", torch.bfloat16), no_autocast("cpu"), no_autocast("meta"):
        assert not torch.is_autocast_enabled("cpu")


def test_a_plan_works_on_tensors_without_data() -> None:
    model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 4), nn.GELU())
    subject = study(model, args=(torch.randn(2, 4),))
    plan = plan_that_keeps(subject, keep_least(subject))
    model.to("meta")
    applied = planner.apply(model, plan)

    for _ in range(3):
        model(torch.empty(2, 4, device="meta")).sum().backward()

    assert (3, 2, 0) == (applied.forwards, applied.recordings, applied.fallbacks)
    assert all(parameter.grad is not None for parameter in model.parameters())
