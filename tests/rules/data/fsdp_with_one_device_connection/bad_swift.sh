#!/bin/bash
megatron sft \
    --model Qwen/Qwen3-8B \
    --dataset data.jsonl \
    --use_megatron_fsdp true
