"""A Consumer, a clock and a lookup that a test drives by hand, for the poller's unit tests.

The fake does what was measured of librdkafka: callbacks run inside poll, consume and close; an asynchronous
commit is answered inside a later call; a position out of range stops a partition after one error. Nothing
here waits: a wait moves the clock.
"""

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka import TopicPartition as Position

from streamloop.engine import events as ev
from streamloop.engine.events import Event, TopicPartition
from streamloop.engine.gate import Capacity
from streamloop.kafka.poller import Command, Poller, PollerOptions
from streamloop.kafka.positions import Answer, Identities, Offsets, Question

if TYPE_CHECKING:
    from streamloop.kafka.topics import Untold

P0, P1 = TopicPartition("t", 0), TopicPartition("t", 1)

EOF = -191
OUT_OF_RANGE = -140


class FakeClock:
    """Monotonic seconds that only a test, or a wait, moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


class FakeWake:
    """The wake-up event: waiting moves the clock, and ``on_wait`` may do what another thread would."""

    def __init__(self, clock: FakeClock) -> None:
        self._clock = clock
        self._set = False
        self.on_wait: Callable[[], None] | None = None

    def set(self) -> None:
        self._set = True

    def clear(self) -> None:
        self._set = False

    def wait(self, timeout: float) -> bool:
        if self.on_wait is not None:
            self.on_wait()
        if not self._set:
            self._clock.now += timeout
        return self._set


class FakeMessage:
    """A record or an event as the client shows it."""

    def __init__(
        self,
        topic: str,
        partition: int,
        offset: int | None,
        *,
        value: bytes = b"v",
        error: int = 0,
        text: str = "",
    ) -> None:
        self._topic, self._partition, self._offset = topic, partition, offset
        self._error = KafkaError(error, text or None) if error else None

    def error(self) -> KafkaError | None:
        return self._error

    def topic(self) -> str:
        return self._topic

    def partition(self) -> int:
        return self._partition

    def offset(self) -> int | None:
        return self._offset

    def key(self) -> bytes | None:
        return None

    def leader_epoch(self) -> int | None:
        return None

    def timestamp(self) -> tuple[int, int]:
        return (1, 1_700_000_000_000)

    def headers(self) -> None:
        return None

    def __len__(self) -> int:
        return 1


class FakeQuestion(Question):
    """Waiting for it moves the clock, unless it is answered, or the lookup answers those who wait."""

    def __init__(self, clock: FakeClock, lookup: "FakeLookup") -> None:
        super().__init__()
        self._clock = clock
        self._lookup = lookup

    def wait(self, timeout: float) -> bool:
        if self._lookup.answers_waits:
            self._lookup.speak()
        if not self.done:
            self._clock.now += timeout
        return self.done


class FakeLookup:
    """Answers at once from ``ids``, ``oldest`` and ``newest``; holds questions back while ``silent``."""

    def __init__(self, clock: FakeClock) -> None:
        self._clock = clock
        self.cluster_id = "cluster"
        self.ids: dict[str, str | Untold | None] = {"t": "id-1", "u": "id-u"}
        self.oldest: dict[TopicPartition, int] = {}
        self.newest: dict[TopicPartition, int] = {}
        self.silent = False
        self.answers_waits = False
        self.asked: list[tuple[str, Any]] = []
        self._held: list[tuple[Question, Callable[[], Answer]]] = []

    def identities(self, topics: Iterable[str]) -> Question:
        names = sorted(topics)
        return self._ask(
            ("ids", names), lambda: Identities(self.cluster_id, {name: self.ids[name] for name in names})
        )

    def offsets(
        self, partitions: Iterable[TopicPartition], start: Literal["earliest", "latest"] | int
    ) -> Question:
        names = list(partitions)
        source = self.newest if start == "latest" else self.oldest
        return self._ask(
            (str(start), names),
            lambda: Offsets({name: source.get(name, 0) for name in names}),
        )

    def _ask(self, what: tuple[str, Any], find: Callable[[], Answer]) -> Question:
        self.asked.append(what)
        question = FakeQuestion(self._clock, self)
        if self.silent:
            self._held.append((question, find))
        else:
            question.answer(find())
        return question

    def speak(self) -> None:
        """Answer what was held back, and everything from now on."""
        self.silent = False
        for question, find in self._held:
            question.answer(find())
        self._held.clear()


class FakeConsumer:
    """One client. ``log`` are the offsets that a partition has; ``calls`` what was asked of it."""

    def __init__(self, clock: FakeClock, config: dict[str, Any]) -> None:
        self._clock = clock
        self.config = config
        self.log: dict[TopicPartition, list[int]] = {}
        self.broker: dict[TopicPartition, tuple[int, str]] = {}
        """The group's committed offsets and metadata."""
        self.positions: dict[TopicPartition, int] = {}
        self.paused: set[TopicPartition] = set()
        self.stopped: set[TopicPartition] = set()
        """Partitions whose fetcher an error has stopped."""
        self.calls: list[tuple[str, Any]] = []
        self.queue: deque[FakeMessage] = deque()
        """Events, and records that are stale."""
        self.pending: deque[Callable[[], None]] = deque()
        """Callbacks that run in the next call."""
        self.commit_code = 0
        self.refused: dict[TopicPartition, int] = {}
        """Error codes of commits by partition."""
        self.answers = True
        """Commits are answered."""
        self.committed_error = 0
        self.committed_takes = 0.0
        self.seek_fails = False
        self.closed = False
        self._seen_end: dict[TopicPartition, int] = {}
        self._callbacks: dict[str, Any] = {}

    # -- what the group does

    def assign_now(self, *names: TopicPartition) -> None:
        self.pending.append(lambda: self._callbacks["on_assign"](self, [Position(*name) for name in names]))

    def revoke_now(self, *names: TopicPartition) -> None:
        self.pending.append(lambda: self._callbacks["on_revoke"](self, [Position(*name) for name in names]))

    def lose_now(self, *names: TopicPartition) -> None:
        self.pending.append(lambda: self._callbacks["on_lost"](self, [Position(*name) for name in names]))

    def _run_pending(self) -> None:
        while self.pending:
            self.pending.popleft()()

    # -- the client's methods

    def subscribe(self, topics: Sequence[str], **callbacks: Any) -> None:
        self.calls.append(("subscribe", list(topics)))
        self._callbacks = callbacks

    def consume(self, count: int, timeout: float) -> list[FakeMessage]:
        self.calls.append(("consume", count))
        assert timeout == 0
        taken = [self.queue.popleft() for _ in range(min(count, len(self.queue)))]
        self._run_pending()
        return taken + self._fetch(count - len(taken))

    def poll(self, timeout: float) -> FakeMessage | None:
        self.calls.append(("poll", timeout))
        self._run_pending()
        if self.queue:
            return self.queue.popleft()
        fetched = self._fetch(1)
        if fetched:
            return fetched[0]
        self._clock.now += timeout
        return None

    def _fetch(self, count: int) -> list[FakeMessage]:
        fetched: list[FakeMessage] = []
        for name, position in self.positions.items():
            if name in self.paused or name in self.stopped:
                continue
            log = self.log.get(name, [])
            if log and not log[0] <= position <= log[-1] + 1:
                self.stopped.add(name)
                fetched.append(FakeMessage(*name, position, error=OUT_OF_RANGE))
                continue
            for offset in log:
                if offset >= position and len(fetched) < count:
                    fetched.append(FakeMessage(*name, offset))
                    self.positions[name] = offset + 1
            end = log[-1] + 1 if log else self.positions[name]
            if self.positions[name] == end and self._seen_end.get(name) != end and len(fetched) < count:
                self._seen_end[name] = end
                fetched.append(FakeMessage(*name, end, error=EOF))
        return fetched

    def get_watermark_offsets(self, partition: Any, *, cached: bool) -> tuple[int, int]:
        assert cached, "it would wait for a broker"
        log = self.log.get(TopicPartition(partition.topic, partition.partition))
        return (log[0], log[-1] + 1) if log else (-1001, -1001)

    def incremental_assign(self, partitions: Sequence[Position]) -> None:
        self.calls.append(("assign", [(each.topic, each.partition, each.offset) for each in partitions]))
        for each in partitions:
            name = TopicPartition(each.topic, each.partition)
            assert name not in self.positions, f"{name} is assigned already"
            assert each.offset >= 0, "assigned without a number"
            self.positions[name] = each.offset
            self._seen_end.pop(name, None)
            self.stopped.discard(name)

    def incremental_unassign(self, partitions: Sequence[Position]) -> None:
        self.calls.append(("unassign", [(each.topic, each.partition) for each in partitions]))
        for each in partitions:
            name = TopicPartition(each.topic, each.partition)
            if name not in self.positions:
                raise KafkaException(KafkaError(-186))
        for each in partitions:
            del self.positions[TopicPartition(each.topic, each.partition)]

    def pause(self, partitions: Sequence[Position]) -> None:
        self.calls.append(("pause", [(each.topic, each.partition) for each in partitions]))
        self.paused |= {TopicPartition(each.topic, each.partition) for each in partitions}

    def resume(self, partitions: Sequence[Position]) -> None:
        self.calls.append(("resume", [(each.topic, each.partition) for each in partitions]))
        self.paused -= {TopicPartition(each.topic, each.partition) for each in partitions}

    def seek(self, at: Position) -> None:
        self.calls.append(("seek", (at.topic, at.partition, at.offset)))
        name = TopicPartition(at.topic, at.partition)
        if self.seek_fails or name in self.stopped or name not in self.positions:
            raise KafkaException(KafkaError(-172))
        self.positions[name] = at.offset
        self._seen_end.pop(name, None)

    def committed(self, partitions: Sequence[Position], timeout: float) -> list[Position]:
        self.calls.append(("committed", timeout))
        self._clock.now += self.committed_takes
        if self.committed_error:
            self._clock.now += timeout
            raise KafkaException(KafkaError(self.committed_error))
        found = []
        for each in partitions:
            offset, metadata = self.broker.get(TopicPartition(each.topic, each.partition), (-1001, ""))
            found.append(Position(each.topic, each.partition, offset, metadata))
        return found

    def commit(self, *, offsets: Sequence[Position], asynchronous: bool) -> None:
        assert asynchronous, "a synchronous commit has no time-out"
        sent = {
            TopicPartition(each.topic, each.partition): (each.offset, each.metadata or "") for each in offsets
        }
        self.calls.append(("commit", sent))
        if self.answers:
            self.pending.append(lambda: self.answer(sent))

    def answer(self, sent: dict[TopicPartition, tuple[int, str]]) -> None:
        """Report a commit: the broker's error for one partition stands on every one of them."""
        worst = self.commit_code or next((self.refused[name] for name in sent if name in self.refused), 0)
        for name, what in sent.items():
            if not self.commit_code and name not in self.refused:
                self.broker[name] = what
        error = KafkaError(worst) if worst else None
        self.config["on_commit"](error, [_Report(name, offset, error) for name, (offset, _) in sent.items()])

    def offsets_for_times(self, partitions: Sequence[Position], timeout: float) -> list[Position]:
        self.calls.append(("wake", [(each.topic, each.partition) for each in partitions]))
        return list(partitions)

    def close(self) -> None:
        self.calls.append(("close", None))
        if self.positions and "on_revoke" in self._callbacks:
            self._callbacks["on_revoke"](self, [Position(*name) for name in self.positions])
        self._run_pending()
        self.closed = True

    # -- what a test asks

    def count(self, what: str) -> int:
        return sum(name == what for name, _ in self.calls)

    def last(self, what: str) -> Any:
        return next(detail for name, detail in reversed(self.calls) if name == what)


