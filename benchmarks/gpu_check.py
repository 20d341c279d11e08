"""The whole check on one CUDA GPU: three models, solved, applied and measured. Meant to take under five minutes.

    python benchmarks/gpu_check.py -o gpu_check.json [--steps 5]

For each model: trace with CUDA's operators, solve for half-way between the lowest baseline's peak and no
checkpointing, run real steps without and with the plan, and report predicted and measured peak, equality of loss and
gradients, and step times. Not run by any test; needs a GPU with at least 16 GB.
"""

import argparse
import dataclasses
import json
import sys
import time
from pathlib import Path
from typing import Any

import torch

import planner
from planner.spec import from_mapping
from planner.verification import verify

MODELS: dict[str, dict[str, Any]] = {
    "llama-1b-like": {
        "model": {
            "transformers": "LlamaForCausalLM",
            "config": {
                "hidden_size": 2048,
                "intermediate_size": 5632,
                "num_hidden_layers": 8,
                "num_attention_heads": 16,
                "num_key_value_heads": 8,
                "vocab_size": 32000,
            },
        },
        "batch": {"micro_batch": 2, "sequence_length": 2048},
        "precision": {"parameters": "bfloat16", "compute": "bfloat16"},
    },
    "gpt2-dropout": {
        "model": {"preset": "gpt2", "config": {"n_layer": 12}},
        "batch": {"micro_batch": 8, "sequence_length": 1024},
        "precision": {"parameters": "bfloat16", "compute": "bfloat16"},
    },
    "vit-l": {
        "model": {"preset": "vit-l"},
        "batch": {"micro_batch": 16},
        "precision": {"parameters": "bfloat16", "compute": "bfloat16"},
    },
}
SHARE = 0.5


def check(name: str, description: dict[str, Any], steps: int) -> dict[str, Any]:
    started = time.perf_counter()
    spec = from_mapping(description, path=name)
    graph = planner.trace(spec)
    peaks = [row.peak_bytes for row in planner.solve(graph, budget=2**60).plan.baselines]
    budget = min(peaks) + round(SHARE * (max(peaks) - min(peaks)))
    plan = planner.solve(graph, budget=budget).plan
    found = verify(spec, plan, device="cuda", steps=steps)
    return {
        "model": name,
        **dataclasses.asdict(found),
        "prediction_error": found.prediction_error,
        "failures": found.failures,
        "predicted_step_s": plan.predicted.step_s,
        "recompute_s": plan.predicted.recompute_s,
        "wall_s": time.perf_counter() - started,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-o", "--output", type=Path, required=True)
    parser.add_argument("--steps", type=int, default=5)
    arguments = parser.parse_args()
    if not torch.cuda.is_available():
        sys.exit("gpu_check.py: there is no CUDA device here")
    rows = []
    for name, description in MODELS.items():
        try:
            rows.append(check(name, description, arguments.steps))
        except Exception as error:  # one model's failure must not cost the others' figures
            rows.append({"model": name, "error": f"{type(error).__name__}: {error}"})
        print(json.dumps(rows[-1]), flush=True)
    properties = torch.cuda.get_device_properties(0)
    document = {"device": properties.name, "memory_bytes": properties.total_memory, "torch": torch.__version__}
    arguments.output.write_text(json.dumps({**document, "models": rows}, indent=2))


if __name__ == "__main__":
    main()
