"""Runs in each process of a group: a planned step under DDP or FSDP2, its peak against the prediction, its bits."""

import gc
import json
import os
import sys
from dataclasses import replace
from itertools import accumulate
from typing import Any

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # before torch: its profiler prints at each start and stop

import torch
import torch.distributed as dist
from torch import Tensor, nn

import planner
from planner.plan import Plan, Retention
from planner.runtime.handle import apply
from planner.runtime.live import make_live
from planner.runtime.measure import storage_bytes
from planner.solving.search import Limits
from planner.spec import RunSpec, from_mapping
from planner.tracing import Kernels

RANKS = 2
# The first records the step, the second confirms it; the next ones run from the tape.
_WARM_UP_STEPS = 4
# Gloo copies what it sends and lets go of the copies in threads of its own, now and then only after the peak. That adds
# up to a copy of the parameters, and never takes anything away: the lowest of several measurements is without it.
_REPEATS = 8
_MARK_BYTES = 12_347  # a size that nothing else has
# One peaks at the loss, one in the backward of a block, where gathered and reduced parameters outweigh activations.
SHAPES = {
    "activations": {"hidden_size": 64, "intermediate_size": 128, "vocab_size": 500, "tokens": 64},
    "parameters": {"hidden_size": 128, "intermediate_size": 512, "vocab_size": 64, "tokens": 16},
}


def spec(kind: str, shape: str) -> RunSpec:
    sizes = dict(SHAPES[shape])
    tokens = sizes.pop("tokens")
    return from_mapping(
        {
            "model": {
                "transformers": "LlamaForCausalLM",
                "config": {"num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, **sizes},
            },
            "batch": {"micro_batch": 2, "sequence_length": tokens},
            "optimizer": {"name": "none"},
            "parallel": {kind: RANKS},
        }
    )


def plan_at(run: RunSpec, share: float) -> Plan:
    """A plan for a budget that lies `share` of the way from the lowest baseline's peak to the highest."""
    graph = planner.trace(run, kernels=Kernels.CPU)
    limits = Limits(time_s=2.0)
    peaks = [row.peak_bytes for row in planner.solve(graph, budget=2**50, limits=limits).plan.baselines]
    return planner.solve(graph, budget=min(peaks) + round(share * (max(peaks) - min(peaks))), limits=limits).plan


def offloading(plan: Plan) -> Plan:
    """The plan with every second tensor that it saves put on the host instead."""
    kept = [place for place, decision in enumerate(plan.decisions) if decision.retention is Retention.SAVE]
    moved = set(kept[::2])
    return replace(
        plan,
        decisions=tuple(
            replace(decision, retention=Retention.OFFLOAD) if place in moved else decision
            for place, decision in enumerate(plan.decisions)
        ),
    )


def wrap(kind: str, model: Any) -> nn.Module:
    if kind == "ddp":
        return nn.parallel.DistributedDataParallel(model)
    from torch.distributed.fsdp import fully_shard

    for layer in model.model.layers:
        fully_shard(layer)
    sharded: Any = fully_shard(model)
    for module in (*model.model.layers, sharded):
        module.set_custom_reduce_scatter(InPlaceReduceScatter())
    return sharded  # type: ignore[no-any-return]


class InPlaceReduceScatter:
    """A reduce-scatter that needs no memory of its own, as NCCL's.

    Gloo's clones its input, and lets go of the clone in a thread of its own, some time later.
    """

    def allocate(self, size: Any, *, dtype: torch.dtype, device: torch.device) -> Tensor:
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self, output_tensor: Tensor, input_tensor: Tensor, group: Any, op: Any, async_op: bool = False
    ) -> None:
        dist.all_reduce(input_tensor, op=op, group=group)
        output_tensor.copy_(input_tensor.chunk(group.size())[group.rank()])


class Rank:
    """One process's model with its inputs, wrapped."""

    def __init__(self, kind: str, run: RunSpec, plan: Plan) -> None:
        self.kind = kind
        self.live = make_live(run, torch.device("cpu"))
        self.plan = plan

    def start(self) -> None:
        self.wrapped = wrap(self.kind, self.live.module)
        self.handle = apply(self.live.module, self.plan)

    def step(self) -> Tensor:
        output = self.wrapped(**self.live.inputs)
        loss = self.live.loss(output, self.live.inputs)
        loss.backward()  # type: ignore[no-untyped-call]
        return loss.detach()

    def gradients(self) -> list[Tensor]:
        loss = self.step()
        found = [loss, *(local(p.grad).clone() for p in self.live.module.parameters() if p.grad is not None)]
        self.live.module.zero_grad(set_to_none=True)
        return found

    def peak_bytes(self) -> int:
        """The most that one step has allocated at once, what is there between steps included."""
        gc.collect()  # models of earlier cases, which would count as freed here
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
            self.start()
            for _ in range(_WARM_UP_STEPS):
                self.step()
                self.live.module.zero_grad(set_to_none=True)
            mark = torch.empty(_MARK_BYTES, dtype=torch.uint8)
            self.step()
        del mark
        events = [event for event in profile.profiler.kineto_results.events() if event.name() == "[memory]"]
        events.sort(key=lambda event: event.start_ns())
        sizes = [event.nbytes() for event in events]
        place = sizes.index(_MARK_BYTES)
        resident = [*self.live.module.parameters(), *self.live.module.buffers(), *self.live.inputs.values()]
        # DDP's buckets are no tensors that one could ask for: what has been allocated since before it was made.
        # FSDP puts shards in the parameters' place instead, which are among the parameters.
        buckets = sum(sizes[:place]) if self.kind == "ddp" else 0
        return storage_bytes(map(local, resident)) + buckets + max(accumulate(sizes[place + 1 :]))


def local(tensor: Any) -> Tensor:
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor  # type: ignore[no-any-return]


def main(kind: str, rank: str, store: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=int(rank), world_size=RANKS)
    found: list[dict[str, Any]] = []
    with torch.backends.mkldnn.flags(enabled=False):
        for shape in SHAPES:
            run = spec(kind, shape)
            for share in (1.0, 0.3):
                # Solvers on a busy machine may end with different plans: both ranks take the first one's.
                plans = [plan_at(run, share)]
                dist.broadcast_object_list(plans)
                found.append(
                    {
                        "case": f"{kind}, {shape}, {share:.0%}",
                        "at": plans[0].predicted.peak_at,
                        "predicted": plans[0].predicted.peak_bytes,
                        "measured": min(Rank(kind, run, plans[0]).peak_bytes() for _ in range(_REPEATS)),
                    }
                )
            plain, moved = Rank(kind, run, plans[0]), Rank(kind, run, offloading(plans[0]))
            plain.start()
            plain.handle.remove()
            moved.start()
            for step in range(_WARM_UP_STEPS):
                assert all(map(torch.equal, plain.gradients(), moved.gradients())), f"{shape}, step {step}"
            assert 0 == moved.handle.fallbacks
            assert moved.handle.recordings < moved.handle.forwards
    dist.barrier()
    dist.destroy_process_group()
    print(json.dumps(found))


if __name__ == "__main__":
    main(*sys.argv[1:])
