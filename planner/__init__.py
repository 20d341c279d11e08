"""Plans which saved tensors of a PyTorch training step to save and which to recompute.

The public names are imported on first use, so that ``import planner`` stays cheap and needs no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from planner.linting.run import lint as lint
    from planner.plan import load_plan as load_plan
    from planner.planning import solve_graph as solve
    from planner.runtime.handle import apply as apply
    from planner.runtime.rehearsal import rehearse as rehearse
    from planner.spec import load as load
    from planner.throughput import best_throughput as best_throughput
    from planner.tracing import prepare as prepare
    from planner.tracing import trace as trace
    from planner.tradeoff import frontier as frontier
    from planner.verification import verify as verify

__version__ = "0.1.0"

# Public name -> where it is defined.
_HOME_BY_NAME = {
    "apply": "planner.runtime.handle:apply",
    "best_throughput": "planner.throughput:best_throughput",
    "frontier": "planner.tradeoff:frontier",
    "lint": "planner.linting.run:lint",
    "load": "planner.spec:load",
    "load_plan": "planner.plan:load_plan",
    "prepare": "planner.tracing:prepare",
    "rehearse": "planner.runtime.rehearsal:rehearse",
    "solve": "planner.planning:solve_graph",
    "trace": "planner.tracing:trace",
    "verify": "planner.verification:verify",
}

__all__ = [
    "__version__",
    "apply",
    "best_throughput",
    "frontier",
    "lint",
    "load",
    "load_plan",
    "prepare",
    "rehearse",
    "solve",
    "trace",
    "verify",
]


def __getattr__(name: str) -> object:
    if name not in _HOME_BY_NAME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from planner.extras import needs

    module, _, attribute = _HOME_BY_NAME[name].partition(":")
    with needs(f"planner.{name}"):
        return getattr(import_module(module), attribute)


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME_BY_NAME})