class _Report:
    """A TopicPartition of a commit's report; the client's own can't be given an error."""

    def __init__(self, name: TopicPartition, offset: int, error: KafkaError | None) -> None:
        self.topic, self.partition = name
        self.offset = offset
        self.error = error


class Bench:
    """A poller without its thread: a test turns it by hand."""

    def __init__(
        self,
        options: PollerOptions | None = None,
        capacity: Capacity | None = None,
        prepare: Callable[..., None] | None = None,
    ) -> None:
        self.clock = FakeClock()
        self.stamp: float | None = None
        self.capacity = capacity or Capacity(1000, 1 << 30)
        self.events: list[Event] = []
        self.consumers: list[FakeConsumer] = []
        self.protocols: list[str] = []
        self.exits: list[BaseException | None] = []
        self.lookup = FakeLookup(self.clock)
        self.on_event: Callable[[Event], None] | None = None
        self.poller = Poller(
            name="main",
            intake=0,
            topics=["t"],
            capacity=self.capacity,
            options=options or PollerOptions(),
            make_consumer=self._make,
            lookup=self.lookup,
            deliver=self._deliver,
            heartbeat=_Stamp(self),
            clock=self.clock,
            prepare=prepare,
            on_exit=self.exits.append,
            jitter=lambda: 1.0,
        )
        self.wake = FakeWake(self.clock)
        self.poller._wake = self.wake  # type: ignore[assignment]

    def _make(self, protocol: str, callbacks: dict[str, Any]) -> FakeConsumer:
        self.protocols.append(protocol)
        self.consumers.append(FakeConsumer(self.clock, callbacks))
        return self.consumers[-1]

    def _deliver(self, events: list[Event]) -> None:
        for event in events:
            self.events.append(event)
            if self.on_event is not None:
                self.on_event(event)

    @property
    def consumer(self) -> FakeConsumer:
        return self.consumers[-1]

    def subscribe(self, protocol: Literal["consumer", "classic"] = "consumer") -> FakeConsumer:
        self.poller._subscribe(protocol)
        return self.consumer

    def turn(self, turns: int = 1) -> None:
        for _ in range(turns):
            self.poller._turn()

    def run(self) -> None:
        """The thread's whole life, here; it ends by a Close or an error."""
        self.poller._run()

    def tell(self, *commands: Command) -> None:
        self.poller.command(commands)

    def assigned(self, name: TopicPartition, offset: int, log: Iterable[int] = ()) -> int:
        """Give it a partition with a committed offset; returns the epoch."""
        self.consumer.broker[name] = (offset, "")
        self.consumer.log[name] = list(log)
        self.consumer.assign_now(name)
        self.turn()
        return int(self.of(ev.Assigned)[-1].epoch)

    def of(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    def offsets(self, name: TopicPartition) -> list[int]:
        return [
            record.offset
            for event in self.of(ev.Fetched)
            if event.partition == name
            for record in event.records
        ]

    def finish_all(self) -> None:
        """Release everything that was fetched."""
        capacity = self.capacity
        capacity.released(capacity.messages, capacity.bytes)
        self.poller.wake()


class _Stamp:
    def __init__(self, bench: Bench) -> None:
        self._bench = bench

    @property
    def stamp(self) -> float:
        return self._bench.clock.now if self._bench.stamp is None else self._bench.stamp

    @stamp.setter
    def stamp(self, value: float) -> None:
        self._bench.stamp = value


def commit(name: TopicPartition, epoch: int, offset: int, version: int, metadata: str = "") -> ev.Commit:
    """A Commit of the engine's."""
    return ev.Commit(0, name, epoch, offset, metadata, version)
