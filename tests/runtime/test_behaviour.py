"""What a training loop can do to a model with a plan: each is exact, or refused with a reason."""

import copy
import gc
import pickle
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

from planner.errors import PlanFileError, PlanMismatchError, ReplayError
from planner.plan import Plan, Retention, write_plan
from planner.planning import solve_graph
from planner.runtime.handle import AppliedPlan, apply
from planner.tracing import Kernels, prepare, trace
from tests.runtime.plans import Subject, keep_all, keep_block_inputs, keep_least, plan_that_keeps, recorded, study

Step = Callable[[nn.Module, int], list[Tensor]]


class Layer(nn.Module):
    """A residual block whose every intermediate tensor can be recomputed."""

    def __init__(self, width: int = 8) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, 2 * width)
        self.down = nn.Linear(2 * width, width)
        self.scale = 1.0

    def forward(self, x: Tensor) -> Tensor:
        return x + self.down(nn.functional.gelu(self.up(self.norm(x))) * self.scale)


class Net(nn.Module):
    """A few of them and a loss."""

    def __init__(self, layers: int = 3) -> None:
        super().__init__()
        self.layers = nn.ModuleList(Layer() for _ in range(layers))

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x.square().mean()


def batch(seed: int = 0, rows: int = 6) -> Tensor:
    return torch.randn(rows, 8, generator=torch.Generator().manual_seed(seed))


def least(model: nn.Module, *args: Any) -> Plan:
    """The plan that keeps as little as it can."""
    subject = study(model, {}, args)
    return plan_that_keeps(subject, keep_least(subject))


def gradients(model: nn.Module) -> list[Tensor]:
    return [p.grad.clone() for p in model.parameters() if p.grad is not None]


def plain_step(model: nn.Module, seed: int, **options: Any) -> list[Tensor]:
    model.zero_grad(set_to_none=True)
    torch.manual_seed(seed)
    loss = model(batch(seed))
    loss.backward(**options)
    return [loss.detach(), *gradients(model)]


def equal(expected: list[Tensor], found: list[Tensor]) -> bool:
    return len(expected) == len(found) and all(map(torch.equal, expected, found))


def assert_exact(model: nn.Module, step: Step = plain_step, forwards: int = 4) -> AppliedPlan:
    """The step gives the same with the plan as without it; the plan stays on."""
    before = copy.deepcopy(model.state_dict())
    expected = [step(model, seed) for seed in range(forwards)]
    model.load_state_dict(before)
    handle = apply(model, least(model, batch()))
    for seed in range(forwards):
        assert equal(expected[seed], step(model, seed)), f"forward {seed}"
    assert 0 == handle.fallbacks
    return handle


def make(cls: Callable[..., nn.Module] = Net, **options: Any) -> nn.Module:
    torch.manual_seed(0)
    return cls(**options).train()


def planned(model: nn.Module, forwards: int = 3) -> AppliedPlan:
    """The model with a plan, past its recordings."""
    handle = apply(model, least(model, batch()))
    for seed in range(forwards):
        plain_step(model, seed)
    return handle


# -- what changes from step to step -----------------------------------------------------------------------------


def test_a_number_on_a_module_that_changes_is_noticed_at_once() -> None:
    model, twin = make(), make()
    handle = planned(model)
    for seed in range(6):
        for net in (model, twin):
            net.layers[1].scale = 1.0 + seed // 2  # type: ignore[union-attr]
        assert equal(plain_step(twin, seed), plain_step(model, seed))
    assert 0 == handle.fallbacks


class Scheduled(nn.Module):
    """A number from outside the module that differs at each call."""

    number = 1.0

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        Scheduled.number += 0.25
        hidden = torch.tanh(self.first(x)) + Scheduled.number
        return self.second(hidden.square()).mean()


