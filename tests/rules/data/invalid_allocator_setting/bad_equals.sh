#!/bin/bash
PYTORCH_CUDA_ALLOC_CONF=expandable_segments=True \
megatron sft \
    --model Qwen/Qwen3-8B \
    --dataset data.jsonl \
    --micro_batch_size 1
