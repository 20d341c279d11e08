"""Device profiles carry sensible numbers, each with its source."""

from pathlib import Path
from typing import Any

import pytest

import planner.device
from planner.costs.roofline import arithmetic_seconds
from planner.device import DEFAULT_DEVICE, device_names, load_device
from planner.errors import DeviceError
from planner.graph import Op, Phase
from planner.validation import check
from planner.yaml_source import load_yaml, parse_yaml

NUMBER_KEYS = {
    "memory",
    "usable_memory",
    "peak_flops_per_s",
    "memory_bytes_per_s",
    "host_link_bytes_per_s",
    "host_memory",
    "matmul_efficiency",
    "attention_efficiency",
    "bandwidth_efficiency",
    "launch_s",
}


POINT = {"flops_per_byte": 10, "flops_per_s": 1e12}


def rates(*points: dict[str, float]) -> dict[str, Any]:
    return {"product": {"float32": list(points)}}


def test_the_known_devices() -> None:
    expected = "a100-40gb a100-80gb b200 h100-80gb h200 l40s mi300x rtx-3090 rtx-4090"
    assert expected == " ".join(device_names())
    assert DEFAULT_DEVICE in device_names()


@pytest.mark.parametrize("name", device_names())
def test_profiles_that_come_with_the_planner_fit_the_schema(name: str) -> None:
    check(load_yaml(Path(planner.device.__file__).parent / "profiles" / f"{name}.yaml"), "device")


@pytest.mark.parametrize("name", device_names())
def test_every_number_of_a_profile_is_its_own_and_has_a_source(name: str) -> None:
    device = load_device(name)
    assert name == device.name
    assert set(device.sources) == NUMBER_KEYS
    assert not [source for source in device.sources.values() if "assumed from" in source]


@pytest.mark.parametrize("name", device_names())
def test_the_rates_of_a_profile_are_dense_and_in_order(name: str) -> None:
    device = load_device(name)
    rates = device.peak_flops_per_s
    assert rates["float64"] <= rates["float32"] <= rates["tf32"] < rates["bfloat16"] == rates["float16"]
    # A figure with sparsity would be twice as high; no listed part does more than 300 FLOPs a byte by much.
    assert rates["bfloat16"] / device.memory_bytes_per_s < 500
    assert device.host_link_bytes_per_s < 64e9 < device.memory_bytes_per_s


def test_the_default_device_has_the_figures_of_its_datasheet() -> None:
    device = load_device("h100-80gb")
    assert 80_000_000_000 == device.memory_bytes
    assert 989e12 == device.peak_flops_per_s["bfloat16"]
    assert 3.35e12 == device.memory_bytes_per_s


def test_a_described_device_says_what_it_borrowed() -> None:
    device = load_device({"memory": "24GiB", "memory_bytes_per_s": 1e12, "sources": {"memory": "the box"}})
    assert ("custom", 24 * 2**30, 1e12) == (device.name, device.memory_bytes, device.memory_bytes_per_s)
    assert load_device(DEFAULT_DEVICE).peak_flops_per_s == device.peak_flops_per_s
    assert "the box" == device.sources["memory"]
    assert "assumed from h100-80gb" == device.sources["peak_flops_per_s"]
    assert "memory_bytes_per_s" not in device.sources


def test_a_dtype_without_a_rate_runs_at_the_lowest_there_is() -> None:
    device = load_device({"memory": "24GB", "peak_flops_per_s": {"bfloat16": 2e14, "float16": 1e14}})
    op = Op(
        step=0,
        name="aten.mm.default",
        phase=Phase.FORWARD,
        module_fqn="",
        module_call=0,
        reads=(),
        writes=(),
        read_bytes=0,
        write_bytes=0,
        flops=10**14,
        dtype="float32",
        shape=(),
        is_view=False,
        is_random=False,
        is_causal=False,
        mutates_state=False,
        is_opaque=False,
    )
    assert pytest.approx(1 / device.matmul_efficiency) == arithmetic_seconds(op, device)


def test_a_profile_file_is_found_from_the_directory_given(tmp_path: Path) -> None:
    (tmp_path / "mine.yaml").write_text("memory: 10GB\n")
    assert ("mine", 10**10) == (
        load_device("mine.yaml", directory=tmp_path).name,
        load_device("mine.yaml", directory=tmp_path).memory_bytes,
    )


