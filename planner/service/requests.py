"""What a solve is asked for, checked before it is accepted, and the hash by which the same question is known."""

import hashlib
import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from importlib.metadata import PackageNotFoundError, version

from planner import __version__
from planner.device import DeviceProfile, device_names, load_device
from planner.errors import DeviceError
from planner.spec import RunSpec, check_traceable, parse_spec
from planner.units import as_bytes
from planner.validation import did_you_mean

SPEC_NAME = "spec"  # what errors call a spec that came without a file's name
_DECIDING = ("torch", "ortools", "transformers", "networkx")  # what an answer depends on besides the planner


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanRequest:
    """A question, as it was asked.

    Attributes:
        spec: YAML text.
        name: What the spec is called, such as its file's name.
        budget: A size with a unit, such as "40GB".
        host_budget: The same for offloaded tensors; None for half of the device's host memory.
        device: A name from `planner devices`; None for the spec's own.
        gap: When to stop: the relative distance to the bound.
        time_limit_s: When to stop at the latest.
    """

    spec: str
    name: str = SPEC_NAME
    budget: str
    host_budget: str | None = None
    device: str | None = None
    gap: float
    time_limit_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanQuestion:
    """A request, understood."""

    run: RunSpec
    profile: DeviceProfile
    budget_bytes: int
    host_budget_bytes: int


def understand(request: PlanRequest, *, allows: Callable[[str], bool]) -> PlanQuestion:
    """What a request asks.

    Raises:
        SpecError: The spec does not fit, or names what is not allowed.
        DeviceError: There is no such device.
        UnitError: A budget cannot be read.
    """
    run = parse_spec(request.spec, request.name, allows=allows)
    check_traceable(run)
    # A mapping or a known name: neither is the path of a file, unless the operator allows it.
    profile = load_device(run.device) if request.device is None else device_named(request.device)
    return PlanQuestion(
        run=run,
        profile=profile,
        budget_bytes=as_bytes(request.budget),
        host_budget_bytes=profile.host_budget(request.host_budget),
    )


def plan_file(name: str) -> str:
    """What the plan of a spec of that name is called."""
    return f"{name.removesuffix('.yaml')}.plan.yaml"


def device_named(name: str) -> DeviceProfile:
    """The device of that name among those that come with the planner: never one in a file.

    Raises:
        DeviceError: There is none.
    """
    if name not in device_names():
        hint = did_you_mean(name, device_names(), plural="known devices")
        raise DeviceError(f"unknown device {name!r}", path="device", hint=hint)
    return load_device(name)


def key_of(request: PlanRequest, question: PlanQuestion) -> str:
    """The hash of all that decides the answer: the spec as data, the device, budgets, limits and versions."""
    run = question.run
    content = {
        "run": {name: value for name, value in asdict(run).items() if name not in ("path", "lines", "device")},
        "device": asdict(question.profile),
        "budget_bytes": question.budget_bytes,
        "host_budget_bytes": question.host_budget_bytes,
        "gap": request.gap,
        "time_limit_s": request.time_limit_s,
        "versions": versions(),
    }
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=str).encode()).hexdigest()


@cache
def versions() -> Mapping[str, str]:
    """The releases that an answer depends on."""
    found: dict[str, str] = {"planner": __version__}
    for package in _DECIDING:
        try:
            found[package] = version(package)
        except PackageNotFoundError:
            found[package] = "none"
    return found
