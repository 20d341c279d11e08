"""What the tracker sees of storages, against lives that can be worked out on paper."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from planner.graph import StorageKind
from planner.simulation.tracker import StorageTracker
from planner.tracing.accumulation import merge_accumulations

_KB = 1024


class Squaring(nn.Module):
    """x → w·x → its square, both of 1 KB; backward needs the product."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(256, device="meta"))

    def forward(self, x: Tensor) -> Tensor:
        return (self.weight * x).square()


def track(
    module: nn.Module, pack: Callable[[Tensor], Any], unpack: Callable[[Any], Tensor]
) -> tuple[StorageTracker, list[str]]:
    """One step under the hooks, and the names of its ops."""
    x = torch.empty(256, device="meta")
    tracker = StorageTracker(module, {"x": x})
    with tracker.watching():
        # As a plan registers its hooks, which happens while the tracker watches.
        with torch.autograd.graph.saved_tensors_hooks(pack, unpack):
            output = module(x)
        tracker.begin_backward()
        output.sum().backward()
        tracker.finish(module)
    merge_accumulations(tracker)
    return tracker, [op.name for op in tracker.ops]


def lives(tracker: StorageTracker) -> list[tuple[int, int]]:
    """First step and first step without it, of each activation of 1 KB."""
    return [
        (life.alloc_step, life.free_step)
        for life in tracker.storages
        if life.kind is StorageKind.ACTIVATION and life.size_bytes == _KB
    ]


def test_what_hooks_keep_lives_until_its_node_is_done() -> None:
    tracker, names = track(Squaring(), lambda tensor: tensor, lambda tensor: tensor)

    assert ["aten.mul.Tensor", "aten.pow.Tensor_Scalar"] == names[:2]
    product, _ = lives(tracker)[:2]
    assert 0 == product[0]
    assert len(names) - 3 <= product[1] < len(names)  # of backward's nodes, the second to last
    assert not tracker.replayed


def test_what_hooks_drop_dies_in_forward_and_comes_back_as_a_replay() -> None:
    module, x = Squaring(), torch.empty(256, device="meta")

    def pack(tensor: Tensor) -> Any:
        return None if tensor.grad_fn is not None else tensor

    def unpack(packed: Any) -> Tensor:
        with torch.no_grad():
            return module.weight * x if packed is None else packed

    tracker, names = track(module, pack, unpack)

    (replayed,) = tracker.replayed
    assert "aten.mul.Tensor" == names[replayed]
    first, _, *others = lives(tracker)
    assert (0, 2) == first
    assert replayed in [alloc for alloc, _ in others]


def test_a_storage_that_a_hook_makes_without_dispatch_is_none_of_the_models_constants() -> None:
    copies: list[torch.UntypedStorage] = []

    def unpack(packed: Tensor) -> Tensor:
        copies.append(packed.untyped_storage().clone())  # type: ignore[no-untyped-call]
        empty = torch.empty(0, device="meta")
        return empty.set_(copies.pop(), 0, packed.shape, packed.stride())

    tracker, names = track(Squaring(), lambda tensor: tensor, unpack)

    assert StorageKind.CONSTANT not in {life.kind for life in tracker.storages if life.size_bytes}
    assert not [name for name in names if name.startswith("aten.set_")]
    copied = names.index("aten.copy_.default")
    assert copied in [alloc for alloc, _ in lives(tracker)]


def test_gradients_of_one_tensor_are_added_in_place_under_hooks_too() -> None:
    class Twice(Squaring):
        def forward(self, x: Tensor) -> Tensor:
            product = self.weight * x
            return product.sin() + product.cos()

    _, names = track(Twice(), lambda tensor: tensor, lambda tensor: tensor)

    assert 1 == names.count("aten.add_.Tensor")


def test_a_sum_within_a_replay_is_no_accumulation() -> None:
    class Sum(Squaring):
        def forward(self, x: Tensor) -> Tensor:
            return (self.weight + x).square()

    module, x = Sum(), torch.empty(256, device="meta")

    def unpack(packed: Any) -> Tensor:
        with torch.no_grad():
            return module.weight + x

    _, names = track(module, lambda tensor: None, unpack)

    assert 2 == names.count("aten.add.Tensor")
    assert "aten.add_.Tensor" not in names


def test_the_hooks_of_pytorch_are_its_own_again_afterwards() -> None:
    before = torch.autograd.graph.saved_tensors_hooks

    track(Squaring(), lambda tensor: tensor, lambda tensor: tensor)

    assert before is torch.autograd.graph.saved_tensors_hooks
