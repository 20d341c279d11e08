#!/bin/bash
megatron sft \
    --model Qwen/Qwen3-8B \
    --dataset data.jsonl \
    --sequence_parallel true \
    --micro_batch_size 1
