"""Lag and backlog on a real broker: of partitions that flow, are held, wait, or end in markers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.broker.loops.inprocess import Running, loop_on
from tests.realkafka.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.realkafka import KafkaCluster


async def nothing(_value: bytes) -> None: ...


async def fail(_value: bytes) -> None:
    raise ConnectionError


def test_the_lag_of_a_held_partition_grows_with_what_arrives_and_ends_when_it_flows(
    kafka: KafkaCluster, topic: Callable[..., str], group: str
) -> None:
    orders = topic(2)
    kafka.produce(orders, [b"first"])
    loop = loop_on(kafka, group, retry_topics=())
    loop.consumer(orders, name="charge")(nothing)
    with Running(loop) as running:
        running.until(lambda: running.metric("loop_processed_total", outcome="acked") == 1, what="the first")
        running.until(lambda: running.metric("loop_lag_messages", topic=orders) == 0, what="no lag")
        loop.pause(orders)
        running.until(lambda: running.metric("loop_held_partitions", reason="operator") == 2, what="the hold")
        kafka.produce(orders, [b"x"] * 20)
        running.until(lambda: running.metric("loop_lag_messages", topic=orders) >= 20, what="the lag")
        # What was prefetched before the pause may be in the buffer: together it is all of them.
        backlog = {
            state: running.metric("loop_backlog", topic=orders, state=state)
            for state in ("broker", "buffered")
        }
        assert sum(backlog.values()) == 20
        running.until(lambda: running.metric("loop_lag_seconds", topic=orders) >= 1, what="the age")
        loop.resume(orders)
        running.until(lambda: running.metric("loop_processed_total", outcome="acked") == 21, what="the end")
        running.until(lambda: running.metric("loop_backlog", topic=orders) == 0, what="no backlog")
        running.until(lambda: running.metric("loop_lag_seconds", topic=orders) == 0, what="no age")
        assert running.metric("loop_commits_total", consumer="source", result="ok") > 0


def test_R16_a_partition_that_ends_in_transaction_markers_has_no_lag(
    kafka: KafkaCluster, topic: Callable[..., str], group: str
) -> None:
    orders = topic()
    kafka.produce_transaction(orders, [b"1", b"2", b"3"])
    loop = loop_on(kafka, group, retry_topics=())
    loop.consumer(orders, name="charge")(nothing)
    with Running(loop) as running:
        running.until(
            lambda: running.metric("loop_processed_total", outcome="acked") == 3, what="the messages"
        )

        def ends() -> bool:
            part = running.partition(orders, 0)
            return part is not None and (part.end, part.lag, part.lag_seconds) == (4, 0, 0)

        running.until(ends, what="no lag behind the marker")


def test_what_waits_in_a_retry_topic_is_backlog_without_age_until_it_is_due(
    kafka: KafkaCluster, topic: Callable[..., str], group: str
) -> None:
    orders = topic()
    kafka.produce(orders, [b"1", b"2"])
    loop = loop_on(kafka, group, retry_topics=("1h",), in_place_attempts=1)
    loop.consumer(orders, name="charge")(fail)
    retry = f"{orders}.{group}.retry.1h"
    with Running(loop) as running:
        running.until(
            lambda: running.metric("loop_backlog", topic=retry, state="waiting_retry") == 2,
            what="the backlog",
        )
        running.until(
            lambda: running.metric("loop_held_partitions", reason="retry_not_due") == 1, what="the hold"
        )
        assert running.metric("loop_lag_messages", topic=retry) == 2
        assert running.metric("loop_lag_seconds", topic=retry) == 0
        assert running.metric("loop_retried_total", topic=orders) == 2
        assert running.metric("loop_topic_partitions", topic=retry) == 1
        sent = {"messaging_destination_name": retry}
        assert running.metric("messaging_client_sent_messages_total", **sent) == 2
        wait_until(lambda: running.metric("loop_last_commit_timestamp_seconds", consumer="source") > 1e9)
