"""What the engine keeps for each @consumer and for each Kafka Consumer (intake)."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING

from streamloop.engine.lanes import Ordering, Turns
from streamloop.engine.retry import RetryPlan

if TYPE_CHECKING:
    from streamloop.engine.events import TopicPartition
    from streamloop.engine.gate import Capacity
    from streamloop.engine.partition import Partition
    from streamloop.engine.record import Record

BREAKER_TRIPS_AFTER = 5
"""Unavailable outcomes in a row after which a consumer's partitions are held and one message probes."""


@dataclass(frozen=True, slots=True)
class ConsumerSpec:
    """One @consumer: its name, order, how many run at once, and what happens to what fails."""

    name: str
    ordering: Ordering = Ordering.KEY
    concurrency: int = 100
    plan: RetryPlan = field(default_factory=RetryPlan)
    dead_letters_per_minute: int | None = None
    """For each partition; above it the partition is held. None: no limit."""
    batch_size: int = 0
    """Messages that a batch handler gets at most; 0: the handler gets one message at a time."""
    topics: tuple[str, ...] = ()
    """The topics it reads, retry topics included: each has its counters from the beginning."""
    error_types: tuple[str, ...] = ()
    """Error classes that are counted from the beginning, at 0."""


@dataclass(slots=True)
class Counts:
    """Plain integers; read when scraped."""

    received: int = 0
    succeeded: int = 0
    skipped: int = 0
    routed: int = 0
    dead_lettered: int = 0
    restored: int = 0
    """Acknowledged by the metadata of an earlier commit, not handled again."""
    failed: int = 0
    """Failed attempts."""
    failed_by_type: dict[str, int] = field(default_factory=dict)
    retried: int = 0
    """In-place retries that were scheduled."""
    unavailable: int = 0
    undecodable: int = 0
    redelivered: int = 0
    """Received again by this member."""
    late: int = 0
    """Results and reports of epochs that had ended: dropped."""
    early: int = 0
    """Left BACKOFF early, because too much was waiting."""

    @property
    def acked(self) -> int:
        """Messages that reached ACKED by being handled or routed."""
        return self.succeeded + self.skipped + self.routed + self.dead_lettered

    def failed_as(self, error_class: str) -> None:
        """Count a failed attempt."""
        self.failed += 1
        by_type = self.failed_by_type
        # 'other' is among them from the beginning.
        if error_class not in by_type and len(by_type) > MAX_ERROR_TYPES:
            error_class = OTHER
        by_type[error_class] = by_type.get(error_class, 0) + 1


MAX_ERROR_TYPES = 50
"""Error classes counted by name; the others are counted as 'other'."""
OTHER = "other"
SUMMED = tuple(each.name for each in fields(Counts) if each.name != "failed_by_type")


class ConsumerState:
    """What runs, waits and failed in one @consumer."""

    __slots__ = (
        "broken",
        "by_topic",
        "due",
        "finished",
        "held_heads",
        "index",
        "probe",
        "running",
        "spec",
        "trouble",
        "turns",
        "unavailable",
        "zombies",
    )

    def __init__(self, index: int, spec: ConsumerSpec) -> None:
        self.index = index
        self.spec = spec
        self.by_topic: dict[str, Counts] = {}
        """What was counted of each topic it reads, retry topics included."""
        for topic in spec.topics:
            self.counts_of(topic)
        self.running = 0
        """Dispatched, and neither finished nor given back."""
        self.finished = 0
        """Finished since the last dispatch: how much more may be handed out ahead."""
        self.turns = Turns()
        self.due: deque[Record] = deque()
        """Retries in place whose time has come; they go first, since each holds a lane."""
        self.unavailable = 0
        """Unavailable outcomes in a row."""
        self.broken = False
        """A dependency is away: the partitions are held, and one message probes."""
        self.trouble = ""
        """What is away, as a sentence."""
        self.probe: Record | None = None
        """The message whose outcome decides; None: the next one that is due."""
        self.zombies: dict[tuple[TopicPartition, bytes | str], list[Record]] = {}
        """Lanes with a handler of an ended epoch that still runs here."""
        self.held_heads: dict[tuple[TopicPartition, bytes | str], Record] = {}
        """Heads of the present epoch that wait for such a handler."""

    def counts_of(self, topic: str) -> Counts:
        """The counters of one topic."""
        counts = self.by_topic.get(topic)
        if counts is None:
            listed = [*self.spec.error_types[:MAX_ERROR_TYPES], OTHER]
            counts = self.by_topic[topic] = Counts(failed_by_type=dict.fromkeys(listed, 0))
        return counts

    @property
    def counts(self) -> Counts:
        """The sum over its topics, as it is now."""
        total = Counts()
        for each in list(self.by_topic.values()):
            for name in SUMMED:
                setattr(total, name, getattr(total, name) + getattr(each, name))
            for error_class, failed in list(each.failed_by_type.items()):
                if failed:
                    total.failed_by_type[error_class] = total.failed_by_type.get(error_class, 0) + failed
        return total

    def room(self) -> int:
        """How many more may be handed out: free workers, and as many again as finished since last time.

        Workers that never wait finish many in one turn, and so get a longer queue; workers that wait get
        no more than there are free ones, and the turns of the partitions stay fair.
        """
        room = self.spec.concurrency * (self.spec.batch_size or 1) + self.finished - self.running
        self.finished = 0
        return room


class Intake:
    """One Kafka Consumer: its capacity, its partitions, and what of it waits in BACKOFF (oldest first)."""

    __slots__ = ("backoff", "capacity", "index", "parts", "retries")

    def __init__(self, index: int, capacity: Capacity, *, retries: bool) -> None:
        self.index = index
        self.capacity = capacity
        self.retries = retries
        """It reads retry topics: a head that is not due is sought back to and held."""
        self.parts: dict[TopicPartition, Partition] = {}
        self.backoff: dict[Record, None] = {}
