#!/bin/bash
megatron sft \
    --model Qwen/Qwen3-8B \
    --dataset data.jsonl \
    --recompute_granularity full
