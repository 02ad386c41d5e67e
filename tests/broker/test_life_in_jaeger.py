"""The life of messages on a real Kafka, as a real Jaeger shows it: `make test-jaeger` runs this.

An order that fails, waits in a retry topic and fails for good is one trace; ``streamloop trace`` draws it;
no context gets from one message into another; and a collector that goes away changes a counter.
"""

from __future__ import annotations

import json
import time
from collections import Counter, defaultdict
from typing import TYPE_CHECKING, Any, Final

import pytest
from click.testing import CliRunner

from streamloop.cli import main as cli
from tests.broker.loops.processes import READY, logged, start_service
from tests.jaeger.spans import CONSUMER, INTERNAL, PRODUCER_KIND, attributes, failed, kind, order
from tests.realkafka import wait_until
from tests.realkafka.client import Record
from tests.realkafka.node import HOST, free_ports
from tests.running_loop import ask

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.realkafka import KafkaCluster, Member, Members
    from tests.tools import Jaeger

pytestmark = pytest.mark.timeout(240)

WAIT: Final = 60.0
ERROR: Final = "tests.broker.loops.traced.CardError"
Spans = list[dict[str, Any]]


def member(
    members: Members,
    kafka: KafkaCluster,
    jaeger: Jaeger,
    group: str,
    source: str,
    *options: str,
    env: dict[str, str] | None = None,
) -> Member:
    """A member that exports its spans to Jaeger."""
    return start_service(
        members,
        kafka,
        group,
        source,
        "--max-runtime",
        "100s",
        *options,
        module="traced",
        env={"OTEL_EXPORTER_OTLP_ENDPOINT": jaeger.otlp_http, "OTEL_METRICS_EXPORTER": "none", **(env or {})},
    )


def trace_of(jaeger: Jaeger, trace_id: str, count: int) -> Spans:
    """The spans of a trace in the order they began, once there are so many."""
    wait_until(
        lambda: len(jaeger.spans(trace_id)) >= count,
        30,
        lambda: f"{count} spans in Jaeger: {[each['name'] for each in jaeger.spans(trace_id)]}",
    )
    return sorted(jaeger.spans(trace_id), key=lambda span: int(span["startTimeUnixNano"]))


def cause_of(span: dict[str, Any]) -> list[str]:
    """The spans that it is linked to, by id."""
    return [link["spanId"] for link in span.get("links", ())]


