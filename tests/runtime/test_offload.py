"""Offloaded tensors leave the device, come back bit by bit, and leave nothing on the host."""

import contextlib
import copy
import gc
import warnings
import weakref
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from planner.errors import HostMemoryError
from planner.link import LEAD, STAGED_BACK, STAGED_OUT, Staging
from planner.plan import Plan, Retention
from planner.runtime.handle import AppliedPlan, apply
from planner.runtime.host import Block, HostArena
from planner.runtime.measure import measure_peak, storage_bytes
from planner.runtime.offload import HostCopies, Streams
from planner.runtime.state import ForwardState, Turn, kept, unpack
from tests.runtime.models import Case, build, difference, loss_of, run_step
from tests.runtime.plans import mixed, offload_all, recorded, study

_FORWARDS = 5
_CPU = torch.device("cpu")
_GENEROUS_BYTES = 10**9


class Net(nn.Module):
    """Layers whose saved tensors are all of one size."""

    def __init__(self, layers: int = 6, width: int = 64) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.sin(layer(x))
        return x.square().mean()


_ROWS, _WIDTH, _LAYERS = 256, 64, 6
_VALUE_BYTES = 4 * _ROWS * _WIDTH
# Of each layer: the argument and the result of the sine.
_NET_BYTES = 2 * _LAYERS * _VALUE_BYTES


def batch(seed: int = 0, rows: int = _ROWS) -> Tensor:
    return torch.randn(rows, _WIDTH, generator=torch.Generator().manual_seed(seed))


def net() -> nn.Module:
    torch.manual_seed(0)
    return Net().train()


def step(model: nn.Module, x: Tensor) -> list[Tensor]:
    model.zero_grad(set_to_none=True)
    loss = model(x)
    loss.backward()
    return [loss.detach(), *gradients(model)]


def gradients(model: nn.Module) -> list[Tensor]:
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


def equal(expected: list[Tensor], found: list[Tensor]) -> bool:
    return len(expected) == len(found) and all(map(torch.equal, expected, found))


def planned(model: nn.Module, forwards: int = 3, **options: Any) -> AppliedPlan:
    """The model with everything offloaded, past its recordings."""
    handle = apply(model, offload_all(study(model, {}, (batch(),))), **options)
    for seed in range(forwards):
        step(model, batch(seed))
    return handle


# -- exactness ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["llama", "gpt2", "resnet"])
def test_offloading_is_exact_alone_and_mixed_with_saving_and_recomputing(name: str) -> None:
    case = build(name)
    before = copy.deepcopy(case.model.state_dict())
    expected = [run_step(case, seed) for seed in range(_FORWARDS)]
    case.model.load_state_dict(before)
    subject = study(case.model, case.batch())
    plans = [offload_all(subject), *(mixed(subject, seed) for seed in range(4))]
    assert 0 == plans[0].count(Retention.RECOMPUTE)
    assert all(plan.count(retention) for plan in plans[1:] for retention in Retention)

    for place, plan in enumerate(plans):
        case.model.load_state_dict(before)
        handle = apply(case.model, plan)
        for seed in range(_FORWARDS):
            assert not difference(expected[seed], run_step(case, seed)), f"plan {place}, forward {seed}"
            assert 0 == handle.host.held_bytes
        assert handle.host.peak_bytes > 0
        assert 0 == handle.fallbacks
        assert handle.recordings < handle.forwards
        handle.remove()
        assert 0 == handle.host.capacity_bytes


def test_replays_start_from_what_is_on_the_host() -> None:
    model, twin = net(), net()
    plan = offload_all(study(model, {}, (batch(),)))
    decisions = [
        replace(decision, retention=Retention.RECOMPUTE) if decision.op == "aten.sin.default" else decision
        for decision in plan.decisions
    ]
    handle = apply(model, replace(plan, decisions=tuple(decisions)))
    for seed in range(4):
        assert equal(step(twin, batch(seed)), step(model, batch(seed)))
    assert _LAYERS - 1 <= handle.host.peak_bytes // _VALUE_BYTES <= _LAYERS + 1
    (known,) = handle._known.values()
    assert known.program is not None
    assert known.program.sources & known.program.offloaded


