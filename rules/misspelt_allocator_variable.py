"""An environment variable that was meant for PyTorch's allocator, and that nothing reads."""

from collections.abc import Iterator

from planner.configs.allocator import VARIABLES
from planner.configs.config import Config, report
from planner.configs.edits import rename_key
from planner.configs.keys import is_typo
from planner.diagnostics import Fix, FixSafety, Report, Rule, Severity, Source

# Seen in public scripts, and too far from the right name to be one slip.
_MISTAKEN = frozenset(
    (
        "PYTORCH_CUDA_ALLOC_CONFIG",
        "PYTORCH_CUDA_ALLOCATOR_CONF",
        "PYTORCH_CUDA_ALLOCATOR_CONFIG",
        "TORCH_CUDA_ALLOC_CONF",
        "PYTORCH_CUDA_CONF",
        "CUDA_ALLOC_CONF",
    )
)


def find(config: Config) -> Iterator[Report]:
    """A report for each variable that is nearly the allocator's."""
    for name, setting in config.environment.items():
        if name in VARIABLES or not (name in _MISTAKEN or any(is_typo(name, known) for known in VARIABLES)):
            continue
        yield report(
            setting.at_key,
            "nothing reads this variable, and PyTorch's allocator keeps its defaults",
            help=f"did you mean {VARIABLES[0]}?",
            fix=Fix(
                title=f"Rename to {VARIABLES[0]}",
                safety=FixSafety.UNSAFE,
                edits=rename_key(setting, VARIABLES[0]),
            ),
        )


RULE = Rule(
    code="AL402",
    name="misspelt-allocator-variable",
    severity=Severity.NO_OP,
    summary="An environment variable whose name is nearly PYTORCH_CUDA_ALLOC_CONF.",
    why="PyTorch reads the variable by its exact name. With another name nothing happens, and nothing says so: the run "
    "fragments as before.",
    instead="`PYTORCH_CUDA_ALLOC_CONF`; `PYTORCH_ALLOC_CONF` from PyTorch 2.9 on.",
    sources=(Source(title="PyTorch 2.13", where="c10/cuda/CUDAAllocatorConfig.h: CUDAAllocatorConfig::instance"),),
    find=find,
    fix=FixSafety.UNSAFE,
)
