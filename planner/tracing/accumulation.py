"""Makes gradient accumulation in a trace what it is without a dispatch mode: in place.

Autograd adds two gradients of one tensor into the first when it holds the last reference to it. Under any
dispatch mode it makes a third tensor instead, so a trace would show one gradient too many alive at each
residual connection.
"""

from dataclasses import replace

from planner.graph import StorageKind
from planner.tracing.recorder import Recorder, StorageLife

_IN_PLACE_ADD = "aten.add_.Tensor"


def merge_accumulations(recorder: Recorder) -> None:
    """Give each sum the storage of its first summand, where that died with the addition, in a finished
    recording.
    """
    into: dict[int, StorageLife] = {}  # index of a merged storage -> the one that took it in, perhaps merged itself

    def current(value: int) -> StorageLife:
        life = recorder.storages[recorder.values[value].storage]
        while life.index in into:
            life = into[life.index]
        return life

    for position in recorder.accumulations:
        op = recorder.ops[position]
        if len(op.reads) != 2 or len(op.writes) != 1:
            continue
        first, second, total = current(op.reads[0]), current(op.reads[1]), current(op.writes[0])
        if first is second or first.kind is not StorageKind.ACTIVATION or first.free_step != op.step + 1:
            continue
        into[total.index] = first
        first.free_step, first.kind, first.name = total.free_step, total.kind, total.name
        first.versions += total.versions
        recorder.ops[position] = replace(op, name=_IN_PLACE_ADD)
    _drop_merged(recorder, into)


def _drop_merged(recorder: Recorder, into: dict[int, StorageLife]) -> None:
    """Number the remaining storages, and the versions of each, afresh."""
    recorder.storages = [life for life in recorder.storages if life.index not in into]
    for index, life in enumerate(recorder.storages):
        life.index = index
        for version, value in enumerate(life.versions):
            recorder.values[value].storage = index
            recorder.values[value].version = version
