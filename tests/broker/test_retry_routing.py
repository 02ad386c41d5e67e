"""What failed messages look like that went through retry topics to dead letter on a real broker."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

from streamloop import Message, Reject, routing
from tests.broker.loops.inprocess import Running, loop_on
from tests.realkafka.client import Record

if TYPE_CHECKING:
    from collections.abc import Callable

    import pytest

    from tests.realkafka import KafkaCluster, ReadRecord

DAY_MS = 86_400_000
LIMIT = 200_000
OURS = ("streamloop-", "__dlq.", "traceparent", "tracestate")


def users(record: ReadRecord) -> list[tuple[str, bytes | None]]:
    """The headers that are not ours."""
    return [(name, value) for name, value in record.headers if not name.startswith(OURS)]


def text(record: ReadRecord, name: str) -> str:
    value = record.header(f"streamloop-{name}")
    assert value is not None, name
    return value.decode()


def test_D3_D6_what_fails_goes_through_retry_topics_to_dead_letter_as_it_was(
    kafka: KafkaCluster, topic: Callable[..., str], group: str
) -> None:
    source = topic(2, config={"retention.ms": str(90 * DAY_MS)})
    old = int(time.time() * 1000) - 60 * DAY_MS
    given = [
        Record(b"\x00\xff{", b"k\x00", (("h", b"1"), ("h", b"2"), ("empty", b""), ("null", None)), 1, old),
        Record(None, b"tombstone", (("traceparent", b"00-" + b"1" * 32 + b"-" + b"2" * 16 + b"-00"),), 1),
        Record(b"", None, (), 1),
    ]
    before = int(time.time() * 1000)
    kafka.produce(source, given)
    loop = loop_on(kafka, group, retry_topics=["300ms", "600ms"], in_place_attempts=2)
    seen: list[tuple[str, int, int, int, int | None, str]] = []

    @loop.consumer(source)
    async def handle(message: Message) -> None:
        where = message.delivery.topic.removeprefix(f"{source}.{group}.")
        seen.append(
            (message.topic, message.partition, message.offset, message.attempt, message.timestamp, where)
        )
        raise ConnectionError(f"no\x00pe {message.attempt}")

    dead_letters = f"{source}.{group}.dlq"
    retries = [f"{source}.{group}.retry.{delay}" for delay in ("300ms", "600ms")]
    with Running(loop) as running:
        running.until(lambda: running.counts()["dead_lettered"] == 3, what="three dead letters")
        running.until(lambda: all(kafka.lag(f"{group}.retry", name) == 0 for name in retries))
        running.stop()
    assert kafka.committed_offsets(group, source) == {0: 0, 1: 3}

    for name in (*retries, dead_letters):
        records = sorted(kafka.read_all(name), key=lambda record: text(record, "original-offset"))
        assert [(r.partition, r.key, r.value) for r in records] == [(1, g.key, g.value) for g in given]
        assert users(records[0]) == list(given[0].headers)
        for record in records:
            assert len(record.headers) == len({name for name, _ in record.headers}) + (record is records[0])
            assert text(record, "original-topic") == source
            assert text(record, "original-partition") == "1"
            assert text(record, "original-group") == group
            assert text(record, "error-class") == "builtins.ConnectionError"
            assert record.timestamp >= before  # stamped now, or retention would take it at once
        assert text(records[0], "original-timestamp") == str(old)
        assert [value for name, value in records[1].headers if name == "traceparent"] == [
            given[1].headers[0][1]
        ]
    attempts = [text(r, "attempt") for name in retries for r in kafka.read_all(name)]
    assert attempts == ["2"] * 3 + ["3"] * 3
    [first, *_] = kafka.read_all(dead_letters)
    assert text(first, "attempt") == "4"
    assert first.header("__dlq.errors.topic") == source.encode()
    assert first.header("streamloop-not-before") is None
    # The handler saw the original all the way.
    assert [s for s in seen if s[2] == 0] == [
        (source, 1, 0, 1, old, source),
        (source, 1, 0, 2, old, source),
        (source, 1, 0, 3, old, "retry.300ms"),
        (source, 1, 0, 4, old, "retry.600ms"),
    ]
    assert int(kafka.topic_config(retries[0])["retention.ms"] or 0) == 14 * DAY_MS
    assert kafka.topic_config(dead_letters)["retention.ms"] == "-1"


def test_D11_a_dead_letter_topic_with_fewer_partitions_takes_source_partition_modulo_its_own(
    kafka: KafkaCluster, topic: Callable[..., str], group: str
) -> None:
    source = topic(5)
    kafka.create_topic(2, name=f"{source}.{group}.dlq", config={"max.message.bytes": "2000000"})
    kafka.produce(source, [Record(str(p).encode(), b"same key", (), p) for p in range(5)])
    loop = loop_on(kafka, group, retry_topics=[])

    @loop.consumer(source)
    def handle(value: bytes) -> None:
        raise Reject("no")

    with Running(loop) as running:
        running.until(lambda: running.counts()["dead_lettered"] == 5, what="five dead letters")
    assert [(r.partition, r.value) for r in kafka.read_all(f"{source}.{group}.dlq")] == [
        *[(0, b"0"), (0, b"2"), (0, b"4")],
        *[(1, b"1"), (1, b"3")],
    ]


def test_D7_an_undecodable_message_is_one_dead_letter_at_once_and_the_loop_goes_on(
    kafka: KafkaCluster, topic: Callable[..., str], group: str
) -> None:
    source = topic()
    kafka.produce(source, [b'{"id": 1}', b"\xff not json", None, b'{"id": 2}'])
    loop = loop_on(kafka, group, retry_topics=["10m"])
    seen: list[int] = []

    @loop.consumer(source, ordering="partition")
    async def handle(order: dict[str, int]) -> None:
        seen.append(order["id"])

    with Running(loop, until_end=True) as running:
        assert running.wait().exit_code == 0
    assert seen == [1, 2]
    dead = kafka.read_all(f"{source}.{group}.dlq")
    assert [record.value for record in dead] == [b"\xff not json", None]
    assert text(dead[0], "error-class") == "streamloop.errors.DecodeError"
    assert "argument" in text(dead[0], "error-message") or "JSON" in text(dead[0], "error-message")
    assert kafka.committed_offsets(group, source) == {0: 4}


def test_D19_headers_of_another_group_influence_nothing(
    kafka: KafkaCluster, topic: Callable[..., str], group: str
) -> None:
    source = topic()
    foreign = (
        ("streamloop-original-topic", b"elsewhere"),
        ("streamloop-original-partition", b"7"),
        ("streamloop-original-offset", b"99"),
        ("streamloop-original-group", b"another"),
        ("streamloop-attempt", b"40"),
        ("streamloop-not-before", b"99999999999999"),
        ("mine", b"stays"),
    )
    kafka.produce(source, [Record(b"x", b"k", foreign)])
    loop = loop_on(kafka, group, retry_topics=[], in_place_attempts=2)
    seen: list[tuple[str, int, int]] = []

    @loop.consumer(source)
    async def handle(message: Message) -> None:
        seen.append((message.topic, message.offset, message.attempt))
        raise ValueError("no")

    with Running(loop) as running:
        running.until(lambda: running.counts()["dead_lettered"] == 1, what="the dead letter")
    assert seen == [(source, 0, 1), (source, 0, 2)]
    [dead] = kafka.read_all(f"{source}.{group}.dlq")
    assert users(dead) == [("mine", b"stays")]
    assert (text(dead, "original-topic"), text(dead, "original-group"), text(dead, "attempt")) == (
        source,
        group,
        "2",
    )


def test_D5_a_record_at_the_source_s_limit_has_room_for_our_headers(
    kafka: KafkaCluster, topic: Callable[..., str], group: str
) -> None:
    source = topic(config={"max.message.bytes": str(LIMIT)})
    largest = LIMIT - 200  # the batch around it needs some bytes
    value = os.urandom(largest)  # the limit is one of compressed sizes
    kafka.produce(source, [value])
    loop = loop_on(kafka, group, retry_topics=["200ms"], in_place_attempts=1)

    @loop.consumer(source)
    async def handle(message: Message) -> None:
        raise ValueError("x" * 5_000)

    with Running(loop) as running:
        running.until(lambda: running.counts()["dead_lettered"] == 1, what="the dead letter")
    [dead] = kafka.read_all(f"{source}.{group}.dlq")
    assert dead.value == value
    assert len(text(dead, "error-message")) == 1024


def test_D5_D17_a_record_that_does_not_fit_loses_headers_never_value_and_takes_no_other_with_it(
    kafka: KafkaCluster, topic: Callable[..., str], group: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routing, "REFUSED_AGAIN", 0.5)
    source = topic(2, config={"max.message.bytes": str(LIMIT)})
    dead_letters = f"{source}.{group}.dlq"
    loop = loop_on(kafka, group, retry_topics=[], ordering="none")

    @loop.consumer(source)
    async def handle(value: bytes) -> None:
        raise Reject("no")

    with Running(loop) as running:
        running.until(lambda: running.partition(source, 1) is not None)
        # Somebody lowers the limit while it runs.
        kafka.set_topic_config(dead_letters, max_message_bytes=str(LIMIT // 2))
        large = os.urandom(40_000)
        fits = Record(os.urandom(LIMIT // 2 - 2_000), b"fits", (("large", large), ("small", b"s")), 0)
        never = Record(os.urandom(LIMIT // 2 + 10), b"never", (), 0)
        small = [Record(str(number).encode(), b"small", (("h", b"1"),), 0) for number in range(50)]
        for records in (small[:25], [fits], [never], small[25:], [Record(b"other", b"other", (), 1)]):
            kafka.produce(source, records)  # each a batch of its own: together they are above the limit

        running.until(lambda: running.counts()["dead_lettered"] == 52, what="all but one to be dead letters")
        running.until(lambda: "publish_blocked" in running.held(source, 0), what="the partition to be held")
        reason = running.held(source, 0)["publish_blocked"]
        assert "max.message.bytes" in reason
        assert dead_letters in reason
        assert running.held(source, 1) == {}
        assert loop.health().live
        running.until(lambda: kafka.committed_offsets(group, source) == {0: 26, 1: 1})
        by_key = {record.key: record for record in kafka.read_all(dead_letters)}
        assert by_key[b"fits"].value == fits.value
        headers = dict(by_key[b"fits"].headers)
        assert headers["small"] == b"s"
        assert len(headers["large"] or b"") < 500
        assert text(by_key[b"fits"], "original-offset") == "25"
        assert b"never" not in by_key
        small_dead = [r for r in kafka.read_all(dead_letters) if r.key == b"small"]
        assert sorted(int(r.value or b"") for r in small_dead) == list(range(50))
        assert all(users(r) == [("h", b"1")] for r in small_dead)

        kafka.set_topic_config(dead_letters, max_message_bytes=str(LIMIT * 2))
        running.until(lambda: running.counts()["dead_lettered"] == 53, what="the last one")
        running.until(lambda: running.held(source, 0) == {}, what="the partition to be released")
        assert running.stop().exit_code == 0
    assert kafka.committed_offsets(group, source) == {0: 52, 1: 1}


def test_D9_a_delay_longer_than_the_poll_interval_holds_its_partition_and_no_other(
    kafka: KafkaCluster, topic: Callable[..., str], group: str
) -> None:
    source = topic(2)
    poll_interval_ms = 4_000
    loop = loop_on(
        kafka,
        group,
        retry_topics=["8s"],
        in_place_attempts=1,
        group_protocol="consumer",  # the classic one does not allow less than its session time-out
        revoke_wait=1,
        dwell=0.2,
        kafka={"consumer": {"max.poll.interval.ms": poll_interval_ms}},
    )
    done: dict[int, float] = {}
    due: dict[int, float] = {}

    @loop.consumer(source)
    async def handle(value: bytes, message: Message) -> None:
        if message.attempt == 1:
            due[message.partition] = time.time() + 8
            raise ConnectionError("once")
        done[message.partition] = time.time()

    retry = f"{source}.{group}.retry.8s"
    with Running(loop) as running:
        kafka.produce(source, [Record(b"first", None, (), 1)])
        running.until(lambda: 1 in due and "retry_not_due" in running.held(retry, 1), what="the hold")
        # The second waits in another partition, longer than the first.
        running.until(lambda: running.status().held_seconds["retry_not_due"] > 2, what="some time")
        kafka.produce(source, [Record(b"second", None, (), 0)])
        running.until(lambda: "retry_not_due" in running.held(retry, 0), what="the other hold")
        running.until(lambda: 1 in done, what="the first retry")
        assert 0 not in done
        assert "retry_not_due" in running.held(retry, 0)
        running.until(lambda: 0 in done, what="the second retry")
        assert done[1] >= due[1]
        assert done[0] >= due[0]
        assert done[1] < due[0]  # on time: it did not wait for the one behind it
        assert running.metric("loop_rebalances_total", event="lost") == 0
        assert running.metric("loop_rebalances_total", event="revoked") == 0
        held = running.status().held_seconds["retry_not_due"]
        assert held > poll_interval_ms / 1000
        running.until(lambda: kafka.lag(f"{group}.retry", retry) == 0, what="the retry group's commit")
