"""Autocast of a device, on devices without one too, such as meta, where it is always off."""

from contextlib import AbstractContextManager, nullcontext

import torch


def autocast_state(device_type: str) -> tuple[bool, torch.dtype | None]:
    """Whether autocast is on for the device, and the dtype it casts to; off and None where there is none."""
    if not torch.amp.is_autocast_available(device_type):
        return False, None
    return torch.is_autocast_enabled(device_type), torch.get_autocast_dtype(device_type)


def is_autocast_on(device_type: str) -> bool:
    """Whether autocast is on for the device."""
    return torch.amp.is_autocast_available(device_type) and torch.is_autocast_enabled(device_type)


def no_autocast(device_type: str) -> AbstractContextManager[object]:
    """While active, autocast is off for the device."""
    if not torch.amp.is_autocast_available(device_type):
        return nullcontext()
    return torch.autocast(device_type, enabled=False)
