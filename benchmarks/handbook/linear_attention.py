"""Two layers of linear attention: keys and values of a sequence become one matrix per head.

Source: Katharopoulos et al., Transformers are RNNs (arXiv 2006.16236), equations 4 to 6, without a causal mask.
"""

from torch import Tensor, nn


class LinearAttention(nn.Module):
    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(hidden, 3 * hidden)
        self.out = nn.Linear(hidden, hidden)

    def forward(self, states: Tensor) -> Tensor:
        q, k, v = self.qkv(states).unflatten(-1, (3, self.heads, -1)).unbind(-3)
        q, k = nn.functional.elu(q) + 1, nn.functional.elu(k) + 1
        q, k, v = q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2)
        mixed = q @ (k.transpose(-1, -2) @ v)
        norm = q @ k.sum(dim=-2).unsqueeze(-1)
        return states + self.out((mixed / norm).transpose(1, 2).flatten(-2))


class Layers(nn.Module):
    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(LinearAttention(hidden, heads), LinearAttention(hidden, heads))

    def forward(self, states: Tensor) -> Tensor:
        return self.layers(states).square().mean()


def two_layers() -> nn.Module:
    return Layers(hidden=128, heads=2)
