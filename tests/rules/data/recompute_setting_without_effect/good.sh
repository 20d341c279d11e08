#!/bin/bash
export CUDA_DEVICE_MAX_CONNECTIONS=1

ARGS=(
    --num-layers 32
    --hidden-size 4096
    --num-attention-heads 32
    --seq-length 8192
    --max-position-embeddings 8192
    --micro-batch-size 1
    --global-batch-size 128
    --bf16
    --recompute-granularity selective
    --recompute-modules moe layernorm
)

torchrun --nproc_per_node 8 pretrain_gpt.py "${ARGS[@]}"
