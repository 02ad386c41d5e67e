"""The members of one group, in threads of the test and in processes, and the journal of what they handled.

What calls it: the tests named test_group_*. All members run the handler of work.py, with short sessions and
frequent commits. It must never look inside a member: what is known of it is its status, its log, its journal
and what the broker says.
"""

import json
import os
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicCollection

from streamloop import RunResult, StreamLoop
from streamloop.engine.metadata import Identity, Ignored, Restored, decode
from streamloop.kafka.topics import shown_id
from streamloop.status import LoopStatus, PartitionStatus
from tests.broker.apps import work
from tests.broker.apps.work import Work
from tests.realkafka import CommittedOffset, KafkaCluster, Member, Members, Record, wait_until
from tests.realkafka.client import unique_name

Protocol = Literal["consumer", "classic"]
Part = tuple[str, int]
"""A topic and a partition."""

HEARTBEAT_MS = 300


@dataclass(frozen=True, slots=True)
class Line:
    """A line of the journal. ``at``: monotonic seconds, the same clock for all processes of the machine."""

    at: float
    event: str
    member: str
    id: int
    run: int
    topic: str
    partition: int
    offset: int
    attempt: int
    read_from: str


class Journal:
    """What all members of a team wrote, in the order in which they wrote it.

    ``look`` raises when a member has failed, so that nobody waits for what it would have written.
    """

    def __init__(self, path: Path, look: Callable[[], None]) -> None:
        self._path = path
        self._look = look
        self._read = 0
        self._lines: list[Line] = []
        path.touch()

    def lines(
        self, event: str | None = None, *, member: str | None = None, number: int | None = None
    ) -> list[Line]:
        """The lines so far; of one event, one member, one message."""
        with self._path.open("rb") as file:
            file.seek(self._read)
            new = file.read()
        whole = new[: new.rfind(b"\n") + 1]
        self._read += len(whole)
        self._lines += [Line(**json.loads(line)) for line in whole.splitlines()]
        return [
            line
            for line in self._lines
            if event in (None, line.event) and member in (None, line.member) and number in (None, line.id)
        ]

    def ids(self, event: str, *, member: str | None = None) -> list[int]:
        """The messages' numbers, in the order of the lines."""
        return [line.id for line in self.lines(event, member=member)]

    def times(self, event: str) -> Counter[int]:
        """How often each message had this event."""
        return Counter(self.ids(event))

    def await_lines(
        self, event: str, ids: Iterable[int], *, member: str | None = None, timeout: float = 30.0
    ) -> None:
        """Wait until all these messages have the event."""
        wanted = set(ids)

        def written() -> bool:
            self._look()
            return wanted <= set(self.ids(event, member=member))

        wait_until(
            written,
            timeout,
            lambda: (
                f"'{event}' by {member or 'anyone'} of messages "
                f"{sorted(wanted - set(self.ids(event, member=member)))[:20]}"
            ),
        )


