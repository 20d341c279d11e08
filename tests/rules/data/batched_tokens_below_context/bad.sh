#!/bin/bash
vllm serve Qwen/Qwen3-8B \
    --max-model-len 32768 --max_num_batched_tokens 8192 \
    --no-enable-chunked-prefill
