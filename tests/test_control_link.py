"""A member's link to the control topic, on clients of the test: what it does when something fails."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, KafkaError

from streamloop.control.link import ControlLink
from streamloop.control.records import (
    OperatorHold,
    Scope,
    hold_value,
    read_status,
    status_key,
    status_value,
)
from streamloop.control.state import Snapshot
from streamloop.control.writes import ControlError
from streamloop.kafka.topic_admin import BrokersUnreachableError
from streamloop.kafka.topics import Commands, TopicFacts, Untold
from streamloop.settings import Settings
from tests.realkafka.waiting import wait_until
from tests.test_control import record, status

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from streamloop.kafka.topic_admin import NewlyMade


class FakeMessage:
    def __init__(
        self, offset: int, key: bytes | None, value: bytes | None, headers: Any = None, error: Any = None
    ) -> None:
        self._given = offset, key, value, headers, error

    def offset(self) -> int:
        return self._given[0]

    def key(self) -> bytes | None:
        return self._given[1]

    def value(self) -> bytes | None:
        return self._given[2]

    def headers(self) -> Any:
        return self._given[3]

    def error(self) -> Any:
        return self._given[4]

    def timestamp(self) -> tuple[int, int]:
        return TIMESTAMP_LOG_APPEND_TIME, 0


class FakeTopic:
    """The topic, its brokers' admin side and the two clients of one link."""

    def __init__(self) -> None:
        self.records: list[FakeMessage] = []
        self.facts: list[Any] = [TopicFacts("billing.control", "id-1", 1, cleanup_policy="compact")]
        """What describe() finds; the last answer stays."""
        self.refuses = ""
        self.commands = Commands("here:9092")
        self.errors: list[Any] = []
        self.refuses_records: Any = None
        self._lock = threading.Lock()
        self._at = 0
        self._told_end = False

    def put(self, key: bytes, value: bytes | None, headers: Any = None) -> FakeMessage:
        with self._lock:
            self.records.append(FakeMessage(len(self.records), key, value, headers))
            return self.records[-1]

    def newest(self, key: bytes) -> FakeMessage | None:
        found = [each for each in self.records if each.key() == key]
        return found[-1] if found else None

    # -- the admin client

    def describe(self, names: Any, timeout: float, *, configs: bool = True) -> dict[str, Any]:
        answer = self.facts.pop(0) if len(self.facts) > 1 else self.facts[0]
        if isinstance(answer, Exception):
            raise answer
        return {"billing.control": answer}

    def create(self, topics: Sequence[NewlyMade], timeout: float) -> dict[str, str]:
        [self.created] = topics
        return {self.created.name: self.refuses} if self.refuses else {}

    # -- the Consumer

    def consumer(self, properties: dict[str, Any]) -> FakeTopic:
        self.properties = properties
        self._at, self._told_end = 0, False
        return self

    def assign(self, _partitions: Any) -> None: ...

    def poll(self, timeout: float = 0.0) -> Any:
        if self.errors:
            error = self.errors.pop(0)
            if isinstance(error, Exception):
                raise error
            return FakeMessage(-1, None, None, error=error)
        with self._lock:
            if self._at < len(self.records):
                self._at += 1
                return self.records[self._at - 1]
        if not self._told_end:
            self._told_end = True
            return FakeMessage(self._at, None, None, error=KafkaError(KafkaError._PARTITION_EOF))
        threading.Event().wait(min(timeout, 0.005))
        return None

    def consume(self, count: int, timeout: float) -> list[Any]:
        return []

    def close(self) -> None: ...

    # -- the Producer

    def producer(self, _properties: dict[str, Any]) -> FakeProducer:
        return FakeProducer(self)


class FakeProducer:
    def __init__(self, topic: FakeTopic) -> None:
        self._topic = topic

    def produce(
        self, _name: str, *, value: bytes | None, key: bytes, partition: int, headers: Any, on_delivery: Any
    ) -> None:
        assert partition == 0
        if self._topic.refuses_records is not None:
            on_delivery(self._topic.refuses_records, None)
        else:
            on_delivery(None, self._topic.put(key, value, headers))

    def poll(self, _timeout: float) -> int:
        return 0

    def flush(self, _timeout: float) -> int:
        return 0


