"""Measured rates: which one an op runs at, what lies between two points, and that without any all is as before."""

from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from planner.costs.kinds import counted_bytes, kind_of
from planner.costs.roofline import op_seconds, optimizer_seconds, rate_at
from planner.device import Kind, RateCurve, device_names, load_device
from planner.graph import Op, Phase

OP = Op(
    step=0,
    name="aten.add.Tensor",
    phase=Phase.FORWARD,
    module_fqn="",
    module_call=0,
    reads=(),
    writes=(),
    read_bytes=2000,
    write_bytes=1000,
    flops=0,
    dtype="float32",
    shape=(),
    is_view=False,
    is_random=False,
    is_causal=False,
    mutates_state=False,
    is_opaque=False,
)
PRODUCT = replace(OP, name="aten.mm.default", flops=30_000)
CURVE = RateCurve(places=(10.0, 1000.0), rates_per_s=(100.0, 400.0))


def machine(**rates: Any) -> Any:
    return load_device({"memory": "24GB", "launch_s": 0.5, "rates": rates})


def traffic(*points: tuple[float, float]) -> dict[str, Any]:
    return {"float32": [{"bytes": place, "bytes_per_s": rate} for place, rate in points]}


def arithmetic(*points: tuple[float, float]) -> dict[str, Any]:
    return {"float32": [{"flops_per_byte": place, "flops_per_s": rate} for place, rate in points]}


# ---- between points


def test_a_rate_is_exact_at_its_points_and_constant_beyond_them() -> None:
    assert [100, 400] == [rate_at(CURVE, place) for place in CURVE.places]
    assert [100, 400] == [rate_at(CURVE, 1e-9), rate_at(CURVE, 1e12)]


def test_halfway_between_two_points_on_logarithmic_axes_is_their_geometric_mean() -> None:
    assert pytest.approx(200) == rate_at(CURVE, 100.0)


@st.composite
def curves(draw: st.DrawFn) -> RateCurve:
    """Any curve that a profile may have: no larger place takes less time."""
    places = sorted(draw(st.lists(st.floats(1, 1e9), min_size=1, max_size=6, unique=True)))
    rates = [draw(st.floats(1e6, 1e12))]
    for before, after in pairwise(places):
        rates.append(min(draw(st.floats(1e6, 1e12)), rates[-1] * after / before))
    return RateCurve(places=tuple(places), rates_per_s=tuple(rates))


@given(curves(), st.floats(1e-3, 1e12))
def test_a_rate_lies_between_the_lowest_and_the_highest_measured(curve: RateCurve, place: float) -> None:
    assert min(curve.rates_per_s) * (1 - 1e-9) <= rate_at(curve, place) <= max(curve.rates_per_s) * (1 + 1e-9)


@given(curves(), st.floats(1e-3, 1e12), st.floats(1, 1e3))
def test_more_work_never_takes_less_time(curve: RateCurve, place: float, factor: float) -> None:
    larger = place * factor
    assert place / rate_at(curve, place) <= larger / rate_at(curve, larger) * (1 + 1e-9)


# ---- what an op takes


def test_a_measured_op_takes_its_launch_and_its_bytes_at_the_measured_rate() -> None:
    device = machine(elementwise=traffic((3000, 1e6)))
    assert pytest.approx(0.5 + 0.003) == op_seconds(OP, device)


def test_a_measured_product_takes_its_flops_at_the_rate_of_its_flops_per_byte() -> None:
    device = machine(product=arithmetic((1, 1e6), (10, 3e6), (100, 4e6)))  # 30,000 FLOPs on 3,000 bytes
    assert pytest.approx(0.5 + 0.01) == op_seconds(PRODUCT, device)


def test_views_take_nothing_and_empty_memory_only_its_launch() -> None:
    device = machine(elementwise=traffic((3000, 1e6)))
    assert 0 == op_seconds(replace(OP, is_view=True), device)
    assert 0.5 == op_seconds(replace(OP, is_opaque=True), device)


@pytest.mark.parametrize("op", [replace(OP, dtype="bfloat16"), PRODUCT, replace(OP, is_random=True)])
def test_what_has_no_curve_of_its_kind_and_dtype_takes_the_roofline(op: Op) -> None:
    measured = machine(elementwise=traffic((3000, 1e6)))
    assert op_seconds(op, replace(measured, rates={})) == op_seconds(op, measured)


def test_adam_runs_at_its_measured_rate_and_a_stateless_optimizer_at_the_elementwise_one() -> None:
    device = machine(optimizer=traffic((1000, 1e6)), elementwise=traffic((1000, 1e7)))
    assert pytest.approx(2800e-6) == optimizer_seconds(400, 800, 400, device, dtype="float32")
    assert pytest.approx(120e-6) == optimizer_seconds(400, 0, 400, device, dtype="float32")
    roofline_s = optimizer_seconds(400, 800, 400, replace(device, rates={}))
    assert roofline_s == optimizer_seconds(400, 800, 400, device, dtype="bfloat16")


@pytest.mark.parametrize("name", device_names())
def test_the_profiles_that_come_with_the_planner_have_no_measured_rates(name: str) -> None:
    assert {} == load_device(name).rates


def test_without_measured_rates_op_times_are_the_roofline_as_ever() -> None:
    h100 = load_device("h100-80gb")
    assert pytest.approx(4e-6 + 3000 / (3.35e12 * 0.85)) == op_seconds(OP, h100)
    product = replace(PRODUCT, dtype="bfloat16", flops=10**12)
    assert pytest.approx(4e-6 + 1e12 / (989e12 * h100.matmul_efficiency)) == op_seconds(product, h100)
    attention = replace(product, name="aten._scaled_dot_product_flash_attention.default", is_causal=True)
    assert pytest.approx(4e-6 + 0.5e12 / (989e12 * h100.attention_efficiency)) == op_seconds(attention, h100)


# ---- kinds


@pytest.mark.parametrize(
    ("kind", "name", "flops", "is_causal"),
    [
        (Kind.PRODUCT, "aten.addmm.default", 1, False),
        (Kind.CONVOLUTION, "aten.convolution.default", 1, False),
        (Kind.CONVOLUTION_BACKWARD, "aten.convolution_backward.default", 1, False),
        (Kind.ATTENTION, "aten._scaled_dot_product_flash_attention.default", 1, False),
        (Kind.CAUSAL_ATTENTION, "aten._scaled_dot_product_flash_attention_for_cpu.default", 1, True),
        (Kind.CAUSAL_ATTENTION_BACKWARD, "aten._scaled_dot_product_flash_attention_backward.default", 1, True),
        (Kind.EXPONENTIAL, "aten.gelu_backward.default", 0, False),
        (Kind.ELEMENTWISE, "aten.tanh_backward.default", 0, False),
        (Kind.ELEMENTWISE, "aten.something_new.default", 0, False),
        (Kind.SCATTER, "aten.embedding_dense_backward.default", 0, False),
        (Kind.FILL, "aten.zeros_like.default", 0, False),
    ],
)
def test_ops_are_sorted_by_name(kind: Kind, name: str, flops: int, is_causal: bool) -> None:
    assert kind is kind_of(replace(OP, name=name, flops=flops, is_causal=is_causal))


def test_of_gathers_and_scatters_only_what_is_written_counts() -> None:
    assert [1000, 1000, 3000] == [counted_bytes(OP, kind) for kind in (Kind.GATHER, Kind.SCATTER, Kind.COPY)]