class Views(nn.Module):
    """Saves several windows onto one storage."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(_WIDTH, 3 * _WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        first, second, third = self.inner(x).chunk(3, dim=-1)
        return (first * second + third.t().t().square() * first.expand(2, -1, -1)).mean()


def test_windows_onto_one_storage_are_copied_once() -> None:
    torch.manual_seed(0)
    model = Views().train()
    expected = [step(model, batch(seed)) for seed in range(4)]
    handle = apply(model, offload_all(study(model, {}, (batch(),))))
    for seed in range(4):
        assert equal(expected[seed], step(model, batch(seed)))
    loss = model(batch(4))

    # The linear layer's output, the factor of the second product, and the first one's sum does not count twice.
    linear_bytes = 3 * _VALUE_BYTES
    assert linear_bytes <= handle.host.held_bytes <= linear_bytes + _VALUE_BYTES
    del loss
    assert 0 == handle.host.held_bytes


def test_a_second_backward_over_a_retained_graph_is_exact() -> None:
    model, twin = net(), net()
    handle = planned(model)
    for part in (model, twin):
        part.zero_grad(set_to_none=True)
        loss = part(batch())
        loss.backward(retain_graph=True)
        loss.backward()
        del loss
    assert equal(gradients(twin), gradients(model))
    assert 0 == handle.host.held_bytes


def test_forwards_in_flight_have_their_own_places() -> None:
    model, twin = net(), net()
    handle = planned(model)
    for part in (model, twin):
        part.zero_grad(set_to_none=True)
        losses = [part(batch(seed)) for seed in range(3)]
        if part is model:
            assert 3 * _NET_BYTES == handle.host.held_bytes
        for place in (1, 0, 2):
            losses[place].backward()
    assert equal(gradients(twin), gradients(model))
    assert 0 == handle.host.held_bytes


# -- memory -------------------------------------------------------------------------------------------------------


def peak(model: nn.Module) -> int:
    x = batch()
    model.zero_grad(set_to_none=True)
    resident = [*model.parameters(), x]
    run = measure_peak(lambda: model(x).backward(), resident=resident, device=_CPU)
    return run.peak_bytes - storage_bytes(resident)


def test_the_device_gets_the_offloaded_bytes_back() -> None:
    model = net()
    kept = peak(model)
    handle = planned(model, staging=both_ways(2 * _VALUE_BYTES))
    # Of the values that forward saves, one is needed at the peak and two are back early.
    assert _NET_BYTES - 3 * _VALUE_BYTES == kept - peak(model)
    assert _NET_BYTES == handle.host.peak_bytes


_STAGED = (0, 1, 2, 3, 4, 7, 12, 100)


def both_ways(size_bytes: int) -> Staging:
    """As much out as back, in forwards too short for the lead to matter."""
    return Staging(out_bytes=size_bytes, back_bytes=size_bytes, lead=LEAD)


@pytest.fixture(params=["without streams", "with streams"])
def either_way(request: pytest.FixtureRequest) -> None:
    """On a CPU, and with the CPU in the part of a GPU."""
    if request.param == "with streams":
        request.getfixturevalue("late_streams")


@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize("staged", _STAGED)
def test_the_peak_of_forward_is_what_staging_says(staged: int) -> None:
    model = net()
    planned(model, staging=both_ways(staged * _VALUE_BYTES))
    x = batch()
    resident = [*model.parameters(), x]
    run = measure_peak(lambda: model(x), resident=resident, device=_CPU)

    # At a sine: its argument, which leaves, its result, and what the layer read. At the mean of the squares: those,
    # what they were made from, which leaves last, what else leaves, and 16 bytes of the mean's own.
    sine_bytes = 3 * _VALUE_BYTES
    mean_bytes = (1 + max(1, min(staged, 2 * _LAYERS))) * _VALUE_BYTES + 16
    assert max(sine_bytes, mean_bytes) == run.peak_bytes - storage_bytes(resident)


def step_bytes(staged: int) -> int:
    """The peak of a step with everything offloaded, above what there was before, worked out by hand."""
    # The last values that forward packs come back first; before each, so many others have to come after it.
    before = [2 * layer for layer in range(_LAYERS)]
    weight_bytes = 4 * _WIDTH * _WIDTH
    # The derivative of a sine: the argument, its cosine, the gradient and the product, and the gradients of the layers
    # above.
    sines = [
        (4 + min(staged, before[layer])) * _VALUE_BYTES + (_LAYERS - 1 - layer) * weight_bytes
        for layer in range(_LAYERS)
    ]
    # That of the square: its argument, a power of it, twice the power, the gradient and the product.
    square_bytes = (5 + min(staged, 2 * _LAYERS - 1)) * _VALUE_BYTES
    # Beside them the loss and its gradient.
    return max(*sines, square_bytes) + 8


@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize("staged", _STAGED)
def test_the_peak_of_a_step_is_what_staging_says(staged: int) -> None:
    model = net()
    planned(model, staging=both_ways(staged * _VALUE_BYTES))

    assert step_bytes(staged) == peak(model)


def test_staging_is_what_the_caller_says_or_else_the_plan_or_else_goes_by_the_largest_value() -> None:
    model = net()
    plan = offload_all(study(model, {}, (batch(),)))
    own, other = both_ways(3 * _VALUE_BYTES), both_ways(5 * _VALUE_BYTES)
    usual = Staging(out_bytes=STAGED_OUT * _VALUE_BYTES, back_bytes=STAGED_BACK * _VALUE_BYTES, lead=LEAD)
    for planned_staging, given, expected in ((None, None, usual), (own, None, own), (own, other, other)):
        handle = apply(model, replace(plan, staging=planned_staging), staging=given)
        used = []
        for seed in range(3):
            loss = model(batch(seed))
            used.append(handle._subject.new_copies(*handle._known.values())._staging)
            loss.backward()
        assert expected == used[-1]
        handle.remove()


# Where the first values begin to come back. The last one to leave belongs to the third of six layers. After it, the
# weight and the sine that the next product reads are packed, and then what the next sine reads.
_OUTPUT, _INPUT = "output", "input"
_TURNS = {0: (2, _OUTPUT), 1: (3, _INPUT), 2: (3, _INPUT), 3: (3, _OUTPUT), 6: (4, _OUTPUT), 1000: (5, _OUTPUT)}


def coming(lead: int, back: int) -> list[tuple[int, str, int]]:
    """How many values are on their way back when backward passes each layer's output and input."""
    passed = [(layer, side) for layer in reversed(range(_LAYERS)) for side in (_OUTPUT, _INPUT)][:-1]
    turn = passed.index(_TURNS[lead])
    # What belongs to a layer is there when its output is passed.
    return [(layer, side, min(back, layer, 3) if place >= turn else 0) for place, (layer, side) in enumerate(passed)]


