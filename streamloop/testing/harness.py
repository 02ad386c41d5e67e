"""The harness: a StreamLoop without a broker and in virtual time.

It runs the engine, the core, the runners, the codecs and the retry plan of production; only the pollers, the
publisher and the clock are replaced. One Harness is one member of the group with all partitions, until a test
takes some away. Everything runs on the test's own thread (but ``def`` handlers, which have theirs), and only
inside run(), advance() and the calls that change the member: between two lines of a test nothing moves.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Self

from streamloop import codecs
from streamloop.engine.events import TopicPartition
from streamloop.kafka import headers as hd
from streamloop.testing.broker import PARTITIONS, Broker, KafkaRecord, RoutedRecord
from streamloop.testing.clock import Clock
from streamloop.testing.errors import HarnessError
from streamloop.testing.member import DAY, Member, Waiting, World
from streamloop.testing.trace import Journal, MessageOutcome

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from datetime import datetime
    from types import TracebackType

    from streamloop.app import StreamLoop
    from streamloop.assembly import Assembly
    from streamloop.codecs import Codec
    from streamloop.message import Headers
    from streamloop.routing import SourceTopic, Topics
    from streamloop.runners.base import Running
    from streamloop.testing.ports import HarnessIntake


class Harness:
    """A StreamLoop with a broker of the harness's own, in virtual time; use it with ``with``.

    ``partitions``: of every topic, or by topic (what is not named has 4). ``starts_at``: what the virtual
    clock shows at the beginning (default: now). ``patience``: real seconds to wait for a ``def`` handler that
    does not come back. ``seed``: of the jitter of back-offs, which makes a test repeatable. ``settings``: any
    setting by its name; they come before all others, those of @loop.consumer(..) included.

        with Harness(loop, in_place_attempts=1) as kafka:
            kafka.send("orders", {"id": 1, "amount": -5}, key="c1")
            kafka.run()
            [dead] = kafka.dead_letters("orders")

    Raises ConfigurationError for what is wrong with the loop or its settings, and what on_startup raises.
    """

    def __init__(
        self,
        loop: StreamLoop[Any],
        *,
        partitions: int | Mapping[str, int] = PARTITIONS,
        starts_at: datetime | None = None,
        patience: float = 30.0,
        seed: int = 0,
        **settings: object,
    ) -> None:
        self._loop = loop
        self._settings = settings
        by_topic = dict(partitions) if isinstance(partitions, Mapping) else {}
        default = PARTITIONS if isinstance(partitions, Mapping) else partitions
        for count in (default, *by_topic.values()):
            if not isinstance(count, int) or count < 1:
                raise HarnessError(f"partitions={partitions!r}: a topic has a whole number of 1 or more")
        self._broker = Broker(by_topic, default)
        self._clock = Clock(time.monotonic(), time.time() if starts_at is None else starts_at.timestamp())
        self._began = self._clock.now
        self._patience = patience
        self._random = random.Random(seed)  # noqa: S311 - jitter, not a secret
        self._world: World | None = None
        self._member: Member | None = None
        self._last: Member | None = None
        """The one that has ended last."""
        self._replayed: set[str] = set()
        """Places of dead letters that were brought back."""
        self._assembly: Assembly
        self._topics: Topics

    # -------------------------------------------------------------------------------------------- its life

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        member = self._member
        if member is None:
            return
        if kind is None and member.exit_code != 70:
            self.stop()
        else:
            self.crash(restart=False)

    def start(self) -> None:
        """Start the loop: on_startup runs, and all partitions are assigned at their committed offsets.

        ``with`` does it; also to be called after stop() or crash(restart=False).
        """
        if self._member is not None:
            raise HarnessError("the loop runs already: stop() it first")
        try:
            asyncio.get_running_loop()
        except RuntimeError:
            pass
        else:
            raise HarnessError("the harness brings an event loop of its own: write the test as a plain def")
        self._assemble()
        assert self._world is not None
        member = Member(self._loop, self._assembly, self._topics, self._world)
        self._member = member
        try:
            member.start()
        except BaseException:
            self._member = None
            member.kill()
            raise

    def _assemble(self) -> None:
        from streamloop.preflight import topics_of
        from streamloop.routing import TargetFacts

        loop = self._loop
        overrides = loop._overrides  # noqa: SLF001 - the harness stands where the command line does
        loop._overrides = {**overrides, **self._settings}  # noqa: SLF001
        try:
            self._assembly = loop.assemble(needs_broker=False)
        finally:
            loop._overrides = overrides  # noqa: SLF001
        self._topics = topics = topics_of(self._assembly)
        for source in topics.sources.values():
            count = len(self._broker.topic(source.name).partitions)
            targets = [retry.name for retry in source.retry]
            if source.dead is not None:
                targets.append(source.dead)
            if source.replay is not None:
                targets.append(source.replay)
            for name in targets:
                target = self._broker.topic(name, count)
                topics.facts[name] = TargetFacts(len(target.partitions), target.max_message_bytes)
        if self._world is None:
            journal = Journal(self._assembly.settings.group, topics.is_source)
            self._world = World(
                self._broker, self._clock, journal, self._random.random, self._patience, epochs={}
            )

    def stop(self) -> None:
        """Drain, commit, run on_shutdown, and end the loop, as SIGTERM would."""
        self._member, member = None, self._live()
        self._last = member
        member.stop()

    def crash(self, *, restart: bool = True) -> None:
        """End the loop as kill -9 would, and start it again at what was committed.

        What was not committed comes again. A ``def`` handler that runs in a thread goes on to its end,
        and nothing hears of it.
        """
        self._member, member = None, self._live()
        self._last = member
        member.kill()
        if restart:
            self.start()

    def _live(self) -> Member:
        if self._member is None:
            raise HarnessError("the loop does not run: use 'with Harness(loop) as kafka', or start()")
        return self._member

    @property
    def exit_code(self) -> int | None:
        """What the process would have ended with: 1 after a fatal error, 70 when a handler did not come back.

        None while the loop runs.
        """
        member = self._member or self._last
        return None if member is None else member.exit_code

    @property
    def exit_reason(self) -> str:
        """Why it ended, as a sentence; '' while it runs."""
        member = self._member or self._last
        return "" if member is None else member.exit_reason

    # -------------------------------------------------------------------------------------------- messages

    def send(
        self,
        topic: str,
        value: object,
        *,
        key: bytes | str | None = None,
        headers: Headers | None = None,
        partition: int | None = None,
        timestamp: int | None = None,
        codec: str | Codec | None = None,
    ) -> KafkaRecord:
        """Append a record to a topic that the loop reads, and return it. Nothing is handled before run().

        ``value``: bytes, str, None, or what JSON (or ``codec``) can encode. Without ``partition`` the key
        places it as Java clients do (murmur2), and without a key the partitions take turns. ``timestamp``:
        epoch ms, now by default. Raises HarnessError for a topic that the loop does not read.
        """
        name = self._readable(topic)
        count = len(self._broker.topic(name).partitions)
        if partition is not None and not 0 <= partition < count:
            raise HarnessError(f"{name} has the partitions 0 to {count - 1}, and no {partition}")
        pairs = headers.items() if isinstance(headers, Mapping) else headers or ()
        record = self._broker.append(
            name,
            partition,
            key.encode() if isinstance(key, str) else key,
            codecs.encode(value, codec),
            [(each, value.encode() if isinstance(value, str) else value) for each, value in pairs],
            int(self._clock.wall() * 1000) if timestamp is None else timestamp,
        )
        if self._member is not None:
            self._member.poke()
        return record

    def replay(self, topic: str | None = None) -> list[KafkaRecord]:
        """Bring back the dead letters of a source topic (of all by default) that were not brought back yet.

        As ``streamloop dlq replay`` does it: into the replay topic, so that attempts and age start anew.
        Returns the records there; nothing is handled before run().
        """
        now_ms = int(self._clock.wall() * 1000)
        back: list[KafkaRecord] = []
        for dead in self.dead_letters(topic):
            place = f"{dead.topic}/{dead.partition}/{dead.offset}"
            if place in self._replayed:
                continue
            self._replayed.add(place)
            source = self._topics.sources[dead.original[0]]
            assert source.replay is not None  # a consumer with dead letters has one
            stamp = dead.header(hd.ORIGINAL_TIMESTAMP)
            headers = hd.replay_headers(
                list(dead.headers),
                original=hd.Coordinates(*dead.original, None if stamp is None else int(stamp)),
                group=self._assembly.settings.group,
                replay_id="harness",
                replay_count=int(dead.header(hd.REPLAY_COUNT) or 0) + 1,
                replayed_from=place,
                now_ms=now_ms,
            )
            partition = dead.partition % len(self._broker.topic(source.replay).partitions)
            back.append(self._broker.append(source.replay, partition, dead.key, dead.value, headers, now_ms))
        if back and self._member is not None:
            self._member.poke()
        return back

    def run(self, *, until: Callable[[], bool] | None = None, limit: float | None = None) -> None:
        """Let the loop work until nothing is left that would happen by itself; time passes as it has to.

        ``until``: stop earlier, when this is true (it is asked whenever time is about to pass). ``limit``:
        seconds of virtual time (default: a day more than all retry topics take). Returns also when messages
        are held by something that the test has to end (a blocked topic, a pause): pending() names them.
        Raises StillWaitingError at the limit, with what still waits.
        """
        if limit is None:
            plans = [build.settings.retry_topics for build in self._assembly.consumers]
            limit = DAY + sum(map(sum, plans))
        self._live().run(until, limit)

    def advance(self, seconds: float) -> None:
        """Let exactly so many seconds of virtual time pass, and everything happen that is due by then."""
        self._live().run_for(seconds, lambda: False)

    @property
    def now(self) -> float:
        """What the virtual clock shows: epoch seconds."""
        return self._clock.wall()

    @property
    def elapsed(self) -> float:
        """Seconds of virtual time since the harness was made."""
        return self._clock.now - self._began

    # --------------------------------------------------------------------------------------- what came of it

    def outcomes(self, topic: str | None = None) -> list[MessageOutcome]:
        """What became of each message that was read, in that order: states, attempts, outcome."""
        name = None if topic is None else self._source(topic).name
        journal = self._world.journal if self._world is not None else None
        found = journal.outcomes() if journal is not None else []
        return [each for each in found if name is None or each.topic == name]

    def outcome(self, sent: KafkaRecord) -> MessageOutcome:
        """What became of one message that send() returned. Raises HarnessError when it was not read yet."""
        for each in self.outcomes():
            if (each.topic, each.partition, each.offset) == (sent.topic, sent.partition, sent.offset):
                return each
        raise HarnessError(f"{sent.topic}/{sent.partition}/{sent.offset} was not read yet: run() first")

    def dead_letters(self, topic: str | None = None) -> list[RoutedRecord]:
        """The dead letters of a source topic (of all by default), in the order of their publication.

        Raises HarnessError for a topic that the loop does not read, or that has no dead letters.
        """
        return self._routed(
            [self.dead_letter_topic(each.name) for each in self._sources(topic) if each.dead or topic]
        )

    def retries(self, topic: str | None = None) -> list[RoutedRecord]:
        """What was published to the retry topics of a source topic (of all by default), in that order."""
        return self._routed([retry.name for each in self._sources(topic) for retry in each.retry])

    def _routed(self, names: list[str]) -> list[RoutedRecord]:
        return [
            RoutedRecord(
                each.topic, each.partition, each.offset, each.key, each.value, each.headers, each.timestamp
            )
            for each in self._broker.published
            if each.topic in names
        ]

    def published(self, topic: str | None = None) -> list[KafkaRecord]:
        """What handlers published to a topic, or to all topics, in that order."""
        routed = {retry.name for each in self._topics.sources.values() for retry in each.retry}
        routed |= set(self._topics.dead_names)
        return [
            each
            for each in self._broker.published
            if (each.topic == topic if topic is not None else each.topic not in routed)
        ]

    def committed(self, topic: str) -> dict[int, int]:
        """The committed offset of each partition of a source or retry topic that has records."""
        name = self._readable(topic)
        logs = self._broker.topic(name).partitions
        found = {}
        for partition, log in enumerate(logs):
            position = self._broker.committed.get(TopicPartition(name, partition))
            if log and position is not None:
                found[partition] = position.offset
        return found

    def pending(self) -> list[Waiting]:
        """The messages that are not acknowledged, with the reason; each prints as a line."""
        return self._live().waiting()

    def running(self) -> list[Running]:
        """The handlers that run now: consumer, start, deadline, stack."""
        return [running for runner in self._live().core.runners for running in runner.running()]

    # ------------------------------------------------------------------------------------------- the broker

    def block(self, topic: str, reason: str = "the topic takes no records now") -> None:
        """The topic takes no records until unblock(): as when it is missing, denied or full."""
        self._broker.topic(topic).blocked = reason

    def unblock(self, topic: str) -> None:
        """The topic takes records again, and those that wait go on."""
        self._broker.topic(topic).blocked = ""
        if self._member is not None:
            self._member.publisher.unblock(topic)

    def refuse(self, topic: str, reason: str = "the record is invalid") -> None:
        """The topic refuses each record, as one with cleanup.policy=compact refuses null keys."""
        self._broker.topic(topic).refused = reason

    def accept(self, topic: str) -> None:
        """The topic refuses nothing any more."""
        self._broker.topic(topic).refused = ""

    def limit_size(self, topic: str, max_message_bytes: int | None) -> None:
        """The topic refuses records that are larger than this as too large; None: no limit."""
        self._broker.topic(topic).max_message_bytes = max_message_bytes
        if (facts := self._topics.facts.get(topic)) is not None:
            facts.max_message_bytes = max_message_bytes

    # ------------------------------------------------------------------------------------------ rebalances

    def revoke(self, topic: str, partition: int | None = None) -> None:
        """A partition (or all of a topic) goes to another member: running handlers get ``revoke_wait``, what
        is acknowledged is committed, and then it leaves. Returns when it has left.
        """
        member = self._live()
        intake, names = self._assigned(topic, partition)
        intake.revoke(names)
        member.run_for(self._assembly.settings.revoke_wait, lambda: intake.is_quiet(names))
        intake.close(names, lost=False)
        member.settle()

    def lose(self, topic: str, partition: int | None = None) -> None:
        """A partition (or all of a topic) is lost: nothing of it is acknowledged or committed any more."""
        intake, names = self._assigned(topic, partition)
        intake.close(names, lost=True)
        self._live().settle()

    def assign(self, topic: str, partition: int | None = None) -> None:
        """A partition (or all of a topic) comes back, at its committed offset and in a new epoch."""
        intake, names = self._of(topic, partition)
        intake.assign(names)

    def _assigned(self, topic: str, partition: int | None) -> tuple[HarnessIntake, list[TopicPartition]]:
        intake, names = self._of(topic, partition)
        assigned = [name for name in names if name in intake.assigned]
        if not assigned:
            shown = topic if partition is None else f"{topic}/{partition}"
            raise HarnessError(f"{shown} is not assigned: assign() it first")
        return intake, assigned

    def _of(self, topic: str, partition: int | None) -> tuple[HarnessIntake, list[TopicPartition]]:
        name = self._readable(topic)
        member = self._live()
        intake = member.intakes[not self._topics.is_source(name)]
        names = [each for each in member.partitions(intake) if each.topic == name]
        if partition is not None:
            names = [each for each in names if each.partition == partition]
            if not names:
                raise HarnessError(f"{name} has no partition {partition}")
        return intake, names

    # ---------------------------------------------------------------------------------------------- topics

    def retry_topics(self, topic: str) -> list[str]:
        """The retry topics of a source topic, in the order in which they are used."""
        return [retry.name for retry in self._source(topic).retry]

    def dead_letter_topic(self, topic: str) -> str:
        """The dead-letter topic of a source topic."""
        source = self._source(topic)
        if source.dead is None:
            raise HarnessError(f"{source.name} has no dead-letter topic: its consumer has dead_letter=False")
        return source.dead

    def _sources(self, topic: str | None) -> Iterable[SourceTopic]:
        return self._topics.sources.values() if topic is None else [self._source(topic)]

    def _source(self, topic: str) -> SourceTopic:
        self._check_started()
        actual = self._assembly.settings.topics.get(topic, topic)
        source = self._topics.sources.get(actual)
        if source is None:
            raise HarnessError(
                f"no handler of this loop reads {topic!r}: it reads {', '.join(self._topics.sources)}"
            )
        return source

    def _readable(self, topic: str) -> str:
        self._check_started()
        return topic if topic in self._topics.own_names else self._source(topic).name

    def _check_started(self) -> None:
        if self._world is None:
            raise HarnessError("the loop has not started: use 'with Harness(loop) as kafka'")

    def __repr__(self) -> str:
        state = "not running" if self._member is None else f"{len(self.pending())} pending"
        return f"<Harness of {self._loop!r}: {self.elapsed:.3f} s, {state}>"