def test_what_depends_on_a_number_that_differs_each_time_is_saved_and_said_so() -> None:
    def run(model: nn.Module) -> list[list[Tensor]]:
        Scheduled.number = 1.0
        return [plain_step(model, seed) for seed in range(5)]

    model = make(Scheduled)
    expected = run(model)
    plan = least(model, batch())
    handle = apply(model, plan)
    with pytest.warns(UserWarning, match=r"aten\.add\.Tensor of the model is called with another number"):
        found = run(model)
    assert all(map(equal, expected, found))
    assert handle.recordings < handle.forwards


def test_a_number_that_changes_rarely_is_found_by_the_next_recording(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("planner.runtime.handle.AUDIT_INTERVAL", 2)
    model = make()
    handle = planned(model, forwards=9)
    assert handle.recordings > 3


class Skipping(Net):
    """Skips layers as it is told from outside."""

    skipped = -1

    def forward(self, x: Tensor) -> Tensor:
        for place, layer in enumerate(self.layers):
            if place != Skipping.skipped:
                x = layer(x)
        return x.square().mean()


def test_a_layer_that_is_left_out_is_noticed_and_gradients_stay_exact(monkeypatch: pytest.MonkeyPatch) -> None:
    model, twin = make(Skipping), make(Skipping)
    planned(model)
    for skipped in (1, 2, -1, 0):
        monkeypatch.setattr(Skipping, "skipped", skipped)
        with warnings.catch_warnings(record=True):
            warnings.simplefilter("always")
            assert equal(plain_step(twin, 7), plain_step(model, 7))


class Branching(nn.Module):
    """Two branches that look alike from the outside: each saves its input, of one shape."""

    uses_sine = True

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x)
        hidden = hidden.sin() if Branching.uses_sine else hidden.cos()
        return self.second(hidden).mean()