@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize("lead", _TURNS)
@pytest.mark.parametrize("back", [0, 1, 3])
def test_the_first_values_come_back_a_lead_before_they_are_asked_for(lead: int, back: int) -> None:
    model = net()
    plan = offload_all(study(model, {}, (batch(),)))
    decisions = [
        decision
        if decision.op == "aten.mm.default" and decision.ordinal < 3
        else replace(decision, retention=Retention.SAVE)
        for decision in plan.decisions
    ]
    staging = Staging(out_bytes=0, back_bytes=back * _VALUE_BYTES, lead=lead)
    handle = apply(model, replace(plan, decisions=tuple(decisions), staging=staging))
    found: list[tuple[int, str, int]] = []

    def watch(layer: int, side: str, tensor: Tensor) -> None:
        copies = handle._running[-1]._copies  # type: ignore[attr-defined]
        if tensor.requires_grad:
            tensor.register_hook(lambda _: found.append((layer, side, len(copies._arriving))))

    for layer, module in enumerate(model.layers):  # type: ignore[arg-type]
        module.register_forward_pre_hook(lambda _, args, layer=layer: watch(layer, _INPUT, args[0]))
        module.register_forward_hook(lambda _, __, output, layer=layer: watch(layer, _OUTPUT, output))
    twin = net()
    for seed in range(4):
        found.clear()
        assert equal(step(twin, batch(seed)), step(model, batch(seed)))
        assert coming(lead, back) == found, f"forward {seed}"
    assert (4, 2) == (handle.forwards, handle.recordings)


def test_a_tensor_outlives_the_forward_whose_turn_it_was() -> None:
    copies = HostCopies(HostArena(_GENEROUS_BYTES, is_pinned=False), Streams(), staging=None, host_bytes=None)
    tensor = torch.ones(8)
    turn = Turn(ForwardState(lambda _: tensor, _CPU, lambda _: None, copies), 0, kept(tensor))
    assert turn.state() is None
    assert unpack(turn) is tensor


