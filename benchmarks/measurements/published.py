"""Rows of the general form: one published figure each, with the model's sizes and the settings in words.

A row names a source, and a source a stack; what the stack does is in `benchmarks.measurements.stacks`.
"""

import csv
import re
from collections import defaultdict
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

from benchmarks.measurements.cells import Cells, Refused, architecture_from
from benchmarks.measurements.row import Kind, Row
from benchmarks.measurements.stacks import fms, fsdp_qlora, litgpt, llm_foundry, torchtune
from planner.architecture import Architecture, parameter_count
from planner.costs.reserved import CUBLAS_THREADS, CUBLAS_WORKSPACE_BYTES, HOPPER_CUBLAS_WORKSPACE_BYTES
from planner.estimation.run import Run

_GIB = 2**30
COLUMNS = ("id", "source", "model", "micro_batch", "seq", "reported_mem_gib", "mem_kind")

_KINDS: tuple[tuple[str, Kind], ...] = (
    ("allocated", Kind.ALLOCATED),
    ("active peak", Kind.ALLOCATED),
    ("reserved", Kind.RESERVED),
    ("nvidia-smi", Kind.DEVICE),
    ("as printed", Kind.RESERVED),
    ("fits", Kind.FITS),
    ("OOM", Kind.OOM),
    ("SUSPECT", Kind.ALLOCATED),
)
_STACKS: tuple[tuple[str, Callable[[Cells, Architecture], Run]], ...] = (
    ("foundation-model-stack/fms-acceleration", fms.run_of),
    ("Lightning-AI/litgpt", litgpt.run_of),
    ("pytorch/torchtune", torchtune.run_of),
    ("AnswerDotAI/fsdp_qlora", fsdp_qlora.run_of),
    ("mosaicml/llm-foundry", llm_foundry.run_of),
)


def read(path: Path) -> list[Row]:
    """The rows of a file of this form."""
    with path.open(newline="", encoding="utf-8-sig") as file:
        return [_row(_filled(cells), place) for place, cells in enumerate(csv.DictReader(file), start=2)]


def _filled(cells: Mapping[str | None, str | list[str] | None]) -> Cells:
    """The cells of a line, trimmed; those that the file or the line lacks are empty."""
    known = {key: value.strip() for key, value in cells.items() if key is not None and isinstance(value, str)}
    return defaultdict(str, known)


def _row(c: Cells, line: int) -> Row:
    kind = next((kind for text, kind in _KINDS if c["mem_kind"].startswith(text)), None)
    architecture: Architecture | None = None
    run: Run | None = None
    refusal: str | None = None
    measured_bytes = 0
    try:
        if kind is None:
            raise Refused(f"mem_kind {c['mem_kind']!r} is not one that is known")
        measured_bytes = _figure(c)
        stack = _stack_of(c)
        architecture = architecture_from(c)
        run = replace(stack(c, architecture), workspace_bytes=_cublas_bytes(c["gpu"]), counts_blocks=True)
    except Refused as error:
        refusal = str(error)
    return Row(
        id=c["id"] or f"line {line}",
        source=_source(c["source"]),
        kind=kind or Kind.ALLOCATED,
        measured_bytes=measured_bytes,
        run=run,
        refusal=refusal,
        parameters=parameter_count(architecture) if architecture is not None else 0,
        is_dense=architecture is None or architecture.experts is None,
        label=f"{c['model']} {c['lora'] or 'full'} b{c['micro_batch']} s{c['seq']} x{c['dp_shard']}",
        suspect="SUSPECT" in c["mem_kind"],
        device_bytes=measured_bytes if kind in (Kind.FITS, Kind.OOM) else _device_bytes(c["gpu"]),
    )


def _source(text: str) -> str:
    """The source and its page, without the commit."""
    return text.split("@")[0].strip()


def _figure(c: Cells) -> int:
    """The bytes that the row reports."""
    text = c["reported_mem_gib"].lstrip("<>~ ")
    try:
        found = float(text)
    except ValueError:
        raise Refused(f"the figure is not a number ({c['reported_mem_gib']!r})") from None
    if not 0 < found < 10**6:
        raise Refused(f"the figure is not a size ({c['reported_mem_gib']!r} GiB)")
    return round(found * _GIB)


# Cards whose names do not say their memory, in GiB. Source: NVIDIA's data sheets.
_CARDS: Mapping[str, int] = {"RTX3090": 24, "RTX4090": 24, "A6000": 48}


def _device_bytes(gpu: str) -> int:
    """The device's memory, or 0 if the name does not say it."""
    said = re.search(r"(\d+)GB", gpu)
    gib = int(said[1]) if said is not None else next((size for name, size in _CARDS.items() if name in gpu), 0)
    return gib * _GIB


_HOPPER_OR_LATER = ("H100", "H200", "H800", "GB200", "B200")


def _cublas_bytes(gpu: str) -> int:
    """cuBLAS's workspaces, which count as allocated."""
    is_hopper = any(name in gpu for name in _HOPPER_OR_LATER)
    return CUBLAS_THREADS * (HOPPER_CUBLAS_WORKSPACE_BYTES if is_hopper else CUBLAS_WORKSPACE_BYTES)


def _stack_of(c: Cells) -> Callable[[Cells, Architecture], Run]:
    for source, stack in _STACKS:
        if c["source"].startswith(source):
            return stack
    raise Refused(f"the stack of {_source(c['source']).split(':')[0] or 'no source'} is not described")