class Linked:
    """A link of the member 'a' to a fake topic."""

    def __init__(self) -> None:
        self.topic = FakeTopic()
        self.snapshots: list[Snapshot] = []
        settings = Settings.load({"group": "billing", "member": "a", "brokers": "here:9092"}).settings
        topic: Any = self.topic
        self.link = ControlLink(
            settings,
            topic,
            status=status,
            took=self.snapshots.append,
            applied=lambda: self.snapshots[-1] if self.snapshots else Snapshot({}),
            consumer_factory=self.topic.consumer,
            producer_factory=self.topic.producer,
        )
        self.link._backoff = 0.01
        self.link._later = lambda: 0.01  # type: ignore[method-assign]

    def start(self) -> None:
        self.link.start()
        assert self.link.first_read.wait(10)

    @property
    def held(self) -> dict[Scope, OperatorHold]:
        return dict(self.snapshots[-1].holds)

    def own(self) -> FakeMessage:
        found = wait_until(lambda: self.topic.newest(status_key("a")), message="its status")
        assert found is not None
        return found


@pytest.fixture
def linked() -> Iterator[Linked]:
    made = Linked()
    yield made
    made.link.close()
    assert not made.link._thread.is_alive()


def test_what_is_held_is_known_before_the_first_read_is_said_to_be_over(linked: Linked) -> None:
    hold = OperatorHold(Scope(), "alice", 1.0)
    linked.topic.put(hold.scope.key, hold_value(hold))
    linked.start()
    assert linked.held == {Scope(): hold}
    assert linked.link.on
    assert linked.topic.properties["group.id"] == "billing"
    assert "group.instance.id" not in linked.topic.properties


def test_brokers_that_are_away_and_answers_that_tell_nothing_are_tried_again(linked: Linked) -> None:
    there = linked.topic.facts[0]
    linked.topic.facts = [BrokersUnreachableError("away"), Untold("no broker answered in time"), there]
    linked.topic.errors = [KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART), RuntimeError("a bug of ours")]
    linked.start()
    assert linked.link.on
    assert linked.own().value()


def test_a_missing_topic_is_made_compacted_with_one_partition_as_safe_as_the_source(linked: Linked) -> None:
    there = linked.topic.facts[0]
    linked.topic.facts = [None, there]
    source = TopicFacts("orders", "x", 9, replication_factor=3, min_insync_replicas=2)
    linked.link._facts = lambda: [source]
    linked.start()
    made = linked.topic.created
    assert (made.name, made.partitions, made.replication_factor) == ("billing.control", 1, 3)
    assert (made.config["cleanup.policy"], made.config["min.insync.replicas"]) == ("compact", "2")


@pytest.mark.parametrize(
    ("facts", "error", "says"),
    [
        ([None], None, "could not be created (Topic authorization failed)"),
        ([Untold("Topic authorization failed")], None, "authorization failed"),
        (None, KafkaError.TOPIC_AUTHORIZATION_FAILED, "may not be read here"),
    ],
)
def test_where_the_topic_may_not_be_made_or_read_the_member_is_on_its_own_and_says_so_once(
    linked: Linked, facts: Any, error: Any, says: str, caplog: pytest.LogCaptureFixture
) -> None:
    linked.topic.facts = facts or linked.topic.facts
    linked.topic.errors = [KafkaError(error)] if error else []
    linked.topic.refuses = "Topic authorization failed"
    linked.start()
    shown = linked.link.status()
    assert (shown.state, says in shown.detail) == ("off", True)
    with pytest.raises(ControlError, match="only this member"):
        linked.link.pause(Scope(), "alice")
    assert sum(says in each for each in caplog.messages) == 1


def test_an_operators_record_comes_back_to_who_wrote_it_and_a_refusal_is_told(linked: Linked) -> None:
    linked.start()
    offset = linked.link.pause(Scope("orders"), "alice", "audit")
    assert linked.link.await_read(offset)
    assert linked.held[Scope("orders")].reason == "audit"
    other = linked.link.pause(Scope("orders", 1), "alice")
    assert linked.link.await_read(other)
    offset = linked.link.resume(Scope(), "bob")
    assert linked.link.await_read(offset)
    assert linked.held == {}
    newest = linked.topic.newest(Scope("orders").key)
    assert newest is not None
    assert newest.headers() == [("streamloop-by", b"bob")]
    linked.topic.refuses_records = KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED)
    with pytest.raises(ControlError, match="does not take it"):
        linked.link.pause(Scope(), "alice")
    assert not linked.link.on
    assert "may not be written" in linked.link.status().detail


