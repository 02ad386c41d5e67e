"""What a handler sees of its message, and what it can publish."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pytest

from streamloop import ConfigurationError, EncodeError, Message, Reject, Retry, StreamLoopError
from streamloop.engine.record import Attempts, Record
from streamloop.kafka.headers import read_routing
from streamloop.message import Outgoing, PlainMessage
from streamloop.testing import Harness
from streamloop.testing.broker import KafkaRecord, RecordView
from tests.loops import billing

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Sequence

    from streamloop.kafka.headers import Routing
    from streamloop.message import RawMessage


class Host:
    """Keeps what is published, and shows a clock that stands still."""

    group = "billing"

    def __init__(self) -> None:
        self.published: list[Outgoing] = []
        self.clock: Callable[[], float] = lambda: 100.0

    async def publish(self, outgoing: Outgoing) -> None:
        assert outgoing.source is not None
        self.published.append(outgoing._replace(source=None))

    def publish_from_thread(self, outgoing: Sequence[Outgoing], cancelled: threading.Event) -> None:
        self.published += [each._replace(source=None) for each in outgoing]

    def waits_for(self, records: Sequence[Record]) -> str:
        return ""

    def routing(self, raw: RawMessage) -> Routing | None:
        return read_routing(raw.headers(), group=self.group)


def message(host: Host | None = None, *, kind: type[Message] = Message, **fields: Any) -> Message:
    """A message as a runner makes it."""
    given: dict[str, Any] = {
        "topic": "orders",
        "partition": 3,
        "offset": 7,
        "key": b"k",
        "value": b"v",
        "headers": (("a", b"1"), ("a", b"2"), ("streamloop-attempt", b"9")),
        "timestamp": 1234,
        **fields,
    }
    record = Record(given["offset"], given["key"], 1, 0, RecordView(KafkaRecord(**given)))
    return kind(record, host or Host(), 130.0)


ROUTED = {
    "streamloop-original-topic": b"orders",
    "streamloop-original-partition": b"2",
    "streamloop-original-offset": b"41",
    "streamloop-original-timestamp": b"999",
    "streamloop-original-group": b"billing",
    "streamloop-attempt": b"3",
}


def test_a_message_shows_its_record() -> None:
    seen = message()
    assert (seen.topic, seen.partition, seen.offset, seen.timestamp) == ("orders", 3, 7, 1234)
    assert seen.delivery == ("orders", 3, 7, 1234)
    assert (seen.key, seen.value, seen.group) == (b"k", b"v", "billing")
    assert repr(seen) == "<Message orders/3/7 attempt=1>"


def test_a_routed_message_shows_its_original_and_its_delivery() -> None:
    seen = message(topic="orders.billing.retry.30s", headers=tuple(ROUTED.items()))
    assert (seen.topic, seen.partition, seen.offset, seen.timestamp) == ("orders", 2, 41, 999)
    assert seen.delivery == ("orders.billing.retry.30s", 3, 7, 1234)


def test_a_record_without_a_timestamp_has_none() -> None:
    class NoTimestamp(RecordView):
        def timestamp(self) -> tuple[int, int]:
            return 0, -1

    record = Record(0, None, 1, 0, NoTimestamp(KafkaRecord("orders", 0, 0, None, None, (), -1)))
    assert Message(record, Host(), 130.0).timestamp is None


def test_headers_are_the_senders_in_order_with_duplicates_and_without_ours() -> None:
    seen = message()
    assert seen.headers == [("a", b"1"), ("a", b"2")]
    assert seen.header("a") == b"2"
    assert seen.header("streamloop-attempt") is None
    assert message(headers=()).headers == []


def test_the_attempt_counts_over_all_deliveries() -> None:
    record = Record(0, None, 1, 0, RecordView(KafkaRecord("orders", 0, 0, None, None, (), 0)))
    record.attempts = Attempts(before=4)
    record.attempts.in_place = 1
    assert Message(record, Host(), 130.0).attempt == 6


def test_deadline_and_cancelled() -> None:
    seen = message()
    assert seen.deadline == 130.0
    assert seen.remaining == 30.0
    assert not seen.cancelled.is_set()
    seen.cancelled.set()
    assert seen.cancelled.is_set()


def drive(coroutine: Any) -> None:
    with pytest.raises(StopIteration):
        coroutine.send(None)


@dataclass
class Order:
    id: int


@pytest.mark.parametrize(
    ("value", "codec", "expected"),
    [
        (b"raw", None, b"raw"),
        ("text", None, b"text"),
        (None, None, None),
        ({"a": 1}, None, b'{"a":1}'),
        (Order(1), None, b'{"id":1}'),
        ("text", "json", b'"text"'),
        ({"a": 1}, "msgpack", b"\x81\xa1a\x01"),
    ],
)
def test_what_is_published_is_encoded(value: object, codec: str | None, expected: bytes | None) -> None:
    host = Host()
    drive(message(host).publish("audit", value, codec=codec))
    assert host.published == [Outgoing("audit", None, expected, [], -1)]


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        (None, []),
        ({"a": "1", "b": b"2", "c": None}, [("a", b"1"), ("b", b"2"), ("c", None)]),
        ([("a", "1"), ("a", b"2")], [("a", b"1"), ("a", b"2")]),
    ],
)
def test_key_partition_and_headers_are_given_on(
    headers: Any, expected: list[tuple[str, bytes | None]]
) -> None:
    host = Host()
    seen = message(host)
    drive(seen.publish("audit", b"", key="grüezi", headers=headers, partition=2))
    seen.publish_and_wait("audit", b"", key=b"\xff", headers=headers)
    assert host.published == [
        Outgoing("audit", "grüezi".encode(), b"", expected, 2),
        Outgoing("audit", b"\xff", b"", expected, -1),
    ]


def test_publish_on_success_is_taken_once_and_in_order() -> None:
    seen = message()
    assert not seen.publishes_on_success
    seen.publish_on_success("audit", "1")
    seen.publish_on_success("audit", "2", key="k", partition=1)
    assert seen.publishes_on_success
    assert [each.value for each in seen.take_on_success()] == [b"1", b"2"]
    assert not seen.publishes_on_success
    assert seen.take_on_success() == []


def test_what_can_not_be_encoded_or_has_no_topic_says_so_at_once() -> None:
    seen = message()
    with pytest.raises(EncodeError, match="object"):
        seen.publish_on_success("audit", object())
    with pytest.raises(StreamLoopError, match="the topic's name is empty"):
        seen.publish_on_success("", b"x")
    with pytest.raises(ConfigurationError, match="codec='yaml' is unknown"):
        seen.publish_and_wait("audit", b"x" and {"a": 1}, codec="yaml")
    assert not seen.publishes_on_success


def test_a_plain_function_is_told_that_publish_has_to_be_awaited() -> None:
    with pytest.raises(StreamLoopError, match="has to be awaited"):
        message(kind=PlainMessage).publish("audit", b"x")  # type: ignore[unused-coroutine]


def test_an_attempt_and_its_original_are_seen_through_all_hops() -> None:
    seen: list[tuple[str, int, int | None, int, str]] = []

    async def handle(value: bytes, message: Message) -> None:
        seen.append(
            (message.topic, message.offset, message.timestamp, message.attempt, message.delivery.topic)
        )
        raise Retry if message.attempt < 4 else Reject("enough")

    with Harness(billing(handle, in_place_attempts=2, backoff_base=0)) as kafka:
        kafka.send("orders", b"x", timestamp=1_700_000_000_000)
        first, second = kafka.retry_topics("orders")[:2]
        kafka.run()
        assert kafka.dead_letters()[0].header("streamloop-original-timestamp") == "1700000000000"
    original = ("orders", 0, 1_700_000_000_000)
    assert seen == [
        (*original, 1, "orders"),
        (*original, 2, "orders"),
        (*original, 3, first),
        (*original, 4, second),
    ]


def test_the_deadline_is_the_handlers_time_out_from_its_start() -> None:
    seen: list[float] = []

    async def handle(value: bytes, message: Message) -> None:
        seen.append(message.remaining)

    with Harness(billing(handle, timeout=12)) as kafka:
        kafka.send("orders", b"x")
        kafka.run()
    assert seen == [12.0]
