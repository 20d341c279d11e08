#!/bin/bash
python3 -m verl.trainer.main_ppo \
    data.max_prompt_length=2048 \
    data.max_response_length=32768 \
    actor_rollout_ref.actor.use_dynamic_bsz=True \
    actor_rollout_ref.actor.ppo_max_token_len_per_gpu=16384 \
    actor_rollout_ref.actor.ulysses_sequence_parallel_size=2
