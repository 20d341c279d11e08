#!/bin/bash
megatron sft \
    --model Qwen/Qwen3-8B \
    --dataset data.jsonl \
    --attention_backend flash \
    --micro_batch_size 1
