#!/bin/bash
vllm serve Qwen/Qwen3-8B --gpu-memory-utilization 0.6 --kv-cache-memory-bytes 20000000000
