#!/bin/bash
megatron sft \
    --model Qwen/Qwen3-8B \
    --dataset data.jsonl \
    --recompute_method uniform \
    --tensor_model_parallel_size 2
