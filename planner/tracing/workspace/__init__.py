"""Bytes that a kernel allocates for itself while it runs: its *workspace*.

Dispatch shows what an operator takes and returns. What its kernel allocates beside that, such as the unfolded
input of a convolution, lives only while it runs, in forward, in a replay or in backward. One rule per operator,
for the kernels that are traced, gives its size from the shapes and layouts of the call; an operator without a
rule has none.

Of a CPU these are the kernels of PyTorch with oneDNN off (`planner.tracing.workspace.cpu` and `.convolution`).
Of CUDA only attention is modelled (`planner.tracing.workspace.cuda`, which says what is left out). Temporaries
of a few bytes for scalars are counted nowhere.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch

from planner.tracing.attention import Kernels
from planner.tracing.workspace.call import Call, Rule
from planner.tracing.workspace.cpu import CPU_RULES, pointwise
from planner.tracing.workspace.cuda import CUDA_RULES

__all__ = ["workspace_bytes", "workspace_rule"]

_RULES: Mapping[Kernels, Mapping[str, Rule]] = {Kernels.CPU: CPU_RULES, Kernels.CUDA: CUDA_RULES}


def workspace_rule(func: Any, name: str, kernels: Kernels) -> Rule | None:
    """The rule for an `OpOverload`, or None if its kernel needs no workspace or none is known.

    Args:
        func: the overload.
        name: what it is called in a trace, such as "aten.mul.Tensor".
        kernels: whose kernels run.
    """
    rule = _RULES[kernels].get(name.rpartition(".")[0])
    if rule is None and kernels is Kernels.CPU and torch.Tag.pointwise in func.tags:
        return pointwise
    return rule


def workspace_bytes(
    rule: Callable[[Call], int],
    func: Any,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    outputs: Sequence[torch.Tensor],
) -> int:
    """The most that the kernel of this call holds at once beside its arguments and results, in bytes.

    On a CPU it depends on the number of threads, which is this process's.
    """
    names = [argument.name for argument in func._schema.arguments]
    defaults = {a.name: a.default_value for a in func._schema.arguments if a.has_default_value()}
    arguments = {**defaults, **dict(zip(names, args, strict=False)), **kwargs}
    return rule(Call(arguments=arguments, outputs=tuple(outputs), threads=torch.get_num_threads()))
