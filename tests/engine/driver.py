"""A shell played by hand, for tests of the engine: it starts, ends and confirms only what a test tells it to.

What the engine asks for is kept, so that a test can say what should have been asked.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from streamloop.engine import events as ev
from streamloop.engine.consumer import ConsumerSpec
from streamloop.engine.engine import Engine, EngineConfig, Role
from streamloop.engine.events import Reason, TopicPartition
from streamloop.engine.gate import Capacity
from streamloop.engine.record import Attempts, Record
from streamloop.engine.retry import Failure, Kind, RetryPlan
from streamloop.engine.states import State

if TYPE_CHECKING:
    from collections.abc import Sequence

    from streamloop.engine.partition import Partition

CLUSTER = "cluster-1"
TOPIC_ID = "topic-id-1"
SIZE = 100

TRANSIENT = Failure(Kind.TRANSIENT, "builtins.ValueError", "bad luck", "0" * 16)
PERMANENT = Failure(Kind.PERMANENT, "app.Rejected", "no such order", "1" * 16)
UNAVAILABLE = Failure(Kind.UNAVAILABLE, "app.Down", "connection refused", "2" * 16, dependency="payments")
FATAL = Failure(Kind.FATAL, "builtins.SystemExit", "out of memory", "3" * 16)
SKIP = Failure(Kind.SKIP, "streamloop.Skip", "not ours", "4" * 16)

E = TypeVar("E")

ORDERS = TopicPartition("orders", 0)
OTHERS = TopicPartition("orders", 1)
RETRY = TopicPartition("orders.billing.retry.30s", 0)
REPLAY = TopicPartition("orders.billing.replay", 0)


def role_of(topic: str) -> Role:
    """orders is consumer 0's, payments consumer 1's; ..retry.30s and ..retry.5m are hops 1 and 2."""
    consumer = 1 if topic.startswith("payments") else 0
    return Role(consumer, 2 if topic.endswith(".5m") else int(".retry." in topic))


def half() -> float:
    return 0.5


class Shell:
    """An engine, its capacities, and what stands around it."""

    def __init__(
        self,
        *consumers: ConsumerSpec,
        plan: RetryPlan | None = None,
        high: int = 2000,
        high_bytes: int = 64 << 20,
        **config: Any,
    ) -> None:
        self.specs = consumers or (ConsumerSpec("billing", plan=plan or RetryPlan()),)
        self.capacities = [Capacity(high, high_bytes), Capacity(high, high_bytes)]
        config.setdefault("uniform", half)
        self.engine = Engine(EngineConfig(self.specs, role_of, **config), self.capacities)
        self.now = 100.0
        self.epochs: dict[TopicPartition, int] = {}
        self.next_offset: dict[TopicPartition, int] = {}
        self.ready: list[Record] = []
        """Dispatched, not started."""
        self.effects: list[ev.Effect] = []
        """Of the last step."""
        self.seen: list[ev.Effect] = []
        """Of all steps."""

    # ------------------------------------------------------------------------------------------------ steps

    def step(self, *events: ev.Event, wait: float = 0.0) -> list[ev.Effect]:
        """``wait`` seconds later these events happen."""
        self.now += wait
        self.effects = self.engine.step(self.now, events or (ev.Tick(),))
        self.seen += self.effects
        for effect in self.effects:
            if isinstance(effect, ev.Dispatch):
                self.ready += effect.records
        return self.effects

    def wait(self, seconds: float, every: float = 0.05) -> None:
        """Let time pass, in ticks."""
        end = self.now + seconds
        while self.now < end:
            self.step(wait=min(every, end - self.now))

    def of(self, kind: type[E]) -> list[E]:
        """The last step's effects of this kind."""
        return [effect for effect in self.effects if isinstance(effect, kind)]

    def all(self, kind: type[E]) -> list[E]:
        """All effects of this kind so far."""
        return [effect for effect in self.seen if isinstance(effect, kind)]

    # -------------------------------------------------------------------------------------------- partitions

    def assign(
        self,
        name: TopicPartition = ORDERS,
        offset: int = 0,
        *,
        committed: bool = True,
        metadata: str = "",
        topic_id: str = TOPIC_ID,
        cluster_id: str = CLUSTER,
    ) -> TopicPartition:
        """Open the next epoch of the partition."""
        self.epochs[name] = self.epochs.get(name, 0) + 1
        self.next_offset[name] = offset
        self.step(self.assigned(name, offset, committed, metadata, topic_id, cluster_id))
        return name

    def assigned(
        self,
        name: TopicPartition,
        offset: int,
        committed: bool = True,
        metadata: str = "",
        topic_id: str = TOPIC_ID,
        cluster_id: str = CLUSTER,
    ) -> ev.Assigned:
        intake = int(name.topic.startswith("orders.billing"))
        return ev.Assigned(intake, name, self.epochs[name], offset, committed, metadata, cluster_id, topic_id)

    def part(self, name: TopicPartition = ORDERS) -> Partition:
        return self.engine.parts[name]

    def records(
        self,
        name: TopicPartition,
        keys: Sequence[bytes | None],
        *,
        size: int = SIZE,
        leader_epoch: int = 1,
        due: float | None = None,
        before: int = 1,
    ) -> list[Record]:
        """The next records of the partition, taken from the Consumer (counted), one a key."""
        records = []
        for key in keys:
            record = Record(self.next_offset[name], key, size, leader_epoch, object())
            if due is not None:
                record.attempts = Attempts(before, due, self.now)
            self.next_offset[name] += 1
            records.append(record)
        self.capacity(name).took(len(records), size * len(records), size)
        return records

    def capacity(self, name: TopicPartition = ORDERS) -> Capacity:
        return self.capacities[int(name.topic.startswith("orders.billing"))]

    def fetch(
        self, name: TopicPartition = ORDERS, keys: Sequence[bytes | None] = (b"a",), **fields: Any
    ) -> list[Record]:
        """The poller takes records, one a key, and the engine hears of them."""
        records = self.records(name, keys, **fields)
        self.step(ev.Fetched(name, self.epochs[name], records))
        return records

    def fetch_at(self, name: TopicPartition, *offsets: int, leader_epoch: int = 1) -> list[Record]:
        """The same with offsets of the test's choice, without keys (unordered)."""
        records = [Record(offset, None, SIZE, leader_epoch, object()) for offset in offsets]
        self.next_offset[name] = offsets[-1] + 1
        self.capacity(name).took(len(records), SIZE * len(records), SIZE)
        self.step(ev.Fetched(name, self.epochs[name], records))
        return records

    def revoking(self, *names: TopicPartition) -> list[ev.Effect]:
        return self.step(ev.Revoking([(name, self.epochs[name]) for name in names]))

    def close(self, *names: TopicPartition, lost: bool = False) -> list[ev.Effect]:
        return self.step(ev.Closed([(name, self.epochs[name]) for name in names], lost))

    # ---------------------------------------------------------------------------------------------- handlers

    def begin(self, *records: Record) -> None:
        """Start the handlers of dispatched records."""
        for record in records:
            self.ready.remove(record)
            assert record.begin(self.now)

    def done(self, *records: Record, wait: float = 0.0) -> list[ev.Effect]:
        """The handlers return (they start first where they have not)."""
        self.begin(*(record for record in records if record.state is not State.PROCESSING))
        return self.step(ev.Finished(list(records)), wait=wait)

    def fail(self, record: Record, failure: Failure = TRANSIENT, wait: float = 0.0) -> list[ev.Effect]:
        """The handler raises."""
        if record.state is not State.PROCESSING:
            self.begin(record)
        record.failure = failure
        return self.step(ev.Finished([record]), wait=wait)

    def undecodable(self, record: Record, failure: Failure = PERMANENT) -> list[ev.Effect]:
        """It was dispatched and can't be decoded; its handler never starts."""
        self.ready.remove(record)
        record.failure = failure
        return self.step(ev.Finished([record]))

    def give_back(self, *records: Record) -> list[ev.Effect]:
        for record in records:
            self.ready.remove(record)
        return self.step(ev.Unstarted(list(records)))

    # ------------------------------------------------------------------------------------------------ looks

    def committable(self, name: TopicPartition = ORDERS) -> int:
        return self.part(name).ledger.committable

    def reasons(self, name: TopicPartition = ORDERS) -> set[Reason]:
        """What holds the partition, as the poller was told last."""
        held: frozenset[Reason] = frozenset()
        for effect in self.all(ev.Hold):
            if (effect.partition, effect.epoch) == (name, self.epochs[name]):
                held = effect.reasons
        assert held == self.part(name).said
        return set(held)

    def last_commit(self, name: TopicPartition = ORDERS) -> ev.Commit:
        return [commit for commit in self.all(ev.Commit) if commit.partition == name][-1]

    def notices(self, kind: str) -> list[ev.Notice]:
        return [notice for notice in self.all(ev.Notice) if notice.kind == kind]

    def balanced(self) -> None:
        """Nothing is counted that is not there, and nothing is there that is not counted."""
        for index, capacity in enumerate(self.capacities):
            parts = [part for part in self.engine.parts.values() if part.intake.index == index]
            assert capacity.messages == sum(part.count for part in parts)
            assert capacity.bytes == sum(part.bytes for part in parts)
            for part in parts:
                open_records = [r for r in part.ledger.outstanding if r.state is not State.ACKED]
                assert part.count == len(open_records)
                assert part.bytes == sum(record.size for record in open_records)