def leaving(copies: HostCopies) -> list[int]:
    return [item.value for item in copies._leaving]


def leaving_bytes(handle: AppliedPlan) -> int:
    copies = handle._running[-1]._copies  # type: ignore[attr-defined]
    found = sum(item.size_bytes for item in copies._leaving)
    assert copies._leaving_bytes == found
    return found


_NARROW = 12


class Widening(nn.Module):
    """Layers whose last one is four times as wide as the others."""

    def __init__(self) -> None:
        super().__init__()
        widths = [_WIDTH] * _NARROW + [4 * _WIDTH]
        self.layers = nn.ModuleList(nn.Linear(_WIDTH, width, bias=False) for width in widths)

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.sin(layer(x))
        return x.square().mean()


def test_the_largest_value_is_that_of_the_whole_forward_once_it_is_known() -> None:
    torch.manual_seed(0)
    model = Widening().train()
    handle = apply(model, offload_all(study(model, {}, (batch(),))))
    found: list[int] = []
    model.layers[_NARROW].register_forward_hook(lambda *_: found.append(leaving_bytes(handle)))
    for seed in range(4):
        step(model, batch(seed))
    assert 2 == handle.recordings
    # Two values of each layer; those that follow are of four times their size.
    assert [STAGED_OUT * _VALUE_BYTES] * 2 + [2 * _NARROW * _VALUE_BYTES] * 2 == found


@pytest.mark.usefixtures("either_way")
def test_what_is_to_leave_is_let_go_in_order_and_no_earlier() -> None:
    copies = HostCopies(HostArena(_GENEROUS_BYTES, is_pinned=False), Streams(), staging=both_ways(64), host_bytes=None)
    references = []

    def put(value: int, size_bytes: int) -> list[int]:
        tensor = torch.full((size_bytes,), value, dtype=torch.uint8)
        references.append(weakref.ref(tensor.untyped_storage()))
        assert copies.store(value, tensor)
        return leaving(copies)

    assert [0] == put(0, 32)
    assert [0, 1] == put(1, 32)
    assert [1, 2] == put(2, 32)
    assert [1, 2, 3] == put(3, 0)
    assert [2, 3, 4] == put(4, 16)
    assert [] == put(5, 65)  # larger than the limit
    assert [6] == put(6, 64)
    assert [False] * 6 + [True] == [reference() is not None for reference in references]
    copies.settle()
    assert [] == leaving(copies)
    assert references[-1]() is None
    for value, size_bytes in enumerate((32, 32, 32, 0, 16, 65, 64)):
        back = torch.empty(0, dtype=torch.uint8).set_(copies.fetch(value))
        assert [value] * size_bytes == back.tolist()


@pytest.mark.usefixtures("either_way")
def test_what_left_long_before_is_let_go_whatever_there_is_room_for() -> None:
    staging = Staging(out_bytes=10**6, back_bytes=0, lead=3)
    copies = HostCopies(HostArena(_GENEROUS_BYTES, is_pinned=False), Streams(), staging=staging, host_bytes=None)
    found = []
    for rank in range(9):
        copies.come_to(rank)
        if rank in (0, 1, 4):
            assert copies.store(rank, torch.full((8,), float(rank)))
        found.append(leaving(copies))

    # More than three packings after its own, each goes.
    assert [[0], [0, 1], [0, 1], [0, 1], [1, 4], [4], [4], [4], []] == found
    copies.settle()


def test_what_was_packed_last_comes_back_first() -> None:
    arena = HostArena(_GENEROUS_BYTES, is_pinned=False)
    copies = HostCopies(arena, Streams(), staging=both_ways(64), host_bytes=None)
    tensors = [torch.full((8,), float(value)) for value in range(6)]
    for value, tensor in enumerate(tensors):
        assert copies.store(value, tensor)
    assert copies.store(0, tensors[0][2:])  # packed again
    assert not copies.store(1, torch.ones(8))  # another tensor in its place
    tensors[2].add_(1)
    assert not copies.store(2, tensors[2])
    assert copies.store(0, tensors[0])
    copies.settle()
    assert [3, 4, 5, 1, 2, 0] == list(copies)

    assert [0.0] * 8 == torch.empty(0).set_(copies.fetch(0)).tolist()
    assert {1, 2} == set(copies._arriving)
    copies.fetch(2)
    assert {1, 5} == set(copies._arriving)
    copies.drop(1)
    copies.fetch(3)
    assert {4, 5} == set(copies._arriving)
    del copies
    assert 0 == arena.held_bytes


