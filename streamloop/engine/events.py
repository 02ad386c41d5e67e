"""What the shell tells the engine (events) and what the engine answers (effects). Pure data.

Data flows one way: poller -> engine -> runner -> engine -> poller. Every event of a partition carries the
epoch of the assignment it belongs to; the engine drops what an ended epoch says. Times are seconds of a
monotonic clock that the shell owns.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Sequence

    from streamloop.engine.record import Record
    from streamloop.engine.retry import Failure


class TopicPartition(NamedTuple):
    """A partition's name. One topic belongs to one Consumer of a loop, so that this is unique in it."""

    topic: str
    partition: int


class Reason(Enum):
    """Why a partition is held (no new messages). A partition flows when the set of its reasons is empty."""

    WATERMARK = "watermark"
    GAP = "gap"
    RETRY_NOT_DUE = "retry_not_due"
    PUBLISH_BLOCKED = "publish_blocked"
    BREAKER = "breaker"
    OPERATOR = "operator"
    ASSIGNING = "assigning"
    ENGINE_SILENT = "engine_silent"
    TOPIC_GONE = "topic_gone"
    COMMIT_REFUSED = "commit_refused"
    DEAD_LETTER_RATE = "dead_letter_rate"


EXPECTED = frozenset({Reason.RETRY_NOT_DUE, Reason.ASSIGNING})
"""Reasons that belong to a normal day: nobody is warned of them."""


# ------------------------------------------------------------------------------------------------ events


@dataclass(frozen=True, slots=True)
class Assigned:
    """A partition came, its start position is known. Opens an epoch.

    ``offset`` is where fetching starts. ``committed`` is False when the group had no committed offset: the
    engine then commits ``offset`` before it dispatches anything. ``metadata`` is the committed metadata
    string (may be another program's). ``cluster_id``/``topic_id`` are 'unknown' when they can't be had.
    """

    intake: int
    partition: TopicPartition
    epoch: int
    offset: int
    committed: bool
    metadata: str
    cluster_id: str
    topic_id: str


@dataclass(frozen=True, slots=True)
class Fetched:
    """Records of one partition, in offset order, just taken from the Consumer."""

    partition: TopicPartition
    epoch: int
    records: list[Record]


@dataclass(frozen=True, slots=True)
class EndOfPartition:
    """The Consumer reached the partition's end; ``offset`` is its position there (markers included)."""

    partition: TopicPartition
    epoch: int
    offset: int


@dataclass(frozen=True, slots=True)
class Finished:
    """Handlers that returned or raised (``record.failure`` says), or records that could not be decoded."""

    records: list[Record]


@dataclass(frozen=True, slots=True)
class Unstarted:
    """Dispatched records that the runner gives back without having started them."""

    records: list[Record]


@dataclass(frozen=True, slots=True)
class Published:
    """The broker has confirmed the record's routing."""

    record: Record


@dataclass(frozen=True, slots=True)
class PublishBlocked:
    """The target takes nothing now; the publisher tries again for ever. ``reason`` names topic and cause."""

    record: Record
    reason: str


@dataclass(frozen=True, slots=True)
class PublishUnblocked:
    record: Record


@dataclass(frozen=True, slots=True)
class Revoking:
    """The partitions are about to leave: start nothing of theirs, say when they are quiet."""

    partitions: Sequence[tuple[TopicPartition, int]]


@dataclass(frozen=True, slots=True)
class Closed:
    """The partitions left, and their epochs have ended. ``lost``: cancel what still runs."""

    partitions: Sequence[tuple[TopicPartition, int]]
    lost: bool


@dataclass(frozen=True, slots=True)
class Committed:
    """The broker has confirmed the position with this version."""

    partition: TopicPartition
    epoch: int
    offset: int
    version: int


@dataclass(frozen=True, slots=True)
class HoldChanged:
    """A reason of the shell's own (poller, topic watch, operator) begins or ends for a partition."""

    partition: TopicPartition
    epoch: int
    reason: Reason
    held: bool
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Sought:
    """The poller has carried out the seek with this token: what is fetched from now on comes after it."""

    partition: TopicPartition
    epoch: int
    token: int


@dataclass(frozen=True, slots=True)
class Drain:
    """Start nothing any more; say :class:`Drained` when nothing runs and nothing is being published."""


@dataclass(frozen=True, slots=True)
class CutShort:
    """The drain's time is over, and what still runs was asked to stop.

    What fails from here on fails because of that, so that it says nothing about the message: it is not
    acknowledged, not retried and no dead letter, and it comes again.
    """


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed; nothing else happened."""


Event = (
    Assigned
    | Fetched
    | EndOfPartition
    | Finished
    | Unstarted
    | Published
    | PublishBlocked
    | PublishUnblocked
    | Revoking
    | Closed
    | Committed
    | HoldChanged
    | Sought
    | Drain
    | CutShort
    | Tick
)


# ----------------------------------------------------------------------------------------------- effects


@dataclass(frozen=True, slots=True)
class Dispatch:
    """Run these, in this order, each on a free worker of that consumer. Ask ``record.begin()`` first."""

    consumer: int
    records: list[Record]


@dataclass(frozen=True, slots=True)
class Cancel:
    """Ask these running handlers to stop: their partition is lost."""

    records: list[Record]


class Target(Enum):
    """Where a failed message is routed."""

    RETRY = "retry"
    DEAD_LETTER = "dead_letter"


@dataclass(frozen=True, slots=True)
class Route:
    """Publish this record to its retry topic (``retry_index`` of its plan) or to its dead-letter topic."""

    record: Record
    target: Target
    retry_index: int
    failure: Failure
    attempt: int


@dataclass(frozen=True, slots=True)
class Unroute:
    """The partition left: a publish that has not been produced yet need not be."""

    record: Record


@dataclass(frozen=True, slots=True)
class Hold:
    """The partition must not be fetched (``held``), or may be again. ``reasons`` are the engine's own."""

    intake: int
    partition: TopicPartition
    epoch: int
    reasons: frozenset[Reason]


@dataclass(frozen=True, slots=True)
class Seek:
    """Forget what is prefetched of the partition and fetch from ``offset`` when it flows again."""

    intake: int
    partition: TopicPartition
    epoch: int
    offset: int
    token: int


@dataclass(frozen=True, slots=True)
class Commit:
    """Commit this position, if the partition is still assigned in this epoch. The newest version wins."""

    intake: int
    partition: TopicPartition
    epoch: int
    offset: int
    metadata: str
    version: int


@dataclass(frozen=True, slots=True)
class Quiet:
    """Nothing of the partition runs or is being published any more; its last Commit came before this."""

    intake: int
    partition: TopicPartition
    epoch: int


@dataclass(frozen=True, slots=True)
class Drained:
    """All that was running has ended, after :class:`Drain` or because a bound was reached."""


@dataclass(frozen=True, slots=True)
class BoundReached:
    """The run's bound is met and nothing is outstanding."""

    bound: str


@dataclass(frozen=True, slots=True)
class Halt:
    """A fatal error: stop the process with a non-zero exit; the record is not acknowledged."""

    record: Record
    failure: Failure
    note: str


@dataclass(frozen=True, slots=True)
class Notice:
    """Something that a person should know. ``warning`` notices say what is held and why."""

    warning: bool
    kind: str
    text: str
    fields: dict[str, Any] = field(default_factory=dict)


Effect = (
    Dispatch
    | Cancel
    | Route
    | Unroute
    | Hold
    | Seek
    | Commit
    | Quiet
    | Drained
    | BoundReached
    | Halt
    | Notice
)
