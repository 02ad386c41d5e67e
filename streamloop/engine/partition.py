"""One assignment of one partition, as the engine sees it: its epoch, ledger, lanes, counts and holds."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, NamedTuple

from streamloop.engine.events import Reason
from streamloop.engine.gate import STOPS_DISPATCH
from streamloop.engine.lanes import BatchLanes, Lanes

if TYPE_CHECKING:
    from streamloop.engine.consumer import ConsumerState, Intake
    from streamloop.engine.events import TopicPartition
    from streamloop.engine.ledger import Ledger
    from streamloop.engine.record import Record
    from streamloop.engine.retry import Failure


class Hold(NamedTuple):
    """A reason that holds a partition: since when (engine clock), and what there is to say about it."""

    since: float
    detail: str


class DeadLetterWait(NamedTuple):
    """A dead letter that waits because its partition's rate is spent."""

    record: Record
    failure: Failure
    attempt: int


class Partition:
    """The state of one epoch. Lives from Assigned to Closed; what an ended one hears changes nothing."""

    __slots__ = (
        "acked",
        "arrivals",
        "blocked",
        "bytes",
        "closing",
        "consumer",
        "count",
        "counts",
        "dead_times",
        "dead_waiting",
        "emitted",
        "end",
        "epoch",
        "freed",
        "freed_bytes",
        "holds",
        "hop",
        "in_turns",
        "intake",
        "lanes",
        "ledger",
        "mark",
        "name",
        "not_due_until",
        "outside",
        "pressing",
        "revoking",
        "routing",
        "running",
        "said",
        "seeking",
        "stalled",
        "stopped",
    )

    def __init__(
        self,
        name: TopicPartition,
        epoch: int,
        intake: Intake,
        consumer: ConsumerState,
        hop: int,
        ledger: Ledger,
    ) -> None:
        self.name = name
        self.epoch = epoch
        self.intake = intake
        self.consumer = consumer
        self.counts = consumer.counts_of(name.topic)
        """Of its topic, in this consumer: they outlive the epoch."""
        self.hop = hop
        self.ledger = ledger
        spec = consumer.spec
        self.lanes = BatchLanes(spec.ordering, spec.batch_size) if spec.batch_size else Lanes(spec.ordering)
        self.count = 0
        """Messages received and not ACKED."""
        self.bytes = 0
        self.running = 0
        """Handlers that run. Raised by ``Record.begin``, lowered when the result has been taken."""
        self.routing = 0
        """Publishes of routed messages that are not confirmed."""
        self.acked = 0
        """Messages acknowledged in this epoch."""
        self.freed = 0
        self.freed_bytes = 0
        """Acknowledged in this step, not yet settled."""
        self.holds: dict[Reason, Hold] = {}
        """The engine's own reasons."""
        self.outside: dict[Reason, Hold] = {}
        """Reasons that the shell has told."""
        self.said: frozenset[Reason] = frozenset()
        """The engine's reasons that the poller was told last."""
        self.pressing: dict[str, str] = {}
        """Why WATERMARK is among the engine's reasons: share, lane, backoff."""
        self.closing = False
        """Nothing may start: the partition is being revoked, or the loop drains."""
        self.revoking = False
        """It is about to leave: its position is committed as soon as it changes."""
        self.stopped = False
        """What is buffered may not start (a reason of STOPS_DISPATCH, or closing)."""
        self.stalled: list[Record] = []
        """Retries that became due while stopped."""
        self.in_turns = False
        self.emitted = 0
        """The ledger's version in the last Commit that was asked for."""
        self.seeking = 0
        """Token of the seek that the poller has not carried out yet; 0: none."""
        self.not_due_until = 0.0
        self.blocked: set[Record] = set()
        """Routed messages whose target takes nothing now."""
        self.end: int | None = None
        """The partition's end when it was first reached."""
        self.arrivals: deque[tuple[int, float]] = deque()
        """(first offset, time) of each batch that still has something outstanding."""
        self.mark: tuple[float, int] | None = None
        """Since when it holds more than its share, and how many were acknowledged then."""
        self.dead_times: deque[float] = deque()
        self.dead_waiting: deque[DeadLetterWait] = deque()

    def hold(self, reason: Reason, now: float, detail: str) -> bool:
        """Add a reason of the engine's. True when it is new."""
        if reason in self.holds:
            return False
        self.holds[reason] = Hold(now, detail)
        self.settle_stopped()
        return True

    def settle_stopped(self) -> None:
        """Recompute whether what is buffered may start."""
        self.stopped = (
            self.closing
            or not STOPS_DISPATCH.isdisjoint(self.holds)
            or not STOPS_DISPATCH.isdisjoint(self.outside)
        )

    def only_broken(self) -> bool:
        """Nothing but an unavailable dependency keeps what is buffered from starting."""
        return not self.closing and all(
            reason is Reason.BREAKER or reason not in STOPS_DISPATCH
            for reason in (*self.holds, *self.outside)
        )

    def forget(self) -> None:
        """The epoch is over: nothing of it waits, is held, or counts any more."""
        self.closing = self.stopped = True
        self.count = self.bytes = self.freed = self.freed_bytes = 0
        self.lanes.clear()
        self.ledger.outstanding.clear()
        self.holds.clear()
        self.outside.clear()
        self.pressing.clear()
        self.stalled.clear()
        self.blocked.clear()
        self.dead_waiting.clear()

    def wanted(self) -> frozenset[Reason]:
        """The reasons that the poller has to hold it for; the poller adds its own to these."""
        return frozenset(self.holds) | frozenset(
            reason for reason in self.outside if reason not in POLLERS_OWN
        )

    def arrived(self, offset: int) -> float | None:
        """When the batch with this offset was received (engine clock)."""
        time = None
        for first, at in self.arrivals:
            if first > offset:
                break
            time = at
        return time

    def forget_arrivals(self) -> None:
        """Drop the arrival times that the commit position has passed."""
        arrivals = self.arrivals
        committable = self.ledger.committable
        while len(arrivals) > 1 and arrivals[1][0] <= committable:
            arrivals.popleft()

    def __repr__(self) -> str:
        held = ",".join(sorted(reason.value for reason in (*self.holds, *self.outside)))
        return (
            f"<Partition {self.name.topic}/{self.name.partition} epoch={self.epoch} count={self.count} "
            f"running={self.running} routing={self.routing} held={held or '-'} {self.ledger!r}>"
        )


POLLERS_OWN = frozenset({Reason.WATERMARK, Reason.ENGINE_SILENT})
"""Reasons that the poller decides by itself and only tells the engine of."""
