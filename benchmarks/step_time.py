"""Predicted against measured time of a training step on this machine's CPU, without a plan and with one.

    planner profile --device cpu --threads 1 -o machine.yaml
    python benchmarks/step_time.py machine.yaml [MODEL ...] [--rounds 7] [--threads 1] [--json]

Each model is traced with the operators of a CPU and planned, on the measured device, for the lowest peak that any of
the baselines has. Rounds of one step without and one with the plan alternate; printed are medians of the processor time
(with several threads, of the clock) and how far apart their quartiles are. Optimizers and batches are such that
activations matter: with Adam and little of them, the optimizer step is the peak, which no plan lowers.

What else the machine does changes its speed, by half on some, and processor time does not tell. So two fixed calls are
timed around every step, which were also timed while the profile was measured: "slower" says how many times as long as
then they took, and "at profile's speed" is the ratio of the measured time, divided by that, to the predicted one.
oneDNN is on, as it is by default. Weights are random; nothing is downloaded.
"""

import argparse
import gc
import json
import statistics
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

import planner
from planner.costs.kinds import kind_of
from planner.costs.roofline import op_seconds
from planner.device import ARITHMETIC, DeviceProfile, load_device
from planner.graph import OpGraph, ops
from planner.plan import Retention
from planner.runtime.handle import apply
from planner.runtime.live import make_live
from planner.runtime.profiling.curves import spread
from planner.runtime.profiling.reference import Reference, Speed, slowdown
from planner.runtime.profiling.timing import CpuStopwatch
from planner.solving.search import Limits
from planner.spec import from_mapping
from planner.tracing import Kernels

