"""What an operator decides, with the limits that hold for everyone."""

import json
from dataclasses import asdict, dataclass

MIB = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class SolveLimits:
    """What one solve may take; whichever is reached first ends it.

    Attributes:
        wall_s: Seconds from its begin. A model of 126 layers is traced, solved and rehearsed in some two minutes.
        memory_bytes: Of address space. torch and a solver take some 4 GB of it before they begin.
        cores: That all its threads together may keep busy, on average.
    """

    wall_s: float = 900.0
    memory_bytes: int = 16 * 1024 * MIB
    cores: float = 4.0

    @property
    def cpu_s(self) -> float:
        """Of CPU time, of all its threads together."""
        return self.cores * self.wall_s

    @property
    def longest_time_limit_s(self) -> float:
        """What a request may ask the solver itself to spend.

        As much again for tracing and rehearsals before and after, and for tracing what would fit when nothing does.
        """
        return self.wall_s / 3


@dataclass(frozen=True, slots=True, kw_only=True)
class HelperLimits:
    """What answering at once may take.

    Attributes:
        count: Processes of each server that answer. One client has all but one of them at most.
        memory_bytes: Of address space, of one of them: the largest spec takes an eighth of it.
        deadline_s: For one answer. Configs that people write take milliseconds.
        most_waiting: Questions that may wait for one of them. Each holds one of the 40 threads that also look up
            plans.
        most_waiting_of_one: The same of one client: as many as a script has connections.
        longest_wait_s: How long they may.
    """

    count: int = 3
    memory_bytes: int = 1024 * MIB
    deadline_s: float = 10.0
    most_waiting: int = 24
    most_waiting_of_one: int = 16
    longest_wait_s: float = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueLimits:
    """How many plans may be asked for that are not done yet.

    Attributes:
        of_one: Asked for by one client.
        of_all: By all. With specs of the largest size they take a gigabyte of the disk.
    """

    of_one: int = 100
    of_all: int = 1000


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What an operator decides.

    Attributes:
        database: Its URL.
        allowed: Functions and files that specs from the network may name.
        needs_tokens: Whether requests must bring a token.
        limits: What a solve may take.
        helpers: What answering at once may take.
        largest_body_bytes: Of a request.
        body_deadline_s: For a request's body to arrive. The largest one then needs 1.1 Mbit/s.
        requests_per_minute: From one client.
        queue: How long the queue may get.
        streams_per_client: Plans that one client may watch at once, in each server process.
        longest_stream_s: After which a browser has to ask again, so that a token that was revoked watches no longer.
    """

    database: str
    allowed: frozenset[str] = frozenset()
    needs_tokens: bool = False
    limits: SolveLimits = SolveLimits()
    helpers: HelperLimits = HelperLimits()
    largest_body_bytes: int = 4 * MIB
    body_deadline_s: float = 30.0
    requests_per_minute: int = 600
    queue: QueueLimits = QueueLimits()
    streams_per_client: int = 20
    longest_stream_s: float = 600.0


def as_text(settings: Settings) -> str:
    """The settings as text, for processes that are started with them."""
    return json.dumps({**asdict(settings), "allowed": sorted(settings.allowed)})


def from_text(text: str) -> Settings:
    """The settings that `as_text` made text of."""
    data = json.loads(text)
    records = {
        "limits": SolveLimits(**data["limits"]),
        "helpers": HelperLimits(**data["helpers"]),
        "queue": QueueLimits(**data["queue"]),
    }
    return Settings(**{**data, **records, "allowed": frozenset(data["allowed"])})
