"""A small U-Net of one's own, for own-model.yaml: nothing in it knows the planner."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn


class Block(nn.Module):
    """Two convolutions around a group norm, told the diffusion step."""

    def __init__(self, entering: int, leaving: int) -> None:
        super().__init__()
        self.first = nn.Conv2d(entering, leaving, 3, padding=1)
        self.norm = nn.GroupNorm(8, leaving)
        self.time = nn.Linear(leaving, leaving)
        self.second = nn.Conv2d(leaving, leaving, 3, padding=1)

    def forward(self, features: Tensor, time: Tensor) -> Tensor:
        hidden = nn.functional.silu(self.norm(self.first(features)))
        hidden = hidden + self.time(time[:, : hidden.shape[1]])[:, :, None, None]
        return nn.functional.silu(self.second(hidden))


class Denoiser(nn.Module):
    """Stages down and up again, with a skip connection at each size."""

    def __init__(self, width: int, stages: int) -> None:
        super().__init__()
        self.steps = nn.Embedding(1000, width)
        self.enter = nn.Conv2d(3, width, 3, padding=1)
        self.down = nn.ModuleList(Block(width, width) for _ in range(stages))
        self.up = nn.ModuleList(Block(2 * width, width) for _ in range(stages))
        self.leave = nn.Conv2d(width, 3, 1)

    def forward(self, image: Tensor, step: Tensor) -> Tensor:
        time, features, skipped = self.steps(step), self.enter(image), []
        for block in self.down:
            features = block(features, time)
            skipped.append(features)
            features = nn.functional.avg_pool2d(features, 2)
        for block in self.up:
            features = nn.functional.interpolate(features, scale_factor=2.0)
            features = block(torch.cat([features, skipped.pop()], dim=1), time)
        noise: Tensor = self.leave(features)
        return noise


def denoiser(width: int, stages: int) -> nn.Module:
    """The model that the spec names."""
    return Denoiser(width, stages)


def noise_error(output: Tensor, inputs: Mapping[str, Tensor]) -> Tensor:
    """The loss that the spec names: forward's output and its inputs give a scalar."""
    return nn.functional.mse_loss(output, inputs["image"])
