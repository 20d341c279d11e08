"""Plans which saved tensors of a PyTorch training step to save and which to recompute.

The public names are imported on first use, so that ``import planner`` stays cheap and needs no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from planner.spec import load as load

__version__ = "0.1.0"

# Public name -> the module that defines it.
_HOME_BY_NAME = {"load": "planner.spec"}

__all__ = ["__version__", "load"]


def __getattr__(name: str) -> object:
    if name not in _HOME_BY_NAME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOME_BY_NAME[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME_BY_NAME})
