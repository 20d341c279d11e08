"""Runs in each process of a group: the same steps without and with a plan under DDP or FSDP2, compared bit by bit."""

import sys
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from planner.runtime.handle import AppliedPlan, apply
from tests.runtime.models import Case, build, loss_of
from tests.runtime.plans import keep_block_inputs, keep_least, keep_some, plan_that_keeps, study

_FORWARDS = 4
_ACCUMULATED = 2


def gradients_of(case: Case, run: nn.Module, seed: int) -> list[Tensor]:
    case.model.zero_grad(set_to_none=True)
    losses = []
    for micro in range(_ACCUMULATED):
        torch.manual_seed(1000 * dist.get_rank() + 10 * seed + micro)
        loss = loss_of(run(**case.batch()))
        loss.backward()  # type: ignore[no-untyped-call]
        losses.append(loss.detach().clone())
    return [*losses, *(_local(p.grad).clone() for p in case.model.parameters() if p.grad is not None)]


def _local(tensor: Any) -> Tensor:
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor  # type: ignore[no-any-return]


def wrap(kind: str, case: Case) -> nn.Module:
    if kind == "ddp":
        return nn.parallel.DistributedDataParallel(case.model)
    from torch.distributed.fsdp import fully_shard

    for layer in case.model.model.layers:  # type: ignore[union-attr]
        fully_shard(layer)
    return fully_shard(case.model)


def main(kind: str, rank: str, store: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=int(rank), world_size=2)
    name = "llama" if kind == "fsdp" else "gpt2"
    subject = study(build(name).model, build(name).batch())
    plain = build(name)
    run = wrap(kind, plain)
    expected = [gradients_of(plain, run, seed) for seed in range(_FORWARDS)]
    kept = (keep_block_inputs(subject), keep_least(subject), keep_some(subject, 0.5, 0))
    for place, tensors in enumerate(kept):
        case = build(name)
        run = wrap(kind, case)
        handle: AppliedPlan = apply(case.model, plan_that_keeps(subject, tensors))
        for seed in range(_FORWARDS):
            found = gradients_of(case, run, seed)
            assert all(map(torch.equal, expected[seed], found)), f"plan {place}, step {seed}"
            assert len(expected[seed]) == len(found)
        assert 0 == handle.fallbacks, f"plan {place}"
        assert handle.recordings < handle.forwards, f"plan {place}"
    dist.barrier()
    dist.destroy_process_group()
    print("exact")


if __name__ == "__main__":
    main(*sys.argv[1:])