def test_T1_an_order_on_kafka_is_one_trace_in_jaeger_and_streamloop_trace_draws_it(
    kafka: KafkaCluster, members: Members, topic: Callable[..., str], group: str, jaeger: Jaeger
) -> None:
    source = topic(2)
    retry, dead = f"{source}.{group}.retry.1s", f"{source}.{group}.dlq"
    sent = order(kafka.bootstrap, jaeger.otlp_http, b'{"id": 7, "amount": -1}', topic=source)
    process = member(members, kafka, jaeger, group, source, "--max-messages", "2")
    assert process.wait(90) == 0
    trace_id = f"{sent.trace_id:032x}"
    spans = trace_of(jaeger, trace_id, 9)

    assert Counter((span["service"], span["name"]) for span in spans) == {
        ("shop", "send orders"): 1,
        (group, f"process {source}"): 2,
        (group, "ask the bank"): 3,
        (group, f"send {retry}"): 1,
        (group, f"process {retry}"): 1,
        (group, f"send {dead}"): 1,
    }
    [produced] = [span for span in spans if span["name"] == "send orders"]
    first, second = [span for span in spans if span["name"] == f"process {source}"]
    [to_retry] = [span for span in spans if span["name"] == f"send {retry}"]
    [third] = [span for span in spans if span["name"] == f"process {retry}"]
    [to_dead] = [span for span in spans if span["name"] == f"send {dead}"]
    banks = [span for span in spans if span["name"] == "ask the bank"]

    # Parents: what led to what. Links: each attempt to the context that its record came with.
    pairs = [(first, produced), (second, produced), (to_retry, second), (third, to_retry), (to_dead, third)]
    pairs += list(zip(banks, (first, second, third), strict=True))
    assert [span["parentSpanId"] for span, _ in pairs] == [parent["spanId"] for _, parent in pairs]
    assert "parentSpanId" not in produced
    assert [cause_of(each) for each in (first, second, third)] == [
        [produced["spanId"]],
        [produced["spanId"]],
        [to_retry["spanId"]],
    ]
    assert {kind(each) for each in (first, second, third)} == {CONSUMER}
    assert {kind(each) for each in (to_retry, to_dead)} == {PRODUCER_KIND}
    assert {kind(each) for each in banks} == {INTERNAL}

    # Statuses and reasons.
    for attempt in (first, second, third):
        assert failed(attempt)
        assert attributes(attempt)["error.type"] == ERROR
        [event] = attempt["events"]
        assert (event["name"], attributes(event)["exception.message"]) == ("exception", "refused")
    assert not any(failed(each) for each in (produced, to_retry, to_dead))
    shown = [attributes(each) for each in (first, second, third)]
    assert [each["streamloop.outcome"] for each in shown] == ["failed", "retried", "dead_lettered"]
    assert [each["streamloop.attempt"] for each in shown] == ["1", "2", "3"]

    # Where Kafka has the records, the spans say they are; and the records bear the spans' contexts.
    [record] = kafka.read_all(source)
    [waited] = kafka.read_all(retry)
    [buried] = kafka.read_all(dead)
    for span, read in (
        (first, record),
        (second, record),
        (to_retry, waited),
        (third, waited),
        (to_dead, buried),
    ):
        known = attributes(span)
        assert known["messaging.destination.name"] == read.topic
        assert known["messaging.destination.partition.id"] == str(read.partition)
        assert known["messaging.kafka.offset"] == str(read.offset)
    place = f"{source}/{record.partition}/{record.offset}"
    assert attributes(third)["streamloop.original"] == place
    for read, span in ((waited, to_retry), (buried, to_dead)):
        [given] = [value for name, value in read.headers if name == "traceparent"]
        assert given is not None
        context, _, flags = given.decode().rpartition("-")
        assert context == f"00-{trace_id}-{span['spanId']}"
        assert int(flags, 16) & 1
    # It waited between the decision to send it and the third attempt: that is no span.
    waited_for = int(third["startTimeUnixNano"]) - int(to_retry["startTimeUnixNano"])
    assert waited_for >= 0.9e9

    # The same for who looks with streamloop trace, by place and by id.
    by_place = traced(kafka, jaeger, place, "--group", group)
    by_id = traced(kafka, jaeger, "--trace-id", trace_id)
    for text in (by_place, by_id):
        assert (
            f"{place} is a dead letter, at {dead}/{buried.partition}/{buried.offset}, after 3 attempts"
            in text
        )
        assert f"trace {trace_id}   9 spans of shop, {group}" in text
        assert "6 failed" in text
        assert waterfall(text) == [
            (0, "send orders", "shop, producer"),
            (2, f"process {source}", f"{group}, consumer, attempt 1, failed, at {record.partition}/0"),
            (4, "ask the bank", f"{group}, internal"),
            (2, f"process {source}", f"{group}, consumer, attempt 2, retried, at {record.partition}/0"),
            (4, "ask the bank", f"{group}, internal"),
            (4, f"send {retry}", f"{group}, producer, attempt 2, at {waited.partition}/0"),
            (6, f"process {retry}", f"{group}, consumer, attempt 3, dead_lettered, at {waited.partition}/0"),
            (8, "ask the bank", f"{group}, internal"),
            (8, f"send {dead}", f"{group}, producer, attempt 3, at {buried.partition}/0"),
        ]
        assert text.count("CardError: refused") >= 3
        assert "┊ a wait; the longest wait is" in text


def traced(kafka: KafkaCluster, jaeger: Jaeger, *arguments: str) -> str:
    """What `streamloop trace` prints."""
    result = CliRunner(env={"COLUMNS": "400"}).invoke(
        cli.main, ["trace", *arguments, "--brokers", kafka.bootstrap, "--jaeger", jaeger.url]
    )
    assert result.exit_code == 0, result.output
    return result.output


def waterfall(text: str) -> list[tuple[int, str, str]]:
    """The spans that were drawn: depth in characters, name, what is said of it."""
    drawn = []
    lines = text[text.index(" spans of ") :].splitlines()
    header = next(at for at, line in enumerate(lines) if line.startswith("span "))
    for line in lines[header + 2 :]:
        columns = line.strip().split("  ")
        if not line.strip() or line.startswith("┊"):
            break
        if len([each for each in columns if each.strip()]) >= 4:  # an error's line has the bar alone
            name, said = [each.strip() for each in columns if each.strip()][:2]
            drawn.append((len(line) - len(line.lstrip()), name, said))
    return drawn


