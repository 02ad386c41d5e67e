"""A stand-in for the engine, so that a Poller can be driven on a real Kafka.

Used by tests/broker/test_poller.py and by the member processes that it starts. It does what the engine would
do with each event in the simplest way: everything is acknowledged at once, unless ``finish`` is off. Every
event is kept.
"""

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Self

from confluent_kafka import Consumer

from streamloop.engine import events as ev
from streamloop.engine.events import Event, Reason, TopicPartition
from streamloop.engine.gate import Capacity
from streamloop.engine.record import Record
from streamloop.kafka.commands import GroupProtocol
from streamloop.kafka.poller import Close, Command, Poller, PollerOptions
from streamloop.kafka.positions import TopicLookup
from streamloop.kafka.topic_admin import TopicAdmin
from streamloop.kafka.topics import Commands
from tests.realkafka import wait_until


class Beat:
    """A heartbeat that is always fresh, until it is stopped."""

    def __init__(self) -> None:
        self.stopped_at: float | None = None

    @property
    def stamp(self) -> float:
        return time.monotonic() if self.stopped_at is None else self.stopped_at

    @stamp.setter
    def stamp(self, value: float) -> None:
        self.stopped_at = value


class Driver:
    """One Poller of ``group`` on real Kafka, and what it said."""

    def __init__(
        self,
        bootstrap: str,
        group: str,
        topics: Sequence[str],
        *,
        options: PollerOptions | None = None,
        capacity: Capacity | None = None,
        finish: bool = True,
        watch: Callable[[Event], None] | None = None,
        **properties: Any,
    ) -> None:
        self.events: list[Event] = []
        self.beat = Beat()
        self.finish = finish
        """Acknowledge at once what is fetched."""
        self.quiet = True
        """Say at once that what is about to leave is quiet."""
        self.capacity = capacity or Capacity(2_000, 64 * 1024 * 1024)
        self.ended = threading.Event()
        self.failure: BaseException | None = None
        self.consumer: Consumer | None = None
        self._watch = watch
        self._versions: dict[tuple[TopicPartition, int], int] = {}
        self._starting: set[TopicPartition] = set()
        self._lock = threading.Lock()
        self._properties = properties
        self._bootstrap = bootstrap
        self._group = group
        self.poller = Poller(
            name=group,
            intake=0,
            topics=topics,
            capacity=self.capacity,
            options=options or PollerOptions(),
            make_consumer=self._make,
            lookup=TopicLookup(TopicAdmin({"bootstrap.servers": bootstrap}, Commands(bootstrap))),
            deliver=self._deliver,
            heartbeat=self.beat,
            on_exit=self._exit,
        )

    def _make(self, protocol: GroupProtocol, callbacks: dict[str, Any]) -> Consumer:
        config: dict[str, Any] = {
            "bootstrap.servers": self._bootstrap,
            "group.id": self._group,
            "group.protocol": protocol,
            "enable.auto.commit": False,
            "enable.auto.offset.store": False,
            "auto.offset.reset": "error",
            "enable.partition.eof": True,
            "fetch.queue.backoff.ms": 5,
            "fetch.wait.max.ms": 100,
            "topic.metadata.refresh.interval.ms": 1000,
        }
        if protocol == "classic":
            config |= {
                "partition.assignment.strategy": "cooperative-sticky",
                "session.timeout.ms": 6000,
                "heartbeat.interval.ms": 500,
            }
        self.consumer = Consumer({**config, **self._properties, **callbacks})
        return self.consumer

    def _exit(self, failure: BaseException | None) -> None:
        self.failure = failure
        self.ended.set()

    # -- the engine's part

    def _deliver(self, events: list[Event]) -> None:
        commands: list[Command] = []
        with self._lock:
            for event in events:
                self.events.append(event)
                self._answer(event, commands)
        if self._watch is not None:
            for event in events:
                self._watch(event)
        if commands:
            self.poller.command(commands)
        self.poller.wake()

    def _answer(self, event: Event, commands: list[Command]) -> None:
        match event:
            case ev.Assigned() if not event.committed:
                self._starting.add(event.partition)
                commands.append(ev.Hold(0, event.partition, event.epoch, frozenset({Reason.ASSIGNING})))
                commands.append(self._commit(event.partition, event.epoch, event.offset))
            case ev.Committed() if event.partition in self._starting:
                self._starting.remove(event.partition)
                commands.append(ev.Hold(0, event.partition, event.epoch, frozenset()))
            case ev.Fetched() if self.finish:
                self.release(event.records)
                commands.append(self._commit(event.partition, event.epoch, event.records[-1].offset + 1))
            case ev.EndOfPartition() if self.finish:
                commands.append(self._commit(event.partition, event.epoch, event.offset))
            case ev.Revoking() if self.quiet:
                commands += [ev.Quiet(0, name, epoch) for name, epoch in event.partitions]

    def release(self, records: list[Record]) -> None:
        """Give the capacity of these back."""
        self.capacity.released(len(records), sum(record.size for record in records))

    def _commit(self, name: TopicPartition, epoch: int, offset: int, metadata: str = "") -> ev.Commit:
        version = self._versions[name, epoch] = self._versions.get((name, epoch), 0) + 1
        return ev.Commit(0, name, epoch, offset, metadata, version)

    def commit(self, name: TopicPartition, offset: int, metadata: str = "", epoch: int | None = None) -> None:
        """Have a position committed; of the partition's present epoch unless another one is given."""
        with self._lock:
            command = self._commit(name, self.epoch(name) if epoch is None else epoch, offset, metadata)
        self.poller.command([command])

    def hold(self, name: TopicPartition, *reasons: Reason) -> None:
        """Say what holds the partition."""
        self.poller.command([ev.Hold(0, name, self.epoch(name), frozenset(reasons))])

    # -- what it said

    def of(self, kind: type[Any]) -> list[Any]:
        """The events of this kind, in order."""
        return [event for event in list(self.events) if isinstance(event, kind)]

    def epoch(self, name: TopicPartition) -> int:
        """The newest epoch of a partition."""
        return max(int(event.epoch) for event in self.of(ev.Assigned) if event.partition == name)

    def assigned(self) -> set[TopicPartition]:
        """The partitions with an open epoch."""
        open_epochs: dict[TopicPartition, int] = {}
        for event in list(self.events):
            if isinstance(event, ev.Assigned):
                open_epochs[event.partition] = event.epoch
            elif isinstance(event, ev.Closed):
                for name, epoch in event.partitions:
                    if open_epochs.get(name) == epoch:
                        del open_epochs[name]
        return set(open_epochs)

    def offsets(self, name: TopicPartition, epoch: int | None = None) -> list[int]:
        """The offsets that were fetched, in order; of one epoch if it is given."""
        return [
            record.offset
            for event in self.of(ev.Fetched)
            if event.partition == name and (epoch is None or event.epoch == epoch)
            for record in event.records
        ]

    def await_assigned(self, *names: TopicPartition, timeout: float = 30.0) -> None:
        """Wait until exactly these have open epochs."""
        wait_until(lambda: self.assigned() == set(names), timeout, lambda: f"{names}, not {self.assigned()}")

    def await_offset(self, name: TopicPartition, offset: int, timeout: float = 30.0) -> None:
        """Wait until this offset was fetched."""
        wait_until(
            lambda: offset in self.offsets(name), timeout, lambda: f"{name}: {offset}, {self.events[-3:]}"
        )

    # -- life

    def __enter__(self) -> Self:
        self.poller.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Leave the group."""
        self.poller.command([Close()])
        assert self.ended.wait(30), "the poller did not end"
