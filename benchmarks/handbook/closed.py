"""The figures of the handbook's page that need neither a trace nor a search: the closed form's, made anew each time."""

from collections.abc import Sequence
from dataclasses import replace
from math import isqrt
from pathlib import Path

from planner.estimation.blocks import AttentionKind, Implementation, block
from planner.estimation.estimate import computation_of, sections_of
from planner.estimation.from_spec import run_of
from planner.estimation.growth import BlockGrowth, growth
from planner.estimation.phases import Phase, PhasePeak, phases_of
from planner.estimation.run import Degrees, Run
from planner.estimation.step import Checkpointing, StepParts, moments
from planner.families import architecture_of
from planner.spec import load

HERE = Path(__file__).parent


def run_from(name: str) -> Run:
    """The run of a spec beside this file."""
    return run_of(load(HERE / f"{name}.yaml"))


def kept(name: str, lengths: Sequence[int]) -> tuple[BlockGrowth, BlockGrowth]:
    """What a block keeps with eager attention and with a fused kernel."""
    eager, fused = growth(run_from(name), lengths)
    return eager, fused


def phases(name: str) -> dict[Phase, PhasePeak]:
    """The fullest moment of each phase."""
    return {one.phase: one for one in phases_of(run_from(name))}


def activation_peak(run: Run) -> int:
    """The most that activations, logits and temporaries take in a step, without parameters and their gradients."""
    embedding, blocks, head = sections_of(run)
    parts = StepParts(
        embedding=embedding,
        blocks=blocks,
        head=head,
        checkpointing=run.checkpointing,
        group=run.group,
        gradients_present=True,  # and of no bytes, so that none are counted
    )
    return max(moment.size_bytes for moment in moments(parts))


def groups(layers: int) -> dict[int, int]:
    """By blocks in a checkpoint, the activation peak of that many layers of deep.yaml."""
    run = run_from("deep")
    run = replace(run, architecture=replace(run.architecture, layers=layers), checkpointing=Checkpointing.BLOCK)
    return {size: activation_peak(replace(run, group=size)) for size in range(1, layers + 1) if layers % size == 0}


def root(layers: int) -> int:
    return isqrt(layers)


def block_input_share() -> float:
    """A block's input as a share of what the block keeps, for Llama 3 8B."""
    _, fused = kept("llama-3-8b-every-block", [8192])
    return fused.input_bytes[0] / fused.kept_bytes[0]


def attention_workspace(length: int) -> int:
    """What the backward of flash attention takes while it runs, with 32 heads of 128."""
    run = replace(run_from("heads-32"), attention=AttentionKind.FUSED, length=length)
    ops = block(run.architecture, computation_of(run)).tape.ops
    (found,) = [op.backward_bytes for op in ops if op.name == "attention"]
    return found


# LLaMA 65B. Source: Touvron et al. (arXiv 2302.13971), table 2, and the released configuration for the width of the
# feed-forward layer.
_65B = {
    "hidden_size": 8192,
    "intermediate_size": 22016,
    "num_hidden_layers": 80,
    "num_attention_heads": 64,
    "vocab_size": 32000,
}


def shared(tensor: int, *, sequence: bool, checkpointing: Checkpointing, implementation: Implementation) -> Run:
    """LLaMA 65B on one sequence of 4,096 tokens, in bfloat16, over so many tensor-parallel ranks."""
    return Run(
        architecture=architecture_of("llama", _65B),
        micro_batch=1,
        length=4096,
        parameter_dtype="bfloat16",
        compute_dtype="bfloat16",
        degrees=Degrees(tensor=tensor, sequence=sequence),
        checkpointing=checkpointing,
        implementation=implementation,
    )


def kept_by_blocks(run: Run) -> int:
    """What all blocks together leave for backward."""
    (found,) = [one for one in growth(run, [run.length]) if one.attention is AttentionKind.FUSED]
    one = found.input_bytes if run.checkpointing is Checkpointing.BLOCK else found.kept_bytes
    return run.architecture.layers * one[0]
