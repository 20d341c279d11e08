"""DenseNet-121 (Huang et al. 2017, arXiv:1608.06993, table 1): every layer reads all earlier ones of its block."""

import torch
from torch import nn

_GROWTH = 32
_BOTTLENECK = 4  # a layer's 1x1 convolution makes 4 x growth channels
_BLOCKS = (6, 12, 24, 16)
_STEM_CHANNELS = 64
_CLASSES = 1000


class Layer(nn.Module):
    """Adds `growth` channels to the list of feature maps."""

    def __init__(self, channels: int) -> None:
        super().__init__()
        inner = _BOTTLENECK * _GROWTH
        self.norm1 = nn.BatchNorm2d(channels)
        self.conv1 = nn.Conv2d(channels, inner, 1, bias=False)
        self.norm2 = nn.BatchNorm2d(inner)
        self.conv2 = nn.Conv2d(inner, _GROWTH, 3, padding=1, bias=False)

    def forward(self, features: list[torch.Tensor]) -> torch.Tensor:
        """New channels from all earlier ones."""
        hidden = self.conv1(torch.relu(self.norm1(torch.cat(features, 1))))
        return self.conv2(torch.relu(self.norm2(hidden)))


class Block(nn.Module):
    """Layers that each read every earlier output."""

    def __init__(self, channels: int, layers: int) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer(channels + place * _GROWTH) for place in range(layers))

    def forward(self, image: torch.Tensor) -> torch.Tensor:
        """All feature maps, concatenated."""
        features = [image]
        for layer in self.layers:
            features.append(layer(features))
        return torch.cat(features, 1)


def densenet_121() -> nn.Module:
    """The network for 224 x 224 images."""
    channels = _STEM_CHANNELS
    stages: list[nn.Module] = [
        nn.Conv2d(3, channels, 7, stride=2, padding=3, bias=False),
        nn.BatchNorm2d(channels),
        nn.ReLU(),
        nn.MaxPool2d(3, stride=2, padding=1),
    ]
    for place, layers in enumerate(_BLOCKS):
        stages.append(Block(channels, layers))
        channels += layers * _GROWTH
        if place < len(_BLOCKS) - 1:
            stages += [
                nn.BatchNorm2d(channels),
                nn.ReLU(),
                nn.Conv2d(channels, channels // 2, 1, bias=False),
                nn.AvgPool2d(2),
            ]
            channels //= 2
    stages += [
        nn.BatchNorm2d(channels),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(channels, _CLASSES),
    ]
    return nn.Sequential(*stages)
