#!/bin/bash
CUDA_DEVICE_MAX_CONNECTIONS=32 megatron sft \
    --model Qwen/Qwen3-8B \
    --dataset data.jsonl \
    --use_megatron_fsdp true
