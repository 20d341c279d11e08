#!/bin/bash
FORCE_TORCHRUN=1 llamafactory-cli train \
    --model_name_or_path meta-llama/Llama-3.1-8B \
    --stage sft --do_train --finetuning_type lora \
    --dataset alpaca_en_demo --template llama3 \
    --gradient_checkpointing false \
    --output_dir saves/lora