def test_another_branch_that_saves_the_same_never_gives_wrong_gradients(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    model, twin = make(Branching), make(Branching)
    planned(model)
    monkeypatch.setattr(Branching, "uses_sine", False)

    with pytest.raises(ReplayError, match="took another path"):
        plain_step(model, 0)

    with pytest.warns(UserWarning, match="does not match the plan"):  # recorded anew, and it names the sine
        assert equal(plain_step(twin, 1), plain_step(model, 1))


# -- inputs -----------------------------------------------------------------------------------------------------


def test_slices_of_one_batch_share_a_tape() -> None:
    whole = batch(rows=24)

    def step(model: nn.Module, seed: int) -> list[Tensor]:
        model.zero_grad(set_to_none=True)
        for part in whole.chunk(4):
            (model(part) / 4).backward()
        return gradients(model)

    handle = assert_exact(make(), step, forwards=2)
    assert 2 == handle.recordings


class TwoInputs(nn.Module):
    """Takes two tensors of one shape."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: Tensor, y: Tensor | None = None) -> Tensor:
        y = x if y is None else y
        return (self.layer(x.exp().sin()) * y.cos().exp()).mean()


def test_the_order_of_keywords_and_shared_inputs_do_not_confuse_it() -> None:
    model, twin = make(TwoInputs), make(TwoInputs)
    subject = study(model, {"x": batch(1), "y": batch(2)})
    apply(model, plan_that_keeps(subject, keep_least(subject)))
    x, y = batch(1), batch(2)
    calls: list[dict[str, Tensor]] = [{"x": x, "y": y}, {"y": y, "x": x}, {"x": x, "y": x}]
    for round_ in range(4):
        for call in calls:
            results = []
            for net in (twin, model):
                net.zero_grad(set_to_none=True)
                net(**call).backward()
                results.append(gradients(net))
            assert equal(*results), round_


def test_another_batch_size_gets_its_own_tape() -> None:
    model, twin = make(), make()
    handle = planned(model)
    for rows in (3, 6, 3, 3, 6):
        results = []
        for net in (twin, model):
            net.zero_grad(set_to_none=True)
            net(batch(rows, rows)).backward()
            results.append(gradients(net))
        assert equal(*results)
    assert 0 == handle.fallbacks


def test_an_input_overwritten_before_backward_is_refused_not_misread() -> None:
    model = make(TwoInputs)
    apply(model, least(model, batch()))
    x = batch()
    loss = model(x)
    x.zero_()
    with pytest.raises(ReplayError, match="modified in place"):
        loss.backward()


def test_a_parameter_stepped_before_backward_is_refused_not_misread() -> None:
    model = make()
    planned(model)
    loss = model(batch())
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(1.0)
    with pytest.raises(ReplayError, match="modified in place"):
        loss.backward()


class Overwriting(nn.Module):
    """Works in place in several ways."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x)
        hidden.mul_(2.0).add_(1.0)
        hidden[:, :4] = hidden[:, 4:].relu()
        other = nn.functional.silu(self.second(hidden), inplace=False)
        kept = torch.relu_(other + 1.0)
        halves = kept.chunk(2, dim=1)
        return (halves[0] * halves[1].exp()).expand(3, -1, -1).square().mean()


def test_ops_that_work_in_place_are_exact() -> None:
    assert_exact(make(Overwriting))


class Complex(nn.Module):
    """Conjugates and imaginary parts are views that carry a flag."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        spectrum = torch.fft.fft(self.layer(x))
        product = spectrum.conj() * spectrum.exp()
        return (product.conj().imag * product.real.sin()).mean()


def test_lazy_conjugates_are_exact() -> None:
    assert_exact(make(Complex))


# -- order and repetition of passes -----------------------------------------------------------------------------


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_forwards_in_flight_together_own_their_state(order: tuple[int, int]) -> None:
    def step(model: nn.Module, seed: int) -> list[Tensor]:
        model.zero_grad(set_to_none=True)
        losses = [model(batch(seed)), model(batch(seed + 100))]
        for place in order:
            losses[place].backward()
        return gradients(model)

    assert_exact(make(), step)


def test_backward_twice_over_a_retained_graph_is_exact() -> None:
    def step(model: nn.Module, seed: int) -> list[Tensor]:
        model.zero_grad(set_to_none=True)
        loss = model(batch(seed))
        loss.backward(retain_graph=True)
        loss.backward(retain_graph=True)
        loss.backward()
        return gradients(model)

    assert_exact(make(), step)


def test_gradients_of_single_parameters_are_exact() -> None:
    def step(model: nn.Module, seed: int) -> list[Tensor]:
        parameters = list(model.parameters())
        loss = model(batch(seed))
        some = torch.autograd.grad(loss, parameters[5:7], retain_graph=True)
        return [*some, *torch.autograd.grad(loss, parameters[-3:])]

    assert_exact(make(), step)


def test_second_derivatives_are_exact() -> None:
    def step(model: nn.Module, seed: int) -> list[Tensor]:
        model.zero_grad(set_to_none=True)
        x = batch(seed).requires_grad_()
        (slope,) = torch.autograd.grad(model(x), x, create_graph=True)
        slope.square().sum().backward()
        return gradients(model)

    assert_exact(make(), step)


class ReadsTwice(torch.autograd.Function):
    """Unpacks what it saved once for each tensor it takes."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        y = x.exp()
        ctx.save_for_backward(x, y)
        return y * x

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        x = ctx.saved_tensors[0].clone()
        y = ctx.saved_tensors[1].clone()
        return grads[0] * (y * x + ctx.saved_tensors[1])


class Custom(nn.Module):
    """Calls an autograd function of its own, several times."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        for _ in range(3):
            x = ReadsTwice.apply(self.layer(x).tanh())
        return x.mean()


def test_a_custom_function_that_reads_its_saved_tensors_twice_is_exact() -> None:
    assert_exact(make(Custom))


class Counting(TorchDispatchMode):
    """Counts the ops that run, views apart."""

    def __init__(self) -> None:
        super().__init__()
        self.names: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not func.is_view:
            self.names[str(func)] += 1
        return func(*args, **(kwargs or {}))


def test_each_op_is_replayed_once_and_only_if_backward_needs_it() -> None:
    model, twin = make(), make()
    planned(model)
    plain, replaying = Counting(), Counting()
    for net, counting in ((twin, plain), (model, replaying)):
        net.zero_grad(set_to_none=True)
        loss = net(batch())
        with counting:
            loss.backward()

    # Each layer's norm, up, gelu, product with the scale, down and sum; the square and the mean are not needed.
    assert {
        "aten.native_layer_norm.default": 3,
        "aten.addmm.default": 6,
        "aten.gelu.default": 3,
        "aten.mul.Tensor": 3,
        "aten.add.Tensor": 3,
    } == replaying.names - plain.names


def test_a_second_backward_over_a_kept_graph_replays_nothing_again() -> None:
    model = make()
    planned(model)
    loss = model(batch())
    runs = []
    for _ in range(2):
        with Counting() as counting:
            loss.backward(retain_graph=True)
        runs.append(counting.names["aten.native_layer_norm.default"])
    assert [3, 0] == runs


class Conjugating(nn.Module):
    """Ops whose results are lazily conjugated or negated, or parts of complex numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        square = torch.fft.fft(self.layer(x))
        square = square.mH @ square + torch.eye(8)
        inverse = torch.linalg.pinv(square, hermitian=True)
        return (inverse.exp().conj().imag * inverse.real.sin()).mean()


def test_results_that_are_lazily_conjugated_are_exact() -> None:
    assert_exact(make(Conjugating))


def test_a_plan_that_saves_everything_leaves_forwards_alone_once_one_has_matched() -> None:
    model, twin = make(), make()
    subject = study(model, {}, (batch(),))
    handle = apply(model, plan_that_keeps(subject, keep_all(subject)))
    for seed in range(3):
        assert equal(plain_step(twin, seed), plain_step(model, seed))
    assert (3, 1) == (handle.forwards, handle.recordings)

    with torch.autograd.graph.saved_tensors_hooks(lambda tensor: 2.0 * tensor, lambda tensor: tensor / 2.0):
        loss = model(batch())
    loss.backward()
    model.to(torch.bfloat16)
    with pytest.raises(PlanMismatchError, match=r"was float32 on cpu"):
        model(batch().to(torch.bfloat16))


# -- modes ------------------------------------------------------------------------------------------------------


def test_evaluation_between_steps_changes_nothing() -> None:
    def step(model: nn.Module, seed: int) -> list[Tensor]:
        model.eval()
        with torch.no_grad():
            model(batch(seed))
        model.train()
        return plain_step(model, seed)

    assert_exact(make(), step)


class Tied(nn.Module):
    """One weight under two names, a frozen layer, batch norm in both modes, a part without gradients, dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.frozen = (nn.Linear(8, 8) for _ in range(3))
        self.second.weight = self.first.weight
        self.frozen.requires_grad_(False)
        self.live, self.still = nn.BatchNorm1d(8), nn.BatchNorm1d(8)
        self.still.eval()

    def train(self, mode: bool = True) -> "Tied":
        super().train(mode)
        self.still.eval()
        return self

    def forward(self, x: Tensor) -> Tensor:
        with torch.no_grad():
            weight = torch.softmax(self.frozen(x), dim=-1)
        hidden = self.live(self.first(x) * weight).relu()
        hidden = nn.functional.dropout(self.still(self.second(hidden)), 0.3, self.training)
        values, places = hidden.sort(dim=-1)
        return (values * self.frozen(hidden).gather(-1, places)).std()


def step_with_buffers(model: nn.Module, seed: int) -> list[Tensor]:
    return [*plain_step(model, seed), *(buffer.clone() for buffer in model.buffers())]


def test_tied_frozen_normalized_and_dropped_out_parts_are_exact() -> None:
    assert_exact(make(Tied), step_with_buffers)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_autocast_is_exact_with_a_scaler(dtype: torch.dtype) -> None:
    class Cast(Net):
        def forward(self, x: Tensor) -> Tensor:
            with torch.autocast("cpu", dtype):
                for layer in self.layers:
                    x = layer(layer(x))  # the second call finds the cast weights in autocast's cache
            return x.float().square().mean()

    def step(model: nn.Module, seed: int) -> list[Tensor]:
        scaler = torch.amp.GradScaler("cpu", init_scale=16.0)
        model.zero_grad(set_to_none=True)
        scaler.scale(model(batch(seed))).backward()
        return gradients(model)

    twin, model = make(Cast), make(Cast)
    expected = [step(twin, seed) for seed in range(4)]
    apply(model, recorded(model, batch()))
    assert all(equal(expected[seed], step(model, seed)) for seed in range(4))


# -- failures ---------------------------------------------------------------------------------------------------


class Failing(Net):
    """Raises in the middle when it is told to."""

    error: BaseException | None = None

    def forward(self, x: Tensor) -> Tensor:
        for place, layer in enumerate(self.layers):
            if place == 1 and Failing.error is not None:
                raise Failing.error
            x = layer(x)
        return x.square().mean()


@pytest.mark.parametrize("error", [RuntimeError("out of memory"), KeyboardInterrupt()])
@pytest.mark.parametrize("forwards", [0, 3])
def test_an_exception_in_forward_leaves_nothing_switched_on(
    monkeypatch: pytest.MonkeyPatch, error: BaseException, forwards: int
) -> None:
    model, twin = make(Failing), make(Failing)
    planned(model, forwards)
    monkeypatch.setattr(Failing, "error", error)
    with pytest.raises(type(error)):
        model(batch())
    monkeypatch.setattr(Failing, "error", None)

    assert not torch.nn.modules.module._global_forward_hooks
    assert not torch.nn.modules.module._global_forward_pre_hooks
    assert 0 == torch.utils._python_dispatch._len_torch_dispatch_stack()  # type: ignore[attr-defined]
    weight = torch.ones(2, requires_grad=True)
    (weight * weight).sum().backward()  # type: ignore[no-untyped-call]
    assert weight.grad is not None
    assert 2.0 == weight.grad[0]
    for seed in range(4):
        assert equal(plain_step(twin, seed), plain_step(model, seed))


class Hidden(nn.Module):
    """Writes to a tensor behind the dispatcher's back, as a kernel called by address does."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        table = torch.zeros(8)
        if not table.is_meta:
            table.numpy()[:] = 3.0
        return (self.layer(x) * table * table).mean()


def test_a_write_that_dispatch_does_not_see_is_found_by_the_first_replay() -> None:
    model = make(Hidden)
    apply(model, least(model, batch()))
    with pytest.raises(ReplayError, match="does not come back as it was"):
        plain_step(model, 0)


class Activated(Net):
    """Saves what ops take and what they make, overwritten later or not."""

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.tanh(layer(x)).exp()
            x = (x * x).add_(1.0).softmax(dim=-1)
        return x.square().mean()


def keep_nearly_all(subject: Subject) -> frozenset[int]:
    """All that is saved but one, so that each saved tensor is looked at."""
    return keep_all(subject) - {next(tensor.index for tensor in subject.problem.choices if tensor.uses)}


@pytest.mark.parametrize("keep", [keep_all, keep_nearly_all, keep_block_inputs, keep_least])
def test_forwards_without_backward_free_everything(keep: Callable[[Subject], frozenset[int]]) -> None:
    model = make(Activated)
    subject = study(model, {}, (batch(),))
    apply(model, plan_that_keeps(subject, keep(subject)))
    for seed in range(3):
        plain_step(model, seed)
    gc.collect()
    before = _tensor_count()
    for seed in range(20):
        model(batch(seed))
    assert _tensor_count() <= before + 2


def test_memory_does_not_grow_over_many_steps() -> None:
    model = make()
    planned(model)
    gc.collect()
    objects, tensors = len(gc.get_objects()), _tensor_count()
    for seed in range(200):
        plain_step(model, seed)
    model.zero_grad(set_to_none=True)
    gc.collect()
    assert len(gc.get_objects()) <= objects + 50
    assert _tensor_count() <= tensors


def _tensor_count() -> int:
    return sum(issubclass(type(item), Tensor) for item in gc.get_objects())


# -- what is refused --------------------------------------------------------------------------------------------


def assert_untouched(model: nn.Module) -> None:
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())
    assert model._compiled_call_impl is None
    assert not [name for name in vars(model) if "plan" in name]


