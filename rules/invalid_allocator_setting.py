"""A setting that PyTorch's allocator refuses, with an error that comes late and says little."""

from collections.abc import Iterator

from planner.configs.allocator import AllocatorOption, allocator_options
from planner.configs.config import Config, report
from planner.configs.keys import is_typo
from planner.diagnostics import Edit, Fix, FixSafety, Place, Report, Rule, Severity, Source

_BOOLS = (
    "expandable_segments",
    "release_lock_on_cudamalloc",
    "release_lock_on_hipmalloc",
    "pinned_use_cuda_host_register",
    "pinned_use_hip_host_register",
    "pinned_use_background_threads",
    "graph_capture_record_stream_reuse",
    "pinned_free_catch_all",
    "throw_on_cudamalloc_oom",
)
_NUMBERS = (
    "max_split_size_mb",
    "max_non_split_rounding_mb",
    "garbage_collection_threshold",
    "pinned_num_register_threads",
    "pinned_reserve_segment_size_mb",
    "pinned_max_round_threshold_mb",
    "pinned_max_cached_size_mb",
    "large_segment_size_mb",
    "per_process_memory_fraction",
)
_NAMES = (*_BOOLS, *_NUMBERS, "backend", "roundup_power2_divisions", "roundup_bypass_threshold_mb")
_LEAST_SPLIT_MB = 20  # what the allocator takes from the driver at a time: kLargeBuffer


def find(config: Config) -> Iterator[Report]:
    """A report for each option that PyTorch does not take."""
    for option in allocator_options(config):
        if option.name not in _NAMES:
            yield _unknown(option)
        elif option.name in _BOOLS and option.value not in ("True", "False"):
            yield _bool(option)
        elif option.name in _NUMBERS and (reason := _wrong_number(option)):
            yield report(option.value_place, f"{option.name} {reason}, and PyTorch refuses {option.value!r}")


def _unknown(option: AllocatorOption) -> Report:
    name, equals, value = option.name.partition("=")
    if equals and name.strip() in _NAMES and option.value is None:
        text = f"{name.strip()}:{value.strip()}"
        return report(
            option.place,
            "PyTorch's allocator separates name and value by a colon, and refuses this",
            help=f"write {text}",
            fix=Fix(title=f"Write {text}", safety=FixSafety.SAFE, edits=(_edit(option.place, text),)),
        )
    near = next((known for known in _NAMES if is_typo(option.name, known)), "")
    return report(
        option.place,
        f"PyTorch's allocator does not know {option.name!r} and raises an error when it is first used",
        help=f"did you mean {near!r}?" if near else "",
    )


def _bool(option: AllocatorOption) -> Report:
    meant = {"true": "True", "1": "True", "on": "True", "false": "False", "0": "False", "off": "False"}
    text = meant.get((option.value or "").lower(), "")
    fix = None
    if text:
        fix = Fix(title=f"Write {text}", safety=FixSafety.SAFE, edits=(_edit(option.value_place, text),))
    return report(
        option.value_place,
        f"{option.name} takes True or False, written so, and PyTorch refuses {option.value!r}",
        help=f"write {text}" if text else "",
        fix=fix,
    )


def _wrong_number(option: AllocatorOption) -> str:
    try:
        number = float(option.value or "")
    except ValueError:
        return "takes a number"
    if option.name == "max_split_size_mb" and number < _LEAST_SPLIT_MB:
        return f"has to be more than {_LEAST_SPLIT_MB}"
    if option.name == "garbage_collection_threshold" and not 0 < number < 1:
        return "is a share between 0 and 1"
    return ""


def _edit(place: Place, text: str) -> Edit:
    return Edit(document=place.document, start=place.start, end=place.end, text=text)


RULE = Rule(
    code="AL401",
    name="invalid-allocator-setting",
    severity=Severity.ERROR,
    summary="An option of PYTORCH_CUDA_ALLOC_CONF that PyTorch does not know, or a value that it does not take.",
    why="The variable is read when the allocator is first used. `expandable_segments:true` is an error, as only True "
    "and False are words that it knows; so are `=` instead of `:` and options that are misspelt.",
    instead="`PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True`; options are separated by commas.",
    sources=(
        Source(title="PyTorch 2.13", where="c10/core/AllocatorConfig.h: ConfigTokenizer"),
        Source(title="PyTorch 2.13", where="c10/cuda/CUDAAllocatorConfig.cpp: CUDAAllocatorConfig::parseArgs"),
    ),
    find=find,
    fix=FixSafety.SAFE,
)
