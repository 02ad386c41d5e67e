"""One order, from the producer to the dead letter, as Jaeger shows it; and a collector that is away."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer

from tests.jaeger.spans import CONSUMER, ERROR, PRODUCER_KIND, attributes, kind, order
from tests.mock_cluster import MockCluster
from tests.realkafka import Members
from tests.realkafka.node import free_ports
from tests.realkafka.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.tools import Jaeger


@pytest.fixture
def members(tmp_path: Path) -> Iterator[Members]:
    """Starts member processes; they are killed and reaped when the test ends."""
    started = Members(tmp_path)
    try:
        yield started
    finally:
        started.end()
        print(started.transcript())


@contextmanager
def brokers() -> Iterator[MockCluster]:
    """A mock cluster with the topics of the member."""
    with MockCluster() as cluster:
        for topic in ("orders", "orders.billing.retry.1s", "orders.billing.dlq"):
            cluster.create_topic(topic, 2)
        yield cluster


def member(
    members: Members,
    cluster: MockCluster,
    endpoint: str,
    *,
    env: dict[str, str] | None = None,
    count: int = 1,
) -> Any:
    """A member of group 'billing' that ends after so many messages."""
    return members.start_module(
        "streamloop.cli.main",
        "run",
        "tests.jaeger.member:loop",
        "--brokers",
        cluster.bootstrap,
        "--member",
        "billing-1",
        "--max-messages",
        str(count),
        "--max-runtime",
        "60s",
        env={"OTEL_EXPORTER_OTLP_ENDPOINT": endpoint, "OTEL_METRICS_EXPORTER": "none", **(env or {})},
    )


@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
def test_T1_an_order_is_one_trace_in_jaeger_from_its_producer_to_the_dead_letter(
    protocol: str, jaeger: Jaeger, members: Members
) -> None:
    with brokers() as cluster:
        sent = order(cluster.bootstrap, jaeger.otlp_http, b'{"amount": -1}')
        endpoint = jaeger.otlp_grpc if protocol == "grpc" else jaeger.otlp_http
        process = member(members, cluster, endpoint, env={"OTEL_EXPORTER_OTLP_PROTOCOL": protocol}, count=2)
        assert process.wait(60) == 0
    # Nothing is lost at a normal shutdown: when the process has ended, all of it is there.
    trace_id = f"{sent.trace_id:032x}"
    wait_until(lambda: len(jaeger.spans(trace_id)) >= 6, 20, "the trace in Jaeger")
    spans = sorted(jaeger.spans(trace_id), key=lambda span: int(span["startTimeUnixNano"]))
    assert [(span["service"], span["name"]) for span in spans] == [
        ("shop", "send orders"),
        ("billing", "process orders"),
        ("billing", "process orders"),
        ("billing", "send orders.billing.retry.1s"),
        ("billing", "process orders.billing.retry.1s"),
        ("billing", "send orders.billing.dlq"),
    ]
    produced, first, second, to_retry, third, to_dead = spans
    assert [span.get("parentSpanId", "") for span in (first, second, to_retry, third, to_dead)] == [
        produced["spanId"],
        produced["spanId"],
        second["spanId"],
        to_retry["spanId"],
        third["spanId"],
    ]
    for attempt, cause in ((first, produced), (second, produced), (third, to_retry)):
        assert kind(attempt) == CONSUMER
        assert [link["spanId"] for link in attempt["links"]] == [cause["spanId"]]
        assert attempt["status"]["code"] in ERROR
        assert attributes(attempt)["error.type"] == "tests.jaeger.member.CardError"
        [event] = attempt["events"]
        assert event["name"] == "exception"
        assert attributes(event)["exception.message"] == "refused"
    for publish in (to_retry, to_dead):
        assert kind(publish) == PRODUCER_KIND
        assert publish.get("status", {}).get("code") not in ERROR
    assert [attributes(each)["streamloop.outcome"] for each in (first, second, third)] == [
        "failed",
        "retried",
        "dead_lettered",
    ]


def test_polls_and_commits_are_traced_when_asked_for(jaeger: Jaeger, members: Members) -> None:
    with brokers() as cluster:
        sent = order(cluster.bootstrap, jaeger.otlp_http, b'{"amount": 1}')
        env = {"STREAMLOOP_TRACE_CLIENTS": "true", "OTEL_SERVICE_NAME": "billing-clients"}
        assert member(members, cluster, jaeger.otlp_http, env=env).wait(60) == 0
    wait_until(lambda: len(_named(jaeger, "commit orders")) >= 1, 20, "the commit's span in Jaeger")
    [poll] = _named(jaeger, "poll orders")
    assert [link["traceId"] for link in poll["links"]] == [f"{sent.trace_id:032x}"]
    assert attributes(poll)["messaging.operation.type"] == "receive"
    assert attributes(_named(jaeger, "commit orders")[0])["messaging.consumer.group.name"] == "billing"
    # The service has another name, as the environment says.
    assert {span["service"] for span in jaeger.spans(f"{sent.trace_id:032x}")} == {"shop", "billing-clients"}


def _named(jaeger: Jaeger, name: str) -> list[dict[str, Any]]:
    return [span for span in jaeger.recent("billing-clients") if span["name"] == name]


@pytest.mark.parametrize("protocol", ["http/protobuf", "grpc"])
def test_H6_a_collector_that_is_away_delays_a_shutdown_by_its_flush_bound_at_most(
    protocol: str, members: Members
) -> None:
    [port] = free_ports(1)
    with brokers() as cluster:
        producer = Producer({"bootstrap.servers": cluster.bootstrap, "log_level": 0})
        for number in range(500):
            producer.produce("orders", b'{"amount": 1}', key=b"%d" % number)
        assert producer.flush(10) == 0
        env = {"OTEL_EXPORTER_OTLP_PROTOCOL": protocol, "STREAMLOOP_TRACE_FLUSH_TIMEOUT": "1s"}
        process = member(members, cluster, f"http://127.0.0.1:{port}", env=env, count=500)
        process.wait_for_line("bound reached|max_messages", timeout=60)
        began = time.monotonic()
        assert process.wait(30) == 0
        # The SDK's own shutdown takes 10 to 30 s there.
        assert time.monotonic() - began < 9
    assert any("the last spans were not exported within 1 s" in line for line in process.lines)