def test_a_plan_for_another_model_is_refused_when_it_is_applied() -> None:
    plan = least(make(), batch())
    other = make(layers=2)
    with pytest.raises(PlanMismatchError, match="parameters, the model has"):
        apply(other, plan)
    assert_untouched(other)


class Attending(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.project = nn.Linear(8, 24)

    def forward(self, tokens: Tensor) -> Tensor:
        query, key, value = self.project(tokens).unflatten(-1, (3, 1, 8)).unbind(2)
        return nn.functional.scaled_dot_product_attention(*(part.transpose(1, 2) for part in (query, key, value)))


@pytest.mark.parametrize(("kernels", "is_refused"), [(Kernels.CUDA, True), (Kernels.CPU, False)])
def test_a_gpus_plan_on_a_cpu_is_refused_with_the_way_out(kernels: Kernels, is_refused: bool) -> None:
    model, tokens = Attending(), torch.randn(2, 4, 8)
    plan = solve_graph(trace(prepare(model, (tokens,), kernels=kernels)), budget="1GB").plan
    apply(model, plan)

    if is_refused:
        with pytest.raises(PlanMismatchError, match=r"make one from planner\.prepare\(.*Kernels\.CPU\)"):
            model(tokens)
    else:
        model(tokens).sum().backward()


def test_a_plan_is_not_applied_twice_nor_to_a_part() -> None:
    model = make()
    plan = least(model, batch())
    handle = apply(model, plan)
    with pytest.raises(PlanMismatchError, match="already"):
        apply(model, plan)
    with pytest.raises(PlanMismatchError, match="part"):
        apply(model.layers[0], plan)  # type: ignore[arg-type, index]
    handle.remove()
    apply(model, plan).remove()
    assert_untouched(model)


def test_another_pytorchs_plan_is_refused() -> None:
    model = make()
    plan = least(model, batch())
    with pytest.raises(PlanMismatchError, match=r"PyTorch 2\.0\.1"):
        apply(model, replace(plan, model=replace(plan.model, torch="2.0.1")))
    assert_untouched(model)


@pytest.mark.parametrize(
    ("edit", "message"),
    [
        (lambda d: (replace(d[0], op="aten.cos.default"), *d[1:]), "expected aten.cos.default"),
        (lambda d: (replace(d[0], dtype="float16"), *d[1:]), "expected .* in float16"),
        (lambda d: d[1:], "is not in the plan"),
        (lambda d: (*d, replace(d[-1], ordinal=99)), "saved tensor 99 .* did not save"),
        (lambda d: (replace(d[0], module_fqn="layers.7"), *d[1:]), "layers.7, which the model does not have"),
    ],
)
def test_an_edited_plan_is_refused_and_the_model_left_as_it_was(edit: Any, message: str) -> None:
    model, twin = make(Tied), make(Tied)
    plan = least(model, batch())
    before = copy.deepcopy(model.state_dict())
    with pytest.raises(PlanMismatchError, match=message):
        _apply_and_step(model, replace(plan, decisions=edit(plan.decisions)))
    assert_untouched(model)
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert equal(plain_step(twin, 0), plain_step(model, 0))


def test_a_plan_that_drops_what_cannot_come_back_is_refused_before_backward() -> None:
    model = make(Tied)
    plan = least(model, batch())

    edited = tuple(replace(decision, retention=Retention.RECOMPUTE) for decision in plan.decisions)
    with pytest.raises(ReplayError, match=r"cannot be recomputed: aten\.bernoulli_\.float is random"):
        _apply_and_step(model, replace(plan, decisions=edited))
    assert all(parameter.grad is None for parameter in model.parameters())


def _apply_and_step(model: nn.Module, plan: Plan) -> list[Tensor]:
    apply(model, plan)
    return plain_step(model, 0)


@given(st.data())
@settings(max_examples=25)
def test_any_set_of_decisions_is_exact_or_refused_before_backward(data: st.DataObject) -> None:
    model, twin = make(Tied), make(Tied)
    plan = least(model, batch())
    decisions = tuple(
        replace(decision, retention=data.draw(st.sampled_from([Retention.SAVE, Retention.RECOMPUTE])))
        for decision in plan.decisions
    )
    before = copy.deepcopy(model.state_dict())
    try:
        apply(model, replace(plan, decisions=decisions))
        for seed in range(4):
            assert equal(step_with_buffers(twin, seed), step_with_buffers(model, seed))
    except ReplayError as error:
        assert "cannot be recomputed" in str(error)
        assert all(parameter.grad is None for parameter in model.parameters())
        assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
        assert_untouched(model)


def test_a_model_recast_or_rebuilt_after_apply_is_refused() -> None:
    model = make()
    planned(model)
    model.to(torch.bfloat16)
    with pytest.raises(PlanMismatchError, match=r"layers\.0\.norm\.weight was float32 on cpu"):
        model(batch().to(torch.bfloat16))

    model = make()
    planned(model)
    model.layers[1].up = nn.Linear(8, 16)  # type: ignore[union-attr]
    with pytest.raises(PlanMismatchError, match=r"layers\.1\.up was replaced"):
        model(batch())


def test_a_file_that_is_no_plan_is_refused(tmp_path: Path) -> None:
    model = make()
    path = tmp_path / "net.plan.yaml"
    path.write_text("version: 1\nmodel: {")
    with pytest.raises(PlanFileError):
        apply(model, path)
    assert_untouched(model)

    write_plan(least(model, batch()), path)
    apply(model, path)
    plain_step(model, 0)


def test_compiled_wrapped_and_checkpointing_models_are_refused() -> None:
    model = make()
    plan = least(model, batch())
    compiled = torch.compile(model, backend="eager")
    with pytest.raises(PlanMismatchError, match="compiled"):
        apply(compiled, plan)  # type: ignore[arg-type]
    with pytest.raises(PlanMismatchError, match="DataParallel"):
        apply(nn.DataParallel(model), plan)
    model.gradient_checkpointing = True  # type: ignore[assignment]
    with pytest.raises(PlanMismatchError, match="gradient checkpointing is on"):
        apply(model, plan)


# -- what is left alone -----------------------------------------------------------------------------------------


def test_names_and_state_are_untouched() -> None:
    model = make()
    keys, names = list(model.state_dict()), [name for name, _ in model.named_modules()]
    planned(model)
    assert keys == list(model.state_dict())
    assert names == [name for name, _ in model.named_modules()]


def test_copies_and_pickles_carry_no_plan() -> None:
    model = make()
    planned(model)
    for twin in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        assert equal(plain_step(model, 5), plain_step(twin, 5))
        with torch.no_grad():
            for parameter in twin.parameters():
                parameter.mul_(2.0)
        fresh = make()
        fresh.load_state_dict(twin.state_dict())
        assert equal(plain_step(fresh, 6), plain_step(twin, 6))
        apply(twin, least(fresh, batch()))
        for seed in range(4):
            assert equal(plain_step(fresh, seed), plain_step(twin, seed))


class Recursive(Net):
    """Calls itself."""

    def forward(self, x: Tensor, depth: int = 2) -> Tensor:
        for layer in self.layers:
            x = layer(x)
        return x.square().mean() if depth == 0 else x.mean() + self(x.tanh(), depth - 1)


def test_a_model_that_calls_itself_is_exact() -> None:
    assert_exact(make(Recursive, layers=1))


class Checkpointed(Net):
    """Checkpoints its layers itself."""

    is_reentrant = False

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.utils.checkpoint.checkpoint(layer, x, use_reentrant=self.is_reentrant).tanh()
        return x.square().mean()


def test_checkpointing_inside_is_exact() -> None:
    assert_exact(make(Checkpointed))


def test_reentrant_checkpointing_inside_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = make(Checkpointed)
    plan = least(model, batch())
    model.is_reentrant = True
    apply(model, plan)
    with pytest.raises(PlanMismatchError, match="use_reentrant=True"):
        model(batch().requires_grad_())
    assert_untouched(model)
