"""What a loop is doing, as plain objects: for health checks, a status page, a terminal view and tests."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final


@dataclass(frozen=True, slots=True)
class Health:
    """``live``: nothing is stuck for good. ``ready``: it has started and may take messages. Why not, if not.

    Live does not depend on the broker, and ready does not depend on an assignment: a member without
    partitions is ready, and one whose broker is away lives.
    """

    live: bool
    ready: bool
    reasons: tuple[str, ...] = ()


NOT_RUNNING: Final = Health(live=False, ready=False, reasons=("the loop is not running",))


@dataclass(frozen=True, slots=True)
class Holder:
    """The message that holds a partition's commit position. ``age`` in seconds since it was received."""

    offset: int
    state: str
    attempt: int
    age: float | None


@dataclass(frozen=True, slots=True)
class PartitionStatus:
    """One assigned partition. ``held``: reason to what there is to say about it."""

    topic: str
    partition: int
    consumer: str
    epoch: int
    committable: int
    position: int
    gap: int
    buffered: int
    buffered_bytes: int
    running: int
    publishing: int
    held: dict[str, str]
    holder: Holder | None
    end: int | None = None
    """The offset after the partition's last message; None: not known."""
    lag: int | None = None
    """Offsets from the commit position to the end."""
    lag_seconds: float | None = None
    """Age of the oldest message that is not acknowledged; in a retry topic since it was due."""


@dataclass(frozen=True, slots=True)
class RunningHandler:
    """A handler that runs: its message, and for how many seconds.

    ``waits_for``: the topics that it publishes to and has no confirmation of; empty: none.
    """

    topic: str
    partition: int
    offset: int
    age: float
    waits_for: str = ""


@dataclass(frozen=True, slots=True)
class ConsumerStatus:
    """One @consumer. ``slowest``: seconds that the oldest running handler has run."""

    name: str
    topics: tuple[str, ...]
    ordering: str
    concurrency: int
    running: int
    waiting: int
    slowest: float
    counts: dict[str, int]
    failed_by_type: dict[str, int]
    oldest: tuple[RunningHandler, ...] = ()
    """The handlers that have run longest, some of them."""


@dataclass(frozen=True, slots=True)
class IntakeStatus:
    """One Kafka Consumer: its group, protocol and buffer."""

    name: str
    group: str
    protocol: str
    topics: tuple[str, ...]
    buffered: int
    buffered_bytes: int
    high_watermark_messages: int
    high_watermark_bytes: int
    peak_messages: int
    peak_bytes: int
    last_turn_age: float
    detail: str = ""


@dataclass(frozen=True, slots=True)
class PausedStatus:
    """What an operator holds: everything (no topic), a topic (no partition) or a partition.

    ``scope``: group or member. ``since``: epoch seconds.
    """

    scope: str
    topic: str | None
    partition: int | None
    by: str
    since: float
    reason: str = ""


@dataclass(frozen=True, slots=True)
class ControlStatus:
    """The control topic as this member sees it.

    ``state``: starting, on, away (no broker answers; it is tried again) or off. ``detail`` says why, when it
    is not on; and what does not work, when it is.
    """

    topic: str
    state: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class LoopStatus:
    """What a loop is doing. ``held_seconds``: partition-seconds by reason, present holds included."""

    group: str
    member: str
    state: str
    uptime: float
    intakes: tuple[IntakeStatus, ...]
    consumers: tuple[ConsumerStatus, ...]
    partitions: tuple[PartitionStatus, ...]
    held_seconds: dict[str, float]
    publishing: int = 0
    blocked_targets: tuple[str, ...] = ()
    open_dead_letters: dict[str, int] = field(default_factory=dict)
    """Dead letters that wait for a decision, by topic; of the topics that this member counts."""
    hanging: tuple[str, ...] = field(default=())
    listening: dict[str, str] = field(default_factory=dict)
    """Where it answers, by the setting that says so."""
    paused: tuple[PausedStatus, ...] = ()
    """What operators hold, in the whole group or at this member alone."""
    control: ControlStatus | None = None
    """The group's control topic; None: the loop has not looked for it yet."""