class LocalMember:
    """A member that runs in a thread of the test."""

    def __init__(self, name: str, loop: StreamLoop[None], bounds: Mapping[str, Any]) -> None:
        self.name = name
        self.loop = loop
        self.result: RunResult | None = None
        self.failure: BaseException | None = None
        self._bounds = dict(bounds)
        self._thread = threading.Thread(target=self._run, name=f"member-{name}", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        try:
            self.result = self.loop.run(handle_signals=False, **self._bounds)
        except BaseException as error:
            self.failure = error

    @property
    def running(self) -> bool:
        return self._thread.is_alive()

    @property
    def status(self) -> LoopStatus:
        """Its status; waits until it has one."""
        if not self.running:
            self.wait(0)
            raise AssertionError(f"member {self.name} has ended: {self.result}")
        status = wait_until(self.loop.status, message=f"a status of {self.name}")
        assert status is not None
        return status

    @property
    def parts(self) -> dict[Part, PartitionStatus]:
        """What it is assigned."""
        return {(part.topic, part.partition): part for part in self.status.partitions}

    @property
    def held(self) -> dict[Part, set[str]]:
        """The reasons that hold its partitions, of those that are held."""
        return {name: set(part.held) for name, part in self.parts.items() if part.held}

    @property
    def counts(self) -> dict[str, int]:
        """The counters of its consumer."""
        return self.status.consumers[0].counts

    def rebalances(self, intake: str = "source") -> dict[str, int]:
        """How often partitions were assigned, revoked and lost."""
        found: dict[str, int] = {}
        for labels, value in self.loop.metrics()["loop_rebalances_total"].items():
            given = dict(labels)
            if given["consumer"] == intake:
                found[given["event"]] = int(value)
        return found

    def stop(self, timeout: float = 30.0) -> RunResult:
        """Drain, and return how it ended."""
        self.loop.stop()
        return self.wait(timeout)

    def wait(self, timeout: float = 30.0) -> RunResult:
        """How it ended. AssertionError when it runs on, or its error."""
        self._thread.join(timeout)
        if self.failure is not None:
            raise self.failure
        assert self.result is not None, f"member {self.name} still runs after {timeout:g} s"
        return self.result


class ProcessMember:
    """A member that runs in a process of its own: `streamloop run`."""

    def __init__(self, name: str, member: Member, status: Path) -> None:
        self.name = name
        self.process = member
        self._status = status

    def parts(self) -> dict[Part, dict[str, Any]]:
        """What it was assigned when it last said so; nothing before it has said anything."""
        if not self._status.exists():
            return {}
        status = json.loads(self._status.read_text(encoding="utf-8"))
        return {(part["topic"], part["partition"]): part for part in status["partitions"]}

    def log(self, kind: str) -> list[dict[str, Any]]:
        """The lines of its log of one kind."""
        found = []
        for text in self.process.lines:
            if text.startswith("{"):
                line = json.loads(text)
                if line.get("kind") == kind:
                    found.append(line)
        return found


class Team:
    """The members of one group."""

    def __init__(
        self,
        kafka: KafkaCluster,
        group: str,
        protocol: Protocol,
        members: Members,
        folder: Path,
        *,
        session: float = 4.0,
    ) -> None:
        self.kafka = kafka
        self.group = group
        self.protocol: Protocol = protocol
        self.folder = folder
        self.session = session
        """Seconds of silence after which the group goes on without a member."""
        self._members = members
        self._local: list[LocalMember] = []
        self.journal = Journal(folder / work.JOURNAL, self._look)
        if protocol == "consumer":
            for each in (group, f"{group}.retry"):
                kafka.set_group_config(
                    each,
                    consumer_session_timeout_ms=str(int(session * 1000)),
                    consumer_heartbeat_interval_ms=str(HEARTBEAT_MS),
                )

    def _look(self) -> None:
        for member in self._local:
            if member.failure is not None:
                raise member.failure

    def topic(self, partitions: int = 1, *, name: str | None = None) -> str:
        """A new topic. Its name is short: that of its dead-letter topic holds the group's too."""
        return self.kafka.create_topic(partitions, name=name, prefix="t")

    def _kafka_settings(self, more: Mapping[str, Any]) -> dict[str, Any]:
        consumer: dict[str, Any] = {"fetch.wait.max.ms": 50, "topic.metadata.refresh.interval.ms": 1000}
        if self.protocol == "classic":
            consumer |= {
                "session.timeout.ms": int(self.session * 1000),
                "heartbeat.interval.ms": HEARTBEAT_MS,
            }
        return consumer | dict(more)

    def _settings(self, settings: Mapping[str, Any]) -> dict[str, Any]:
        return {
            "brokers": self.kafka.bootstrap,
            "group": self.group,
            "group_protocol": self.protocol,
            "commit_interval": 0.1,
            "revoke_wait": 2.0,
            "drain_timeout": 5.0,
            "retry_topics": "none",
            # What is not about dead letters reads no replay topic either: partitions are the source's alone.
            "dead_letter": False,
            **settings,
        }

    def local(
        self,
        name: str,
        *topics: str,
        bounds: Mapping[str, Any] | None = None,
        consumer: Mapping[str, Any] | None = None,
        properties: Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> LocalMember:
        """Start a member in a thread. ``consumer``: what is declared at its @consumer; ``properties``: of its
        Kafka Consumers; the rest are settings.
        """
        given = self._settings(settings) | {"kafka": {"consumer": self._kafka_settings(properties or {})}}
        loop = work.build(name, topics, self.folder, given, dict(consumer or {}))
        member = LocalMember(name, loop, bounds or {})
        self._local.append(member)
        return member

    def process(
        self,
        name: str,
        *topics: str,
        arguments: Iterable[str] = (),
        properties: Mapping[str, Any] | None = None,
        **settings: Any,
    ) -> ProcessMember:
        """Start a member in a process: `streamloop run` with ``arguments`` and settings as options."""
        given = self._settings(settings)
        given |= {
            f"kafka.consumer.{key}": value for key, value in self._kafka_settings(properties or {}).items()
        }
        options = [part for key, value in given.items() for part in ("--set", f"{key}={value}")]
        status = self.folder / f"status.{name}"
        status.unlink(missing_ok=True)
        member = self._members.start_module(
            "streamloop.cli.main",
            "run",
            "tests.broker.apps.work:loop",
            *arguments,
            *options,
            name=name,
            env={
                work.FOLDER: str(self.folder),
                work.TOPICS: ",".join(topics),
                "STREAMLOOP_MEMBER": name,
                "STREAMLOOP_LOG_FORMAT": "json",
            },
        )
        return ProcessMember(name, member, status)

    # -- what is to be done

    def send(self, topic: str, works: Iterable[Work], partition: int | None = None) -> None:
        """Produce messages; the number is the key."""
        records = [
            Record(json.dumps(vars(each)).encode(), b"%d" % each.id, partition=partition) for each in works
        ]
        try:
            self.kafka.produce(topic, records)
        except KafkaException as error:
            if error.args[0].code() != KafkaError._UNKNOWN_PARTITION:
                raise
            # The partition is younger than what the producer knows; the next call makes a new one.
            self.kafka.produce(topic, records)

    def open(self, gate: str) -> None:
        """Let messages pass that wait at this gate."""
        (self.folder / gate).touch()

    # -- what the broker says

    def committed(self, topic: str) -> dict[int, int]:
        """The group's committed offsets."""
        return {partition: found.offset for partition, found in self._committed(topic).items()}

    def _committed(self, topic: str) -> dict[int, CommittedOffset]:
        """Asked again while the group's coordinator is being moved or made."""

        def ask() -> list[dict[int, CommittedOffset]]:
            try:
                return [self.kafka.committed(self.group, topic)]
            except KafkaException as error:
                if not error.args[0].retriable() and error.args[0].code() != KafkaError.NOT_COORDINATOR:
                    raise
                return []

        return wait_until(ask, message=f"the coordinator of {self.group}")[0]

    def acknowledged(self, topic: str, partition: int) -> set[int]:
        """The offsets that the committed offset and its metadata say are done."""
        found = self._committed(topic).get(partition)
        if found is None:
            return set()
        done = set(range(found.offset))
        said = decode(found.metadata, self.identity(topic), found.offset)
        assert not isinstance(said, Ignored), said
        if isinstance(said, Restored):
            for start, end in said.runs:
                done |= set(range(start, end))
        return done

    def identity(self, topic: str) -> Identity:
        """What the metadata of this group's commits belongs to."""
        cluster = self.kafka.admin.describe_cluster().result(10).cluster_id
        described = self.kafka.admin.describe_topics(TopicCollection([topic]))[topic].result(10)
        return Identity(cluster, shown_id(described.topic_id), self.group)

    def await_lag_0(self, topic: str, timeout: float = 30.0) -> None:
        """Wait until all of the topic is committed."""
        wait_until(
            lambda: self.committed(topic) == self.kafka.end_offsets(topic),
            timeout,
            lambda: f"lag 0 of {topic} (committed: {self.committed(topic)})",
        )

    # -- the end

    def close(self) -> None:
        """Open all gates and end the members in threads; the processes are ended by their own fixture."""
        self.open(work.EVERY_GATE)
        for member in self._local:
            member.loop.stop()
        stuck = []
        for member in self._local:
            try:
                member.wait(30)
            except AssertionError as error:
                stuck.append(str(error))
            except Exception:  # the test has seen it, or will fail for its consequences
                continue
        assert not stuck, stuck


def now() -> float:
    """The journal's clock."""
    return time.monotonic()


def works(ids: Iterable[int], **more: Any) -> list[Work]:
    """A message for each number."""
    return [Work(each, **more) for each in ids]


@pytest.fixture(params=["consumer", "classic"])
def protocol(request: pytest.FixtureRequest) -> Protocol:
    """Both group protocols: every test of a group runs with each."""
    given: Protocol = request.param
    return given


@pytest.fixture
def team(kafka: KafkaCluster, protocol: Protocol, members: Members, tmp_path: Path) -> Iterator[Team]:
    """The members of the test's group."""
    folder = tmp_path / "team"
    os.mkdir(folder)
    made = Team(kafka, unique_name("g"), protocol, members, folder)
    try:
        yield made
    finally:
        made.close()
        print("--- journal")
        for line in made.journal.lines()[-60:]:
            print(line)
