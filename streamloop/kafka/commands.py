"""What a poller is told, how it is set up, and what it shows of itself. Plain data.

It is apart from the poller so that the app and the tests can name it; nothing here does anything.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, Protocol

from streamloop.engine import events as ev
from streamloop.kafka.positions import StartPolicy
from streamloop.telemetry.durations import Durations

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Callable, Mapping

    from streamloop.telemetry.client_spans import ClientSpans

__all__ = [
    "Close",
    "Command",
    "GroupProtocol",
    "HeartbeatStamp",
    "PollerOptions",
    "PollerStats",
    "PollerStatus",
    "ResetTopic",
    "StopFetching",
]

GroupProtocol = Literal["consumer", "classic"]


class HeartbeatStamp(Protocol):
    """The engine's sign of life."""

    stamp: float
    """When its event loop last turned (monotonic seconds)."""


@dataclass(frozen=True, slots=True)
class StopFetching:
    """Fetch nothing any more; stay in the group."""


@dataclass(frozen=True, slots=True)
class Close:
    """Commit what is acknowledged, leave the group, and end."""


@dataclass(frozen=True, slots=True)
class ResetTopic:
    """The topic was recreated: its partitions start anew, unless they are of ``topic_id`` already."""

    topic: str
    topic_id: str


Command = ev.Commit | ev.Hold | ev.Seek | ev.Quiet | StopFetching | Close | ResetTopic


@dataclass(frozen=True, slots=True)
class PollerOptions:
    """Times in seconds.

    ``protocol``: 'auto' takes 'consumer' where the broker has it. ``policy``: where a topic's partitions
    start. ``stall_after``: a turn that is older than this is a stall; at most half the session time-out.
    """

    protocol: Literal["auto", "consumer", "classic"] = "auto"
    policy: Callable[[str], StartPolicy] = lambda _topic: StartPolicy()
    max_fetch: int = 500
    dwell: float = 0.5
    revoke_wait: float = 5.0
    engine_silent_after: float = 2.0
    stall_after: float = 10.0
    spans: ClientSpans | None = None
    """What traces polls and commits."""
    group: str = "unknown"
    """As it is in the commit metadata."""


@dataclass(slots=True)
class PollerStats:
    """Plain counters, written by the poller's thread alone."""

    rebalances: Counter[str]
    """assigned, revoked, lost."""
    commits: Counter[str]
    """Partitions by what became of their commit: ok, error, refused, rebalance, stale."""
    out_of_range: Counter[str]
    """Decisions about positions that the broker did not have."""
    errors: Counter[str]
    """By librdkafka's name of the error."""
    commit_durations: dict[int, Durations]
    """How long commits took until the broker's answer, by its error code."""
    polls: Durations = field(default_factory=Durations)
    """How long it took to get messages, of the calls that got some."""
    last_commit: float | None = None
    """When the broker last confirmed a commit (epoch seconds); None: not yet."""
    turns: int = 0
    stalls: int = 0


@dataclass(frozen=True, slots=True)
class PollerStatus:
    """What a poller is doing, for /status."""

    name: str
    protocol: str | None
    assigned: tuple[str, ...]
    held: Mapping[str, tuple[str, ...]]
    """By partition: why it is not fetched."""
    detail: str
    stalled: bool
    dirty_commits: int
    messages: int
    bytes: int
    dropped: int
    """Messages that had no open epoch."""
    pauses: int
    resumes: int
