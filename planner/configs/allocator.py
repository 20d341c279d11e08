"""The settings of PyTorch's CUDA caching allocator in a config's environment, each with its place.

Source: c10/core/AllocatorConfig.h and c10/cuda/CUDAAllocatorConfig.{h,cpp} of PyTorch 2.13, and of 2.0 to 2.9 for what
they had besides.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from planner.configs.config import Config, Setting
from planner.diagnostics import Place

VARIABLES = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF", "PYTORCH_HIP_ALLOC_CONF")


@dataclass(frozen=True, slots=True, kw_only=True)
class AllocatorOption:
    """One option of the variable, such as expandable_segments:True.

    Attributes:
        name: Before the colon.
        value: After it, without spaces; None where there is no colon.
        place: The whole option.
        value_place: The value; the option where there is none.
    """

    name: str
    value: str | None
    place: Place
    value_place: Place


def allocator_options(config: Config) -> Iterator[AllocatorOption]:
    """The options of the allocator that a config's environment sets; none where a part of it is not known."""
    for variable in VARIABLES:
        setting = config.environment.get(variable)
        if setting is not None and isinstance(setting.value, str) and "$" not in setting.value:
            yield from _options(setting, setting.value)


def option(config: Config, name: str) -> AllocatorOption | None:
    """The allocator's option of that name, or None."""
    return next((found for found in allocator_options(config) if found.name == name), None)


def _options(setting: Setting, text: str) -> Iterator[AllocatorOption]:
    start = setting.document.text.find(text, setting.node.start, setting.node.end)
    for offset, part in _parts(text):
        name, colon, value = part.partition(":")
        if start < 0:  # written with escapes: the variable's value as a whole is meant
            whole = setting.at_value
            yield AllocatorOption(name=name.strip(), value=value.strip() or None, place=whole, value_place=whole)
            continue
        begin = start + offset + len(part) - len(part.lstrip())
        place = _place(setting, begin, begin + len(part.strip()))
        value_begin = start + offset + len(name) + 1 + len(value) - len(value.lstrip())
        value_place = _place(setting, value_begin, value_begin + len(value.strip())) if colon else place
        found = value.strip() if colon else None
        yield AllocatorOption(name=name.strip(), value=found, place=place, value_place=value_place)


def _parts(text: str) -> Iterator[tuple[int, str]]:
    """The parts between commas that are not in brackets, each with its offset."""
    begin = depth = 0
    for position, character in enumerate(text):
        depth += {"[": 1, "]": -1}.get(character, 0)
        if character == "," and depth == 0:
            yield begin, text[begin:position]
            begin = position + 1
    if text[begin:].strip():
        yield begin, text[begin:]


def _place(setting: Setting, start: int, end: int) -> Place:
    return Place(document=setting.document, start=start, end=end, key=setting.key)
