"""A small U-Net written by hand: an encoder, a decoder, and skip connections between them."""

import torch
from torch import nn


def _convolutions(inputs: int, outputs: int) -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(inputs, outputs, 3, padding=1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
        nn.Conv2d(outputs, outputs, 3, padding=1, bias=False),
        nn.BatchNorm2d(outputs),
        nn.ReLU(inplace=True),
    )


class UNet(nn.Module):
    """Maps an image to one score per pixel and class.

    Source: Ronneberger, Fischer and Brox 2015, with padded convolutions and batch norm.
    """

    def __init__(self, *, width: int, depth: int, channels: int, classes: int) -> None:
        super().__init__()
        widths = [width * 2**level for level in range(depth)]
        self.down = nn.ModuleList(
            _convolutions(inputs, outputs) for inputs, outputs in zip([channels, *widths], widths, strict=False)
        )
        self.bottom = _convolutions(widths[-1], 2 * widths[-1])
        self.up = nn.ModuleList(nn.ConvTranspose2d(2 * outputs, outputs, 2, stride=2) for outputs in reversed(widths))
        self.merge = nn.ModuleList(_convolutions(2 * outputs, outputs) for outputs in reversed(widths))
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        skips = []
        for block in self.down:
            image = block(image)
            skips.append(image)
            image = nn.functional.max_pool2d(image, 2)
        image = self.bottom(image)
        for up, merge in zip(self.up, self.merge, strict=True):
            image = merge(torch.cat([skips.pop(), up(image)], dim=1))
        scores: torch.Tensor = self.head(image)
        return scores


def build(width: int = 64, depth: int = 4, channels: int = 3, classes: int = 2) -> UNet:
    """The model that `unet.yaml` plans."""
    return UNet(width=width, depth=depth, channels=channels, classes=classes)
