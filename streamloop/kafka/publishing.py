"""What the publisher is asked and what it answers: requests, reports, counters. Plain data.

Shared by the publisher and its parts, and by all who submit to it.
"""

from __future__ import annotations

import enum
from dataclasses import dataclass, field

from streamloop.telemetry.durations import Durations

MOST_SENDS = 200
"""Pairs of topic and error code whose sends are counted by themselves; the others are those of 'other'."""
OTHER = "other"


@dataclass(slots=True)
class PublishRequest:
    """One record to publish. ``id`` names it in reports; no other outstanding request may have the same.

    ``partition`` -1 means by key, as the configuration's ``partitioner`` says. A ``value`` of None is a null
    (a tombstone). The record is stamped with the time of its sending.
    """

    id: int
    topic: str
    partition: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]] = field(default_factory=list)


class ReportKind(enum.Enum):
    """What became of a request."""

    DELIVERED = "delivered"
    """The broker confirmed it. Ends the request."""
    TOO_LARGE = "too_large"
    """The record alone is too large for the target. Ends the request: shrink it and submit it again."""
    REFUSED = "refused"
    """The broker (or the client) refuses this very record. Ends the request."""
    BLOCKED = "blocked"
    """The target takes nothing now. The request stays outstanding and is tried for ever."""
    UNBLOCKED = "unblocked"
    """The target takes records again. The request is on its way; another report follows."""


@dataclass(frozen=True, slots=True)
class Report:
    """What became of a request. ``code`` is the Kafka error code or 0; ``reason`` is empty when delivered.

    ``partition`` and ``offset`` are where the record went, -1 where that is not known. Whatever BLOCKED said,
    DELIVERED, TOO_LARGE and REFUSED end the request without an UNBLOCKED before.
    """

    id: int
    kind: ReportKind
    topic: str
    partition: int
    offset: int
    code: int
    reason: str


@dataclass(slots=True)
class PublishCounters:
    """Plain integers with one writer, the publisher's thread. Others may read them at any time."""

    published: int = 0
    failures: dict[int, int] = field(default_factory=dict)
    """Failed sends by Kafka error code (a record that is tried again counts each time)."""
    replaced_producers: int = 0
    outstanding: int = 0
    probes: int = 0
    sent_alone: int = 0
    late_reports: int = 0
    """Reports of requests that were cancelled, or of a Producer that was replaced: dropped."""
    sends: dict[tuple[str, int], Durations] = field(default_factory=dict)
    """By topic and Kafka error code (0: confirmed): how long sends took until their report."""

    def sent(self, topic: str, code: int, seconds: float) -> None:
        """A send has its report. Handlers name topics as they like, so that there is a limit."""
        durations = self.sends.get((topic, code))
        if durations is None:
            if len(self.sends) >= MOST_SENDS:
                topic = OTHER
            durations = self.sends.setdefault((topic, code), Durations())
        durations.observe(seconds)