def test_a_profile_file_that_cannot_be_read_is_an_error_of_the_line_that_names_it() -> None:
    source = parse_yaml("model: {}\ndevice: absent.yaml\n", "model.yaml")
    with pytest.raises(DeviceError, match=r"^model\.yaml:2: device: absent\.yaml: no such file$"):
        load_device("absent.yaml", source=source)


@pytest.mark.parametrize(
    ("complaint", "device"),
    [
        ("unknown device 'h100'; did you mean 'h100-80gb'", "h100"),
        ("no such file", "absent.yaml"),
        ("'memory' is missing", {}),
        ("memory: '80' has no unit", {"memory": "80"}),
        ("device: host_memory: '64' has no unit", {"memory": "24GB", "host_memory": "64"}),
        ("host_memory: expected a size with a unit, such as 250GB, found 64", {"memory": "24GB", "host_memory": 64}),
        ("host_memory: a size must be at least one byte, or 0 for none", {"memory": "24GB", "host_memory": "-1GB"}),
        (
            "usable_memory: expected no more than the memory of 24GB, found 90GB",
            {"memory": "24GB", "usable_memory": "90GB"},
        ),
        ("expected at most 1, found 1.5", {"memory": "1GB", "matmul_efficiency": 1.5}),
        (
            "rate per second of at least 1e6, such as 3.35e12, found nan",
            {"memory": "1GB", "memory_bytes_per_s": float("nan")},
        ),
        ("rate per second of at least 1e6", {"memory": "1GB", "memory_bytes_per_s": 1e-300}),
        ("fraction from 0.001 to 1, found 1e-300", {"memory": "1GB", "bandwidth_efficiency": 1e-300}),
        ("rates.prodct: unknown key; did you mean 'product'", {"memory": "1GB", "rates": {"prodct": {}}}),
        ("rates.product.int8: unknown key", {"memory": "1GB", "rates": {"product": {"int8": [POINT]}}}),
        ("a list of 1 to 64 points", {"memory": "1GB", "rates": {"product": {"float32": []}}}),
        ("'flops_per_s' is missing", {"memory": "1GB", "rates": {"product": {"float32": [{"flops_per_byte": 1}]}}}),
        ("'flops_per_byte' is missing", {"memory": "1GB", "rates": {"product": {"float32": [{"flops_per_s": 1e9}]}}}),
        ("rate per second of at least 1e6", {"memory": "1GB", "rates": rates(POINT | {"flops_per_s": 1e3})}),
        ("expected a rate per second", {"memory": "1GB", "rates": rates(POINT | {"flops_per_s": float("inf")})}),
        ("expected flops_per_byte above the 10 before, found 10", {"memory": "1GB", "rates": rates(POINT, POINT)}),
        (
            "rates.product.float32[1]: at flops_per_s 1e+13 this would take less time than the smaller point before",
            {"memory": "1GB", "rates": rates(POINT, {"flops_per_byte": 20, "flops_per_s": 1e13})},
        ),
        ("reference_s: 'elementwise' is missing", {"memory": "1GB", "reference_s": {"product": 1e-3}}),
        ("a time in seconds above 1e-9", {"memory": "1GB", "reference_s": {"product": 0, "elementwise": 1e-3}}),
        ("one line and at most 100 characters, found 'a\\nb'", {"memory": "1GB", "name": "a\nb"}),
        ("one line and at most 100 characters, found '\\u202ea'", {"memory": "1GB", "name": "\u202ea"}),
        ("one line and at most 100 characters", {"memory": "1GB", "name": "a" * 101}),
        ("did you mean 'bfloat16'", {"memory": "1GB", "peak_flops_per_s": {"bfloat": 1e12}}),
    ],
)
def test_a_device_that_cannot_be_used_says_why(complaint: str, device: str | dict[str, Any]) -> None:
    with pytest.raises(DeviceError) as caught:
        load_device(device)
    assert complaint in str(caught.value)


@pytest.mark.parametrize(
    ("expected_bytes", "asked"), [(32 * 10**9, None), (5, 5), (0, 0), (0, "0"), (0, "0GB"), (10**9, "1GB")]
)
def test_plans_use_half_of_the_hosts_memory_unless_told_otherwise(expected_bytes: int, asked: str | int | None) -> None:
    assert expected_bytes == load_device({"memory": "24GB", "host_memory": "64GB"}).host_budget(asked)


def test_a_host_may_have_nothing_to_spare() -> None:
    assert 0 == load_device({"memory": "24GB", "host_memory": "0GB"}).host_budget(None)
