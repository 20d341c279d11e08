"""The link between a device and its host: what a copy of one tensor takes."""

from collections.abc import Iterable
from dataclasses import dataclass

_NS_PER_S = 1_000_000_000
# Host memory for a tensor begins at a multiple of this: copy engines are at their fastest from there on.
HOST_ALIGNMENT_BYTES = 256
# Staging, unless a plan or a caller says otherwise: so many times the largest tensor that leaves. There is much room
# early in forward, and little in backward.
STAGED_OUT = 16
STAGED_BACK = 4
# And a copy is waited for so many packings later at the latest, and the first come back so many before they are needed.
# Packings of parameters count: these are about three layers of a transformer.
LEAD = 128


@dataclass(frozen=True, slots=True, kw_only=True)
class HostLink:
    """What moves tensors to the host and back: one copy at a time in each direction, and both directions at once.

    Left out: that copies slow the computation down by the memory bandwidth they take.

    Attributes:
        bytes_per_s: in each direction.
        launch_ns: what each copy takes beside its bytes.
        budget_bytes: of host memory that a plan may use.
    """

    bytes_per_s: float
    launch_ns: int
    budget_bytes: int

    def copy_ns(self, size_bytes: int) -> int:
        """Time of one copy in one direction."""
        return self.launch_ns + round(size_bytes / self.bytes_per_s * _NS_PER_S)


@dataclass(frozen=True, slots=True, kw_only=True)
class Staging:
    """What of the device's memory copies may hold.

    Attributes:
        out_bytes: on their way to the host.
        back_bytes: on their way back before they are needed.
        lead: a tensor's source is let go after so many more packings, at the latest; and the first tensors begin to
            come back when that one is unpacked which was packed so many packings later.
    """

    out_bytes: int
    back_bytes: int
    lead: int

    @staticmethod
    def of(
        sizes_bytes: Iterable[int], *, out: int = STAGED_OUT, back: int = STAGED_BACK, lead: int = LEAD
    ) -> "Staging":
        """Staging for tensors of these sizes: so many times the largest in each direction."""
        largest_bytes = max(sizes_bytes, default=0)
        return Staging(out_bytes=out * largest_bytes, back_bytes=back * largest_bytes, lead=lead)


def host_bytes(size_bytes: int) -> int:
    """What a tensor takes of host memory."""
    return -(-size_bytes // HOST_ALIGNMENT_BYTES) * HOST_ALIGNMENT_BYTES