CPU = torch.device("cpu")
MODELS: dict[str, dict[str, Any]] = {
    "gpt2": {
        "model": {"preset": "gpt2"},
        "batch": {"micro_batch": 2, "sequence_length": 256},
        "optimizer": {"name": "sgd"},
    },
    "llama": {
        "model": {
            "transformers": "LlamaForCausalLM",
            "config": {
                "hidden_size": 512,
                "intermediate_size": 1408,
                "num_hidden_layers": 6,
                "num_attention_heads": 8,
                "num_key_value_heads": 4,
                "vocab_size": 8000,
            },
        },
        "batch": {"micro_batch": 4, "sequence_length": 256},
    },
    "bert": {
        "model": {
            "transformers": "BertForMaskedLM",
            "config": {
                "hidden_size": 512,
                "num_hidden_layers": 6,
                "num_attention_heads": 8,
                "intermediate_size": 2048,
                "vocab_size": 8000,
            },
        },
        "batch": {"micro_batch": 8, "sequence_length": 128},
    },
    "vit": {
        "model": {
            "transformers": "ViTForImageClassification",
            "config": {
                "hidden_size": 384,
                "num_hidden_layers": 8,
                "num_attention_heads": 6,
                "intermediate_size": 1536,
                "image_size": 224,
                "patch_size": 16,
            },
        },
        "batch": {"micro_batch": 4},
    },
    "resnet-50": {
        "model": {"preset": "resnet-50"},
        "inputs": {
            "pixel_values": {"shape": [4, 3, 128, 128], "dtype": "float32"},
            "labels": {"shape": [4], "dtype": "int64", "max": 2},
        },
        "optimizer": {"name": "sgd"},
    },
    "unet": {
        "model": {"factory": "unet:build", "arguments": {"width": 32, "depth": 4}},
        "inputs": {"image": {"shape": [2, 3, 96, 96], "dtype": "float32"}},
    },
}
MODELS["llama-bf16"] = {**MODELS["llama"], "precision": {"parameters": "bfloat16"}}
_EXAMPLES = Path(__file__).parents[1] / "examples"
_EVERYTHING_BYTES = 2**60
_WARM_UP = 3  # one more than the forwards that record the tape


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One kind of step of one model."""

    model: str
    run: str
    recomputed: int  # tensors
    predicted_s: float
    measured_s: float
    spread: float
    slower: float
    ratio: float
    ratio_at_profiles_speed: float


class Timed:
    """Times of steps, each with what the reference calls took before and after it."""

    def __init__(self, reference: Reference, stopwatch: CpuStopwatch) -> None:
        self._reference, self._stopwatch = reference, stopwatch
        self.found: list[tuple[float, tuple[Speed, Speed]]] = []

    def take(self, run: Callable[[], object]) -> None:
        before = self._reference.speed(self._stopwatch)
        seconds = self._stopwatch.seconds(run)
        self.found.append((seconds, (before, self._reference.speed(self._stopwatch))))


def rows(name: str, profile: DeviceProfile, *, rounds: int, threads: int, time_limit_s: float) -> list[Row]:
    spec = from_mapping(MODELS[name], path=str(_EXAMPLES / name))
    graph = planner.trace(spec, kernels=Kernels.CPU)
    limits = Limits(time_s=time_limit_s)
    everything = planner.solve(graph, budget=_EVERYTHING_BYTES, device=profile, limits=limits).plan
    peaks = [row.peak_bytes for row in everything.baselines]
    plan = planner.solve(graph, budget=min(peaks), device=profile, limits=limits).plan
    live = make_live(spec, CPU)
    reference, stopwatch = Reference(CPU), CpuStopwatch(threads)
    plain, planned = Timed(reference, stopwatch), Timed(reference, stopwatch)
    applied = apply(live.module, plan)
    try:
        for _ in range(_WARM_UP):
            live.step()
        with applied.paused():
            live.step()
        gc.collect()
        recordings = applied.recordings
        for _ in range(rounds):
            planned.take(live.step)
            with applied.paused():
                plain.take(live.step)
        assert (applied.recordings, applied.fallbacks) == (recordings, 0), "the plan was not in force"
    finally:
        applied.remove()
    share = arithmetic_share(graph, profile)
    dropped = plan.count(Retention.RECOMPUTE)
    return [
        row(name, "no plan", 0, plan.predicted.step_s - plan.predicted.recompute_s, plain, profile, share),
        row(name, "planned", dropped, plan.predicted.step_s, planned, profile, share),
    ]


def arithmetic_share(graph: OpGraph, profile: DeviceProfile) -> float:
    """The part of the predicted time of forward and backward that goes as products do."""
    times = [(op_seconds(op, profile), kind_of(op) in ARITHMETIC) for op in ops(graph)]
    return sum(seconds for seconds, is_arithmetic in times if is_arithmetic) / sum(seconds for seconds, _ in times)


def row(
    model: str, run: str, recomputed: int, predicted_s: float, timed: Timed, profile: DeviceProfile, share: float
) -> Row:
    best = Speed(product_s=profile.reference_s["product"], elementwise_s=profile.reference_s["elementwise"])
    slower = [slowdown(around, best, arithmetic_share=share) for _, around in timed.found]
    measured = [seconds for seconds, _ in timed.found]
    return Row(
        model=model,
        run=run,
        recomputed=recomputed,
        predicted_s=predicted_s,
        measured_s=statistics.median(measured),
        spread=spread(measured),
        slower=statistics.median(slower),
        ratio=predicted_s / statistics.median(measured),
        ratio_at_profiles_speed=predicted_s
        / statistics.median(seconds / factor for seconds, factor in zip(measured, slower, strict=True)),
    )


def printed(found: Row) -> str:
    return (
        f"{found.model:11} {found.run:8} {found.recomputed:10} {found.predicted_s * 1e3:8.0f} ms "
        f"{found.measured_s * 1e3:7.0f} ms {found.spread:7.1%} {found.slower:7.2f} {found.ratio:9.2f} "
        f"{found.ratio_at_profiles_speed:19.2f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("profile", metavar="PROFILE.yaml")
    parser.add_argument("models", nargs="*", choices=[[], *MODELS], metavar="MODEL")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--time-limit", type=float, default=10.0, metavar="SECONDS", help="of each solve")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    profile = load_device(arguments.profile)
    if not profile.reference_s:
        parser.error(f"{arguments.profile} was not written by planner profile")
    torch.set_num_threads(arguments.threads)
    started, found = time.monotonic(), []
    if not arguments.json:
        print(
            f"{'model':11} {'run':8} {'recomputed':>10} {'predicted':>11} {'measured':>10} {'spread':>7} {'slower':>7} "
            f"{'ratio':>9} {'at profile’s speed':>19}"
        )
    for name in arguments.models or MODELS:
        for one in rows(
            name,
            profile,
            rounds=arguments.rounds,
            threads=arguments.threads,
            time_limit_s=arguments.time_limit,
        ):
            found.append(one)
            if not arguments.json:
                print(printed(one), flush=True)
    if arguments.json:
        print(json.dumps([asdict(one) for one in found], indent=2))
    else:
        print(f"ratio: predicted / measured. Took {time.monotonic() - started:.0f} s")


if __name__ == "__main__":
    main()
