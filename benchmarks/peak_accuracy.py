"""Predicted against allocated peak, and bits, for eleven small models at four budgets each, on this machine's CPU.

    python benchmarks/peak_accuracy.py [MODEL ...] [--time-limit SECONDS] [--json]

Each row verifies a plan solved, for the kernels of a CPU, at a share of the way from the lowest baseline's peak to
no checkpointing. Weights are random; nothing is downloaded.
"""

import argparse
import json
import os
from pathlib import Path
from typing import Any

os.environ.setdefault("KINETO_LOG_LEVEL", "99")  # before torch: its profiler prints at each start and stop

import torch

import planner
from planner.runtime.live import make_live
from planner.solving.search import Limits
from planner.spec import from_mapping
from planner.tracing import Kernels
from planner.verification import compare

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
    "unet": {
        "model": {"factory": "unet:build", "arguments": {"width": 16, "depth": 3}},
        "inputs": {"image": {"shape": [4, 3, 96, 96], "dtype": "float32"}},
    },
    "t5": {
        "model": {
            "transformers": "T5ForConditionalGeneration",
            "config": {
                "vocab_size": 1000,
                "d_model": 256,
                "d_kv": 64,
                "d_ff": 512,
                "num_layers": 3,
                "num_heads": 4,
                "decoder_start_token_id": 0,
            },
        },
        "batch": {"micro_batch": 4, "sequence_length": 128},
    },
    "whisper": {
        "model": {
            "transformers": "WhisperForConditionalGeneration",
            "config": {
                "vocab_size": 1000,
                "d_model": 192,
                "encoder_layers": 3,
                "decoder_layers": 3,
                "encoder_attention_heads": 3,
                "decoder_attention_heads": 3,
                "encoder_ffn_dim": 384,
                "decoder_ffn_dim": 384,
                "num_mel_bins": 40,
                "max_source_positions": 200,
                "max_target_positions": 64,
                "pad_token_id": 0,
                "bos_token_id": 0,
                "eos_token_id": 0,
                "decoder_start_token_id": 0,
                "suppress_tokens": None,
                "begin_suppress_tokens": None,
                "dropout": 0.1,
            },
        },
        "batch": {"micro_batch": 4},
    },
    "mixtral": {
        "model": {
            "transformers": "MixtralForCausalLM",
            "config": {
                "vocab_size": 1000,
                "hidden_size": 256,
                "intermediate_size": 256,
                "num_hidden_layers": 3,
                "num_attention_heads": 4,
                "num_key_value_heads": 2,
                "num_local_experts": 4,
            },
        },
        "batch": {"micro_batch": 4, "sequence_length": 128},
        "precision": {"parameters": "bfloat16"},
    },
    "mamba": {
        "model": {
            "transformers": "MambaForCausalLM",
            "config": {"vocab_size": 1000, "hidden_size": 128, "state_size": 8, "num_hidden_layers": 2},
        },
        "batch": {"micro_batch": 4, "sequence_length": 24},
    },
    "lora": {
        "model": {"factory": "lora:build"},
        "inputs": {
            "input_ids": {"shape": [8, 256], "dtype": "int64", "max": 1000},
            "labels": {"shape": [8, 256], "dtype": "int64", "max": 1000},
        },
    },
}
_ROOT = Path(__file__).parents[1]
# The folder beside which the modules of a factory lie.
_PLACES = {"unet": _ROOT / "examples", "lora": _ROOT / "benchmarks"}
SHARES = (0.75, 0.5, 0.25, 0.0)
_EVERYTHING_BYTES = 2**60


def rows(name: str, time_s: float) -> list[dict[str, Any]]:
    spec = from_mapping(MODELS[name], path=str(_PLACES.get(name, Path()) / name))
    limits = Limits(time_s=time_s)
    graph = planner.trace(spec, kernels=Kernels.CPU)
    peaks = [row.peak_bytes for row in planner.solve(graph, budget=_EVERYTHING_BYTES, limits=limits).plan.baselines]
    live = make_live(spec, torch.device("cpu"))
    found = []
    for share in SHARES:
        budget_bytes = min(peaks) + round(share * (max(peaks) - min(peaks)))
        plan = planner.solve(graph, budget=budget_bytes, limits=limits).plan
        result = compare(live, plan, torch.device("cpu"), steps=1)
        found.append(
            {
                "model": name,
                "share": share,
                "budget_bytes": result.budget_bytes,
                "predicted_peak_bytes": result.predicted_peak_bytes,
                "measured_peak_bytes": result.measured_peak_bytes,
                "error": result.prediction_error,
                "baseline_peak_bytes": result.baseline_peak_bytes,
                "gradients_equal": result.gradients_equal,
                "failures": list(result.failures),
            }
        )
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*", choices=[[], *MODELS], metavar="MODEL")
    parser.add_argument("--time-limit", type=float, default=10.0, metavar="SECONDS", help="of each solve")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    found = []
    for name in arguments.models or MODELS:
        for row in rows(name, arguments.time_limit):
            found.append(row)
            if not arguments.json:
                error = row["measured_peak_bytes"] - row["predicted_peak_bytes"]
                print(
                    f"{name:8} {row['share']:4.0%} budget {row['budget_bytes']:12,} measured "
                    f"{row['measured_peak_bytes']:12,} ({error:+,} B, {row['error']:+.3%}) "
                    f"unplanned {row['baseline_peak_bytes']:12,} "
                    f"{'bits equal' if row['gradients_equal'] else 'BITS DIFFER'} {row['failures'] or ''}",
                    flush=True,
                )
    if arguments.json:
        print(json.dumps(found, indent=2))


if __name__ == "__main__":
    main()