def test_the_block_is_exactly_as_large_as_a_forward_needs_and_is_used_again() -> None:
    model = net()
    handle = planned(model, forwards=5)
    assert _NET_BYTES == handle.host.capacity_bytes
    assert _NET_BYTES == handle.host.peak_bytes


def copies_alive() -> int:
    gc.collect()
    return sum(type(item) is HostCopies for item in gc.get_objects())


def test_thirty_steps_do_not_grow() -> None:
    model = net()
    handle = planned(model)
    capacity_bytes = handle.host.capacity_bytes
    first, alive = peak(model), copies_alive()
    for seed in range(30):
        step(model, batch(seed))
        assert 0 == handle.host.held_bytes
    assert first == peak(model)
    assert capacity_bytes == handle.host.capacity_bytes
    assert alive == copies_alive()


def test_a_forward_without_backward_leaves_nothing() -> None:
    model = net()
    handle = planned(model)
    loss = model(batch())
    assert _NET_BYTES == handle.host.held_bytes
    del loss
    assert 0 == handle.host.held_bytes


def test_a_plan_taken_off_gives_its_memory_back_after_the_last_backward() -> None:
    model, twin = net(), net()
    handle = planned(model)
    model.zero_grad(set_to_none=True)
    loss = model(batch())
    handle.remove()
    assert _NET_BYTES == handle.host.capacity_bytes
    loss.backward()
    assert equal(step(twin, batch())[1:], gradients(model))
    assert 0 == handle.host.capacity_bytes


# -- when it does not work out --------------------------------------------------------------------------------------


def test_a_limit_that_is_too_low_is_one_clear_error_from_the_first_forward() -> None:
    model = net()
    apply(model, offload_all(study(model, {}, (batch(),))), host_limit_bytes=_NET_BYTES - 1)
    with pytest.raises(HostMemoryError, match="raise host_limit_bytes") as caught:
        model(batch())
    assert _NET_BYTES - 1 == caught.value.limit_bytes
    assert equal(step(net(), batch()), step(model, batch()))  # without a plan
    apply(model, offload_all(study(model, {}, (batch(),))), host_limit_bytes=_NET_BYTES)
    step(model, batch())


def test_a_limit_below_what_the_plan_predicts_is_refused_at_once() -> None:
    model = net()
    plan = offload_all(study(model, {}, (batch(),)))
    plan = replace(plan, predicted=replace(plan.predicted, host_bytes=_NET_BYTES))
    with pytest.raises(HostMemoryError, match="over the limit"):
        apply(model, plan, host_limit_bytes=_NET_BYTES - 1)
    apply(model, plan, host_limit_bytes=_NET_BYTES)


def test_memory_that_cannot_be_had_is_an_error_of_the_first_forward(monkeypatch: pytest.MonkeyPatch) -> None:
    model = net()
    apply(model, offload_all(study(model, {}, (batch(),))))

    def refuse(*_: Any) -> Any:
        raise OSError("Cannot allocate memory")

    monkeypatch.setattr("planner.runtime.host.mmap.mmap", refuse)
    with pytest.raises(HostMemoryError, match="Cannot allocate memory"):
        model(batch())


def test_memory_that_cannot_be_pinned_is_an_error_that_the_device_forgets(monkeypatch: pytest.MonkeyPatch) -> None:
    class Refusing:
        def cudaHostRegister(self, *_: int) -> int:  # noqa: N802
            return 2

    launched = []
    monkeypatch.setattr("planner.runtime.host._cudart", Refusing)
    monkeypatch.setattr(torch, "ones", lambda *_, device: launched.append(device))
    with pytest.raises(HostMemoryError, match=r"cannot be pinned \(CUDA error 2\)"):
        Block(2**20, is_pinned=True)
    assert ["cuda"] == launched


