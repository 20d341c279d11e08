"""What `planner verify` prints."""

from typing import TYPE_CHECKING, Any

from planner.reporting.tables import duration, gigabytes, percent, table, wrapped

if TYPE_CHECKING:
    from planner.verification import Verification


def verification_text(found: "Verification") -> str:
    """The comparison for a person: equality, peak and time with and without the plan."""
    rows = [
        ["peak memory", gigabytes(found.baseline_peak_bytes), gigabytes(found.measured_peak_bytes)],
        ["step", duration(found.baseline_step_s), duration(found.step_s)],
    ]
    if found.measured_reserved_bytes:
        rows.append(["reserved by the allocator", "", gigabytes(found.measured_reserved_bytes)])
    if found.measured_host_bytes or found.predicted_host_bytes:
        rows.append(["offloaded to the host", "", gigabytes(found.measured_host_bytes)])
    equality = [
        f"Loss        {'the same bits' if found.loss_equal else 'DIFFERS'}",
        "Gradients   " + ("the same bits" if found.gradients_equal else f"DIFFER, first in {found.first_difference}"),
        f"Predicted   peak {gigabytes(found.predicted_peak_bytes)}, off by {percent(abs(found.prediction_error))}; "
        f"budget {gigabytes(found.budget_bytes)}",
    ]
    if found.predicted_host_bytes:
        equality.append(f"            {gigabytes(found.predicted_host_bytes)} offloaded to the host")
    verdict = ["Verified: " + ("; ".join(found.failures) if found.failures else "everything holds")]
    if found.failures:
        verdict = ["NOT verified: " + "; ".join(found.failures)]
    notes = [line for note in found.notes for line in wrapped(f"Note: {note}")]
    parts = [
        [f"Measured on {found.device}"],
        table(["", "without", "with the plan"], rows),
        equality,
        notes,
        verdict,
    ]
    return "\n\n".join("\n".join(part) for part in parts if part)


def verification_document(found: "Verification") -> dict[str, Any]:
    """The comparison for a program. Sizes in bytes, times in seconds (medians)."""
    return {
        "device": found.device,
        "budget_bytes": found.budget_bytes,
        "predicted_peak_bytes": found.predicted_peak_bytes,
        "measured_peak_bytes": found.measured_peak_bytes,
        "measured_reserved_bytes": found.measured_reserved_bytes,
        "predicted_host_bytes": found.predicted_host_bytes,
        "measured_host_bytes": found.measured_host_bytes,
        "baseline_peak_bytes": found.baseline_peak_bytes,
        "prediction_error": found.prediction_error,
        "gradients_equal": found.gradients_equal,
        "loss_equal": found.loss_equal,
        "step_s": found.step_s,
        "baseline_step_s": found.baseline_step_s,
        "fallbacks": found.fallbacks,
        "failures": list(found.failures),
        "notes": list(found.notes),
    }