def test_T2_T3_many_at_once_each_in_its_own_trace_whatever_its_headers_say(
    kafka: KafkaCluster, members: Members, topic: Callable[..., str], group: str, jaeger: Jaeger
) -> None:
    source = topic()
    context = "00-%032x-%016x-01"
    given: dict[int, tuple[tuple[str, bytes | None], ...]] = {
        number: (("traceparent", (context % (0xA0000 + number, 0xB0000 + number)).encode()),)
        for number in range(20)
    }
    given[20] = ()
    given[21] = (("traceparent", b"00-nonsense-01"),)
    given[22] = (("traceparent", b"00-" + b"0" * 32 + b"-" + b"0" * 16 + b"-01"),)
    given[23] = (*given[0], *given[1])
    kafka.produce(
        source,
        [
            Record(json.dumps({"id": number, "amount": 1}).encode(), headers=headers, partition=0)
            for number, headers in given.items()
        ],
    )
    process = member(members, kafka, jaeger, group, source, "--max-messages", str(len(given)))
    assert process.wait(90) == 0
    wait_until(lambda: len(jaeger.recent(group)) >= 2 * len(given), 30, "all spans in Jaeger")
    spans = jaeger.recent(group)
    attempts = {span["spanId"]: span for span in spans if span["name"] == f"process {source}"}
    banks = [span for span in spans if span["name"] == "ask the bank"]
    assert len(attempts) == len(banks) == len(given)
    # They ran at once: otherwise nothing could leak.
    starts = sorted(int(span["startTimeUnixNano"]) for span in banks)
    ends = sorted(int(span["endTimeUnixNano"]) for span in banks)
    assert starts[4] < ends[0]
    by_order: dict[int, tuple[dict[str, Any], dict[str, Any]]] = {}
    for bank in banks:
        attempt = attempts[bank["parentSpanId"]]
        assert bank["traceId"] == attempt["traceId"]
        number = int(attributes(bank)["order"])
        assert attributes(attempt)["messaging.kafka.offset"] == str(number)
        by_order[number] = attempt, bank
    for number in range(20):
        attempt, _ = by_order[number]
        assert attempt["traceId"] == f"{0xA0000 + number:032x}"
        assert attempt["parentSpanId"] == f"{0xB0000 + number:016x}"
    new = {by_order[number][0]["traceId"] for number in (20, 21, 22, 23)}
    assert len(new) == 4
    assert new.isdisjoint({f"{0xA0000 + number:032x}" for number in range(20)})
    assert all("parentSpanId" not in by_order[number][0] for number in (20, 21, 22, 23))
    linked = sorted(link["traceId"] for link in by_order[23][0]["links"])
    assert linked == [f"{0xA0000:032x}", f"{0xA0001:032x}"]


def test_H6_a_collector_that_is_killed_changes_a_counter_and_nothing_else(
    kafka: KafkaCluster, members: Members, topic: Callable[..., str], group: str, jaeger: Jaeger
) -> None:
    source = topic(2)
    [port] = free_ports(1)
    process = member(
        members,
        kafka,
        jaeger,
        group,
        source,
        "--ops-address",
        f"{HOST}:{port}",
        env={"STREAMLOOP_TRACE_FLUSH_TIMEOUT": "1s", "OTEL_BSP_SCHEDULE_DELAY": "200"},
    )
    process.wait_for_line(READY, timeout=WAIT)

    def send(*amounts: int) -> None:
        kafka.produce(
            source, [Record(b'{"id": %d, "amount": %d}' % (at, amount)) for at, amount in enumerate(amounts)]
        )

    def metrics() -> dict[str, float]:
        sums: defaultdict[str, float] = defaultdict(float)
        for line in ask(f"http://{HOST}:{port}/metrics").body.decode().splitlines():
            if not line.startswith("#"):
                series, _, value = line.rpartition(" ")
                name, _, labels = series.partition("{")
                sums[name] += float(value)
                if name in ("loop_processed_total", "loop_export_failures_total"):
                    for word in ("acked", "retried", "dead_lettered", "traces"):
                        sums[f"{name} {word}"] += float(value) * (f'"{word}"' in labels)
        return sums

    send(*[1] * 50)
    wait_until(lambda: metrics()["loop_processed_total acked"] == 50, WAIT, "the first orders")
    wait_until(lambda: len(jaeger.recent(group)) >= 50, 30, "their spans")
    assert metrics()["loop_export_failures_total traces"] == 0

    jaeger.kill()
    send(*[1] * 200, -1)
    wait_until(lambda: metrics()["loop_processed_total dead_lettered"] == 1, WAIT, "the dead letter")
    wait_until(lambda: metrics()["loop_processed_total acked"] == 250, WAIT, "the orders after it")
    wait_until(lambda: metrics()["loop_export_failures_total traces"] > 0, WAIT, "the counter")
    seen = metrics()
    # Nothing is repeated, lost, held or failed because of it, and nothing of ours is an error.
    assert seen["loop_processed_total retried"] == 1
    assert seen["loop_failed_total"] == 3
    assert seen["loop_redelivered_total"] == seen["loop_publish_failures_total"] == 0
    assert seen["loop_errors_total"] == seen["loop_cancel_ignored_total"] == 0
    assert ask(f"http://{HOST}:{port}/live").status == ask(f"http://{HOST}:{port}/ready").status == 200
    wait_until(lambda: kafka.lag(group, source) == 0, WAIT, "the commits")

    began = time.monotonic()
    process.terminate()
    assert process.wait(60) == 0
    # Its flush bound is 1 s; the SDK's own shutdown would take ten times that or more. The rest is the close.
    assert time.monotonic() - began < 9
    warned = [each["message"] for each in logged(process, "telemetry")]
    assert any("were not exported" in text and "handling goes on" in text for text in warned)
