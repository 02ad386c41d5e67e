"""What a plan is made from: the work as it comes, and the limits that it meets.

Plain values, each with its unit, its default and where it came from. Judges single values only: what does
not fit together is found by the calculation. Called by ``streamloop plan``.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass, field, fields
from typing import Final, Literal

from streamloop.errors import ConfigurationError
from streamloop.settings.model import MIB

MEASURED_FRAMEWORK_CPU: Final = 1 / 34_799
"""Seconds of CPU a message: one core handled 34,799 messages/s of a handler that only awaits a timer, with
1,000 at a time (README, 'How fast'). A floor: what a handler itself computes comes on top."""

Ordering = Literal["key", "partition", "none"]


class HandlerKind(enum.Enum):
    """What a handler does with its time."""

    ASYNC = "async"
    """``async def`` that waits for others: thousands share one core."""
    THREAD = "thread"
    """``def`` that waits for others: each takes a thread."""
    CPU = "cpu"
    """It computes: one at a time fills a core."""


class Source(enum.Enum):
    """Where an input came from."""

    GIVEN = "given"
    MEASURED = "measured"
    ASSUMED = "assumed"


@dataclass(frozen=True, slots=True)
class Inputs:
    """What a plan is made from. Times in seconds, sizes in bytes, rates in messages a second.

    ``rate``: messages of the source topics, for the whole group. ``partitions``: of the source topics
    together. ``downstream_calls``: how many handlers of the whole group may call what they depend on at once.
    ``downstream_rate``: how many calls a second it takes. ``retry_budget``: time from a message's first
    failure in which it is retried. ``cpu_per_message``: CPU time of the whole process for one message;
    None: the handler's mean for CPU, and otherwise what streamloop itself takes. ``handler_bytes``: what a
    running handler holds besides its message. ``memory_limit``: of one process. ``sources``: where each
    input came from.
    """

    handler_mean: float
    handler_p99: float
    rate: float
    partitions: int
    kind: HandlerKind = HandlerKind.ASYNC
    ordering: Ordering = "key"
    message_bytes: int = 1024
    largest_message_bytes: int = MIB
    handler_bytes: int = 64 * 1024
    downstream_calls: int | None = None
    downstream_rate: float | None = None
    retry_budget: float | None = None
    cpu_per_message: float | None = None
    memory_limit: int | None = None
    min_replicas: int = 2
    sources: dict[str, Source] = field(default_factory=dict, compare=False)

    def __post_init__(self) -> None:
        """Raises ConfigurationError, a sentence for each value that can't be."""
        problems = [
            f"{option(name)} must be more than 0."
            for name in ("handler_mean", "handler_p99", "rate")
            if not (math.isfinite(getattr(self, name)) and getattr(self, name) > 0)
        ]
        problems += [
            f"{option(name)} must be 1 or more."
            for name in ("partitions", "message_bytes", "min_replicas")
            if getattr(self, name) < 1
        ]
        problems += [
            f"{option(name)} must be more than 0, or left out."
            for name in (
                "downstream_calls",
                "downstream_rate",
                "retry_budget",
                "cpu_per_message",
                "memory_limit",
            )
            if getattr(self, name) is not None and not getattr(self, name) > 0
        ]
        if not problems and self.handler_p99 < self.handler_mean:
            problems.append(
                f"--handler-p99 ({self.handler_p99:g} s) is below --handler-mean ({self.handler_mean:g} s): "
                f"the time "
                "within which 99 of 100 handlers end is hardly ever shorter than the mean. Were the two "
                "exchanged?"
            )
        if problems:
            raise ConfigurationError("\n".join(problems))

    @property
    def cpu(self) -> float:
        """Seconds of CPU for one message; a handler that computes takes at least its own time."""
        floor = self.handler_mean if self.kind is HandlerKind.CPU else 0.0
        if self.cpu_per_message is not None:
            return max(self.cpu_per_message, floor)
        return floor or MEASURED_FRAMEWORK_CPU

    def source(self, name: str) -> Source:
        """Where the input came from."""
        return self.sources.get(name, Source.ASSUMED)


NAMES: Final = tuple(each.name for each in fields(Inputs) if each.name != "sources")


def option(name: str) -> str:
    """How an input is written on the command line."""
    spelled = {"largest_message_bytes": "largest-message", "message_bytes": "message-size"}
    spelled |= {"handler_bytes": "handler-memory", "downstream_calls": "downstream-limit"}
    spelled |= {"downstream_rate": "downstream-limit"}
    return "--" + spelled.get(name, name.replace("_", "-"))
