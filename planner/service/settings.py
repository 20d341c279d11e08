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
        longest_time_limit_s: What a request may ask the solver itself to spend.
    """

    wall_s: float = 900.0
    memory_bytes: int = 16 * 1024 * MIB
    longest_time_limit_s: float = 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """What an operator decides.

    Attributes:
        database: Its URL.
        allowed: Functions and files that specs from the network may name.
        needs_tokens: Whether requests must bring a token.
        limits: What a solve may take.
        largest_body_bytes: Of a request.
        requests_per_minute: From one client.
    """

    database: str
    allowed: frozenset[str] = frozenset()
    needs_tokens: bool = False
    limits: SolveLimits = SolveLimits()
    largest_body_bytes: int = 4 * MIB
    requests_per_minute: int = 600


def as_text(settings: Settings) -> str:
    """The settings as text, for processes that are started with them."""
    return json.dumps({**asdict(settings), "allowed": sorted(settings.allowed)})


def from_text(text: str) -> Settings:
    """The settings that `as_text` made text of."""
    data = json.loads(text)
    return Settings(**{**data, "allowed": frozenset(data["allowed"]), "limits": SolveLimits(**data["limits"])})
