"""Predicted against allocated peak, and bits, for five small models at four budgets each, on this machine's CPU.

    python benchmarks/peak_accuracy.py [MODEL ...] [--json]

Each row is one `planner.verify` of a plan solved for a share of the way from the lowest baseline's peak to no
checkpointing. Weights are random; nothing is downloaded.
"""

import argparse
import json
import os
from typing import Any

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # before torch: its profiler prints at each start and stop

import planner
from planner.spec import from_mapping

_TEXT = {"micro_batch": 8, "sequence_length": 256}
MODELS: dict[str, dict[str, Any]] = {
    "llama": {
        "model": {
            "transformers": "LlamaForCausalLM",
            "config": {
                "hidden_size": 256,
                "intermediate_size": 512,
                "num_hidden_layers": 4,
                "num_attention_heads": 4,
                "num_key_value_heads": 2,
                "vocab_size": 1000,
            },
        },
        "batch": _TEXT,
    },
    "gpt2": {
        "model": {
            "transformers": "GPT2LMHeadModel",
            "config": {"n_embd": 256, "n_layer": 4, "n_head": 4, "vocab_size": 1000, "n_positions": 512},
        },
        "batch": _TEXT,
    },
    "bert": {
        "model": {
            "transformers": "BertForMaskedLM",
            "config": {
                "hidden_size": 256,
                "num_hidden_layers": 4,
                "num_attention_heads": 4,
                "intermediate_size": 512,
                "vocab_size": 1000,
            },
        },
        "batch": _TEXT,
    },
    "vit": {
        "model": {
            "transformers": "ViTForImageClassification",
            "config": {
                "hidden_size": 192,
                "num_hidden_layers": 4,
                "num_attention_heads": 3,
                "intermediate_size": 384,
                "image_size": 64,
                "patch_size": 8,
            },
        },
        "batch": {"micro_batch": 32},
    },
    "resnet": {
        "model": {
            "transformers": "ResNetForImageClassification",
            "config": {"embedding_size": 32, "hidden_sizes": [64, 128, 256], "depths": [2, 2, 2]},
        },
        "batch": {"micro_batch": 4},
    },
}
SHARES = (0.75, 0.5, 0.25, 0.0)


def rows(name: str) -> list[dict[str, Any]]:
    spec = from_mapping(MODELS[name], path=name)
    graph = planner.trace(spec)
    peaks = [row.peak_bytes for row in planner.solve(graph, budget=2**60).plan.baselines]
    found = []
    for share in SHARES:
        plan = planner.solve(graph, budget=min(peaks) + round(share * (max(peaks) - min(peaks)))).plan
        result = planner.verify(spec, plan, steps=1)
        found.append(
            {
                "model": name,
                "share": share,
                "budget_bytes": result.budget_bytes,
                "predicted_peak_bytes": result.predicted_peak_bytes,
                "measured_peak_bytes": result.measured_peak_bytes,
                "baseline_peak_bytes": result.baseline_peak_bytes,
                "gradients_equal": result.gradients_equal,
                "failures": list(result.failures),
            }
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", choices=[[], *MODELS], metavar="MODEL")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    found = []
    for name in arguments.models or MODELS:
        for row in rows(name):
            found.append(row)
            if not arguments.json:
                error = row["measured_peak_bytes"] - row["predicted_peak_bytes"]
                print(
                    f"{name:8} {row['share']:4.0%} budget {row['budget_bytes']:12,} measured "
                    f"{row['measured_peak_bytes']:12,} ({error:+,} B) unplanned {row['baseline_peak_bytes']:12,} "
                    f"{'bits equal' if row['gradients_equal'] else 'BITS DIFFER'} {row['failures'] or ''}",
                    flush=True,
                )
    if arguments.json:
        print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