def test_what_comes_back_early_is_left_for_later_when_there_is_no_room(monkeypatch: pytest.MonkeyPatch) -> None:
    copies = HostCopies(HostArena(_GENEROUS_BYTES, is_pinned=False), Streams(), staging=both_ways(64), host_bytes=None)
    for value in range(3):
        copies.store(value, torch.full((8,), float(value)))
    copies.settle()
    make, left = torch.empty, [1]

    def full(*args: Any, **options: Any) -> Tensor:
        if args != (0,):
            left[0] -= 1
            if left[0] < 0:
                raise torch.OutOfMemoryError("out of memory")
        return make(*args, **options)

    monkeypatch.setattr(torch, "empty", full)
    assert [2.0] * 8 == make(0).set_(copies.fetch(2)).tolist()
    assert not copies._arriving
    with pytest.raises(torch.OutOfMemoryError):
        copies.fetch(1)
    left[0] = 2
    assert [1.0] * 8 == make(0).set_(copies.fetch(1)).tolist()
    assert {0} == set(copies._arriving)
    assert [0.0] * 8 == make(0).set_(copies.fetch(0)).tolist()


def test_a_forward_for_which_no_place_is_left_stays_on_the_device_and_is_exact() -> None:
    model, twin = net(), net()
    handle = planned(model, host_limit_bytes=_NET_BYTES)
    for part in (model, twin):
        part.zero_grad(set_to_none=True)
        first = part(batch(1))
        if part is model:
            with pytest.warns(UserWarning, match="stay on the device"):
                second = part(batch(2))
            assert _NET_BYTES == handle.host.held_bytes
        else:
            second = part(batch(2))
        first.backward()
        second.backward()
    assert equal(gradients(twin), gradients(model))
    assert 0 == handle.host.held_bytes


def test_another_input_shape_gets_a_block_of_its_size() -> None:
    model, twin = net(), net()
    handle = planned(model, host_limit_bytes=2 * _NET_BYTES)
    for seed in range(4):
        x = batch(seed, rows=2 * _ROWS)
        assert equal(step(twin, x), step(model, x))
    assert 2 * _NET_BYTES == handle.host.capacity_bytes
    assert equal(step(twin, batch()), step(model, batch()))


class Branching(nn.Module):
    """Takes another path when it is told to by something that is no input."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(_WIDTH, _WIDTH), nn.Linear(_WIDTH, _WIDTH)
        self.choice: dict[str, bool] = {"short": False}

    def forward(self, x: Tensor) -> Tensor:
        x = torch.sin(self.first(x))
        if self.choice["short"]:
            return x.cumsum(0).mean()
        return torch.sin(self.second(x)).square().mean()


def test_a_forward_that_differs_from_the_recorded_one_is_exact_and_leaves_nothing() -> None:
    torch.manual_seed(0)
    model = Branching().train()
    twin = copy.deepcopy(model)
    handle = planned(model)
    model.choice["short"] = twin.choice["short"] = True
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        assert equal(step(twin, batch()), step(model, batch()))
    assert 1 == handle.fallbacks
    assert 0 == handle.host.held_bytes


def test_a_value_that_goes_over_what_was_recorded_is_refused() -> None:
    copies = HostCopies(HostArena(_GENEROUS_BYTES, is_pinned=False), Streams(), staging=None, host_bytes=1024)
    assert copies.store(0, torch.ones(256))
    assert not copies.store(1, torch.ones(1))
    assert copies.reason is not None


# -- streams ------------------------------------------------------------------------------------------------------


class LateStream:
    """A copy stream that copies at the last moment that waits allow, and only if the memory is still there.

    Computation is not on such a stream: it happens at once.
    """

    running: "list[LateStream]" = []  # noqa: RUF012

    def __init__(self, *_: Any) -> None:
        self.queue: list[Callable[[], None]] = []
        self.done = 0

    def run(self, until: int) -> None:
        while self.done < until:
            self.done += 1
            self.queue[self.done - 1]()

    def wait_stream(self, other: "LateStream") -> None:
        assert not other.queue

    def wait_event(self, event: "LateEvent") -> None:
        if self is COMPUTE:
            event.wait()
        else:
            self.queue.append(event.wait)

    def record_event(self) -> "LateEvent":
        return LateEvent(self, len(self.queue))

    def __enter__(self) -> None:
        self.running.append(self)

    def __exit__(self, *_: Any) -> None:
        self.running.pop()

    def copy(self, target: Tensor, source: Tensor, *, non_blocking: bool = False) -> None:
        places = [(weakref.ref(t.untyped_storage()), t.storage_offset(), t.numel()) for t in (target, source)]

        def run() -> None:
            storages = [reference() for reference, _, _ in places]
            assert None not in storages, "memory was freed before a copy was done"
            there, here = (
                torch.empty(0, dtype=torch.uint8).set_(storage, offset, (numel,))  # type: ignore[call-overload]
                for storage, (_, offset, numel) in zip(storages, places, strict=True)
            )
            there.copy_(here)

        self.queue.append(run)


class LateEvent:
    def __init__(self, stream: LateStream, place: int) -> None:
        self.wait = lambda: stream.run(place)


COMPUTE = LateStream()


@pytest.fixture
def late_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPU takes the part of the GPU."""
    monkeypatch.setattr("planner.runtime.offload.has_streams", lambda _: True)
    monkeypatch.setattr(
        "planner.runtime.offload.copy_bytes", lambda *args, **kwargs: LateStream.running[-1].copy(*args, **kwargs)
    )
    monkeypatch.setattr(torch.cuda, "Stream", LateStream)
    monkeypatch.setattr(torch.cuda, "stream", lambda stream: stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda _: COMPUTE)
    # The allocator waits for the stream before it gives the memory to somebody else.
    monkeypatch.setattr(Tensor, "record_stream", lambda _, stream: stream.run(len(stream.queue)))


