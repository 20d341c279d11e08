"""The devices and presets that come with the planner, as text and as plain data."""

from collections.abc import Iterable
from dataclasses import asdict
from typing import Any

from planner.device import DeviceProfile
from planner.presets import Preset
from planner.reporting.tables import gigabytes, table

_TERA, _GIGA = 1e12, 1e9


def devices_text(profiles: Iterable[DeviceProfile]) -> str:
    """One line per device, with its peak rates."""
    return "\n".join(
        table(
            ("Device", "memory", "bfloat16", "bandwidth", "host link"),
            [
                (
                    profile.name,
                    gigabytes(profile.memory_bytes),
                    f"{profile.peak_flops_per_s.get('bfloat16', 0) / _TERA:,.0f} TFLOP/s",
                    f"{profile.memory_bytes_per_s / _TERA:.2f} TB/s",
                    f"{profile.host_link_bytes_per_s / _GIGA:.0f} GB/s",
                )
                for profile in profiles
            ],
        )
    )


def presets_text(presets: Iterable[Preset]) -> str:
    """One line per preset; where its numbers come from is in `preset_document`."""
    return "\n".join(
        table(
            ("Preset", "transformers class"),
            [(preset.name, preset.transformers) for preset in presets],
            left=2,
        )
    )


def device_document(profile: DeviceProfile) -> dict[str, Any]:
    """One device profile as `planner devices --json` prints it."""
    return {
        **asdict(profile),
        "peak_flops_per_s": dict(profile.peak_flops_per_s),
        "sources": dict(profile.sources),
    }


def preset_document(preset: Preset) -> dict[str, Any]:
    """One preset as `planner presets --json` prints it."""
    return {**asdict(preset), "config": dict(preset.config)}
