#!/bin/bash
pretrain() {
    torchrun pretrain_gpt.py --num-layers 32 --hidden-size 4096 --num-attention-heads 32 --sequence-parallel "$@"
}

pretrain "$@"