@pytest.mark.usefixtures("late_streams")
@pytest.mark.parametrize("name", ["llama", "gpt2", "resnet"])
def test_copies_that_run_as_late_as_they_may_are_exact(name: str) -> None:
    case = build(name)
    before = copy.deepcopy(case.model.state_dict())
    expected = [run_step(case, seed) for seed in range(_FORWARDS)]
    subject = study(case.model, case.batch())
    for plan in (offload_all(subject), mixed(subject, 1)):
        case.model.load_state_dict(before)
        handle = apply(case.model, plan)
        for seed in range(_FORWARDS):
            assert not difference(expected[seed], run_step(case, seed)), f"forward {seed}"
            assert 0 == handle.host.held_bytes
        handle.remove()


@pytest.mark.usefixtures("either_way")
@pytest.mark.parametrize("staged", [0, 1, 2, 3, 100])
def test_sources_are_given_back_while_forward_runs_and_all_of_them_at_its_end(staged: int) -> None:
    model = net()
    handle = planned(model, staging=both_ways(staged * _VALUE_BYTES))
    kept, copies = [], []

    def watch(*_: Any) -> None:
        copies.append(handle._running[-1]._copies)  # type: ignore[attr-defined]
        kept.append(leaving_bytes(handle))

    for layer in model.layers:  # type: ignore[union-attr]
        layer.register_forward_hook(watch)
    loss = model(batch())
    # Each layer but the first has packed what it reads, and the sine before it its argument.
    assert [min(staged, 2 * layer) * _VALUE_BYTES for layer in range(_LAYERS)] == kept
    assert not copies[-1]._leaving
    loss.backward()