def test_a_status_that_somebody_took_away_is_written_again(linked: Linked) -> None:
    linked.start()
    first = linked.own()
    linked.topic.put(status_key("a"), None)
    wait_until(lambda: linked.own().offset() > first.offset() + 1, 30, "its status again")
    assert linked.own().value()


def test_who_leaves_takes_its_status_away(linked: Linked) -> None:
    linked.start()
    assert linked.own().value()
    linked.link.close()
    assert linked.own().value() is None


def test_who_is_ended_by_an_error_leaves_word_of_it(linked: Linked) -> None:
    linked.start()
    linked.own()
    linked.link.close("stopped at orders/0/5")
    value = linked.own().value()
    assert value is not None
    read = read_status(value)
    assert read is not None
    assert read.ended == "stopped at orders/0/5"


def test_another_process_of_the_same_name_is_named_and_its_status_is_left_alone(
    linked: Linked, caplog: pytest.LogCaptureFixture
) -> None:
    linked.start()
    linked.own()
    twin = record("a")
    twin_value = status_value(type(twin)(**{**{n: getattr(twin, n) for n in twin.__slots__}, "at": 9e9}))
    for _ in range(2):
        linked.topic.put(status_key("a"), twin_value)
    wait_until(lambda: any("name a too" in each for each in caplog.messages), 30, "the warning")
    linked.link.close()
    assert sum("name a too" in each for each in caplog.messages) == 1
    assert linked.own().value() == twin_value


def test_members_that_are_gone_for_good_are_taken_out(linked: Linked) -> None:
    linked.topic.put(status_key("z-old"), status_value(record("z-old")))  # of the year 1970, says the broker
    linked.start()

    def taken_out() -> bool:
        newest = linked.topic.newest(status_key("z-old"))
        return newest is not None and newest.value() is None

    wait_until(taken_out, 30, "its null")


def test_what_was_resumed_while_this_member_was_away_is_not_held_again(linked: Linked) -> None:
    hold = OperatorHold(Scope(), "alice", 1.0)
    record = linked.topic.put(hold.scope.key, hold_value(hold))
    linked.start()
    linked.topic.records.remove(record)  # resumed, and compacted away since
    linked.topic.errors = [KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)]
    wait_until(lambda: linked.held == {}, 30, "its release")
    assert linked.topic.newest(hold.scope.key) is None


def test_what_is_held_is_written_again_into_a_topic_that_was_made_anew(linked: Linked) -> None:
    hold = OperatorHold(Scope(), "alice", 1.0)
    resumed = OperatorHold(Scope("orders"), "alice", 1.0)
    for each in (hold, resumed):
        linked.topic.put(each.scope.key, hold_value(each))
    linked.start()
    linked.topic.records.clear()
    linked.topic.put(resumed.scope.key, None)  # another member was faster, and it was resumed there
    linked.topic.facts = [TopicFacts("billing.control", "id-2", 1, cleanup_policy="compact")]
    linked.topic.errors = [KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)]
    wait_until(lambda: linked.topic.newest(hold.scope.key), 30, "its record")
    wait_until(lambda: linked.held == {Scope(): hold}, 30, "what is held")
    assert all(Scope() in each.holds for each in linked.snapshots)  # never released meanwhile


def test_without_the_topic_what_the_group_holds_can_be_released_at_this_member(linked: Linked) -> None:
    hold = OperatorHold(Scope(), "alice", 1.0)
    linked.topic.put(hold.scope.key, hold_value(hold))
    linked.start()
    linked.topic.facts = [None]
    linked.topic.refuses = "Policy violation"
    linked.topic.errors = [KafkaError(KafkaError.UNKNOWN_TOPIC_OR_PART)]
    wait_until(lambda: linked.link.status().state == "off", 30, "that it is off")
    assert linked.held == {Scope(): hold}  # what was held stays held
    linked.link.forget(Scope())
    assert linked.held == {}


def test_records_that_are_not_for_this_version_are_named_once(
    linked: Linked, caplog: pytest.LogCaptureFixture
) -> None:
    for number in range(5):
        linked.topic.put(b"breaker/db", b'{"v":1}')
        linked.topic.put(b"status/x%d" % number, b'{"v":2}')
    with caplog.at_level(logging.WARNING):
        linked.start()
        wait_until(lambda: any("not for this version" in each for each in caplog.messages), 30, "the warning")
        linked.topic.put(b"breaker/db", b'{"v":1}')
        linked.own()
    assert sum("not for this version" in each for each in caplog.messages) == 1
