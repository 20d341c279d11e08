"""Models that the tests' workers are allowed to build: small ones, and such as must be stopped."""

import time

import torch
from torch import nn


def tiny(width: int) -> nn.Module:
    return nn.Sequential(nn.Linear(16, width), nn.GELU(), nn.Linear(width, 16))


def greedy(gigabytes: int) -> nn.Module:
    """Asks for memory that it may not have."""
    hoard = torch.empty(gigabytes * 10**9, dtype=torch.uint8, device="cpu")
    hoard.fill_(1)
    return tiny(16)


def endless(is_busy: bool = False) -> nn.Module:
    while True:
        if not is_busy:
            time.sleep(0.1)