class Failing(nn.Module):
    """Fails in the middle of forward when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.net = Net()
        self.choice: dict[str, bool] = {"fails": False}

    def forward(self, x: Tensor) -> Tensor:
        loss = self.net(x)
        if self.choice["fails"]:
            raise ArithmeticError
        return loss * 2


@pytest.mark.usefixtures("late_streams")
def test_a_forward_that_fails_frees_no_memory_before_it_is_copied() -> None:
    torch.manual_seed(0)
    model = Failing().train()
    twin = copy.deepcopy(model)
    handle = planned(model, staging=both_ways(100 * _VALUE_BYTES))
    model.choice["fails"] = True
    with contextlib.suppress(ArithmeticError):
        model(batch())
    model.choice["fails"] = False
    assert 0 == handle.host.held_bytes
    assert equal(step(twin, batch()), step(model, batch()))  # runs the copies that came before, too


@pytest.mark.usefixtures("late_streams")
def test_what_is_written_to_while_it_is_copied_is_not_used() -> None:
    copies = HostCopies(HostArena(_GENEROUS_BYTES, is_pinned=False), Streams(), staging=both_ways(64), host_bytes=None)
    tensor = torch.ones(8)
    copies.store(0, tensor)
    tensor.add_(1)
    copies.settle()
    assert copies.is_spoiled(0)


# -- on a GPU -------------------------------------------------------------------------------------------------------


def _to_gpu(case: Case) -> Case:
    device = torch.device("cuda")
    return Case(case.model.to(device), lambda: {name: item.to(device) for name, item in case.batch().items()})


@pytest.mark.gpu
@pytest.mark.parametrize("name", ["llama", "gpt2", "resnet"])
def test_offloading_is_exact_on_a_gpu(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    case = _to_gpu(build(name))
    before = copy.deepcopy(case.model.state_dict())
    monkeypatch.setattr(torch.backends.cudnn, "deterministic", True)
    expected = [run_step(case, seed) for seed in range(_FORWARDS)]
    case.model.load_state_dict(before)
    handle = apply(case.model, _gpu_plan(case))
    for seed in range(_FORWARDS):
        assert not difference(expected[seed], run_step(case, seed)), f"forward {seed}"
        assert 0 == handle.host.held_bytes


def _gpu_plan(case: Case) -> Plan:
    """Everything offloaded, from a live forward: a trace for a CPU names other kernels."""
    plan = recorded(case.model, **case.batch())
    return replace(plan, decisions=tuple(replace(decision, retention=Retention.OFFLOAD) for decision in plan.decisions))


@pytest.mark.gpu
def test_pinned_memory_is_exactly_as_large_as_asked_for() -> None:
    block = Block(3 * 2**20 + 1, is_pinned=True)
    assert 3 * 2**20 + 1 == block.bytes.nbytes
    assert block.bytes.is_pinned()


@pytest.mark.gpu
def test_after_memory_could_not_be_pinned_the_device_goes_on() -> None:
    block = Block(2**20, is_pinned=True)
    with pytest.raises(HostMemoryError, match="cannot be pinned"):
        block._pin()  # twice
    assert 3.0 == (torch.ones(1, device="cuda") * 3).item()


@pytest.mark.gpu
@pytest.mark.parametrize("staged", _STAGED)
def test_the_peak_of_a_step_on_a_gpu_is_what_staging_says(staged: int) -> None:
    device = torch.device("cuda")
    model = net().to(device)
    x = batch().to(device)
    apply(model, _gpu_plan(Case(model, lambda: {"x": x})), staging=both_ways(staged * _VALUE_BYTES))
    for _ in range(3):
        model(x).backward()
        model.zero_grad(set_to_none=True)
    before = torch.cuda.memory_allocated()
    run = measure_peak(lambda: model(x).backward(), resident=[], device=device)
    # Beside it the allocator's granularity, and what cuBLAS keeps.
    assert abs(run.peak_bytes - before - step_bytes(staged)) <= 16 * 512


@pytest.mark.gpu
def test_copies_out_and_back_survive_a_busy_allocator() -> None:
    device = torch.device("cuda")
    arena = HostArena(_GENEROUS_BYTES, is_pinned=True)
    size_bytes = 4 * 2**20
    for _ in range(5):
        copies = HostCopies(arena, Streams(), staging=None, host_bytes=16 * size_bytes)
        for value in range(16):
            tensor = torch.full((2**20,), float(value), device=device)
            assert copies.store(value, tensor)
            del tensor
            torch.full((2**20,), -1.0, device=device)  # takes the place of what is freed too early
        copies.settle()
        for value in reversed(range(16)):
            back = torch.empty(0, device=device).set_(copies.fetch(value))
            assert bool((back == value).all())
            del back
            torch.full((2**20,), -1.0, device=device)
        del copies
    assert 0 == arena.held_bytes


@pytest.mark.gpu
def test_a_gpu_gets_the_offloaded_bytes_back() -> None:
    device = torch.device("cuda")
    model = net().to(device)
    x = batch().to(device)
    plan = _gpu_plan(Case(model, lambda: {"x": x}))

    def held() -> int:
        before = torch.cuda.memory_allocated()
        loss = model(x)
        after = torch.cuda.memory_allocated()
        loss.backward()
        model.zero_grad(set_to_none=True)
        return after - before

    kept = held()
    apply(model, plan)
    for _ in range(3):
        loss_of(model(x)).backward()
        model.zero_grad(set_to_none=True)
    assert kept - held() >= _NET_BYTES - _VALUE_BYTES
