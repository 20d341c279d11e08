#!/bin/bash
python3 -m verl.experimental.fully_async_policy.fully_async_main actor_rollout_ref.rollout.free_cache_engine=False
