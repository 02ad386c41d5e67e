"""Traces, as the harness's loop makes them: parents, links, statuses, what is sampled and what is kept."""

from __future__ import annotations

import asyncio
import contextvars
import logging
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry import baggage, trace
from opentelemetry import context as otel
from opentelemetry.context import Context
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import (
    ALWAYS_OFF,
    ALWAYS_ON,
    DEFAULT_OFF,
    DEFAULT_ON,
    Decision,
    ParentBasedTraceIdRatio,
    Sampler,
    SamplingResult,
)
from opentelemetry.trace import SpanKind, StatusCode

from streamloop import Message, Reject, Skip, StreamLoop
from streamloop.telemetry.carrier import Carried, attacher
from streamloop.telemetry.sampler import LOW_64, Allowance, KeepFailedSampler, Policy, policy_of
from streamloop.testing import Harness
from tests.loops import billing
from tests.tracing import (
    attribute,
    context_of,
    header,
    links,
    parent_id,
    span_id,
    trace_id,
    traceparent,
    use_provider,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from opentelemetry.trace import Link, TraceState
    from opentelemetry.util.types import Attributes

    from streamloop.kafka.headers import RawHeaders

PLAN: dict[str, Any] = {"in_place_attempts": 2, "retry_topics": ("30s",)}


class CardError(Exception):
    pass


async def refuse(value: bytes) -> None:
    raise CardError("refused")


def refuse_in_a_thread(value: bytes) -> None:
    raise CardError("refused")


async def accept(value: bytes) -> None:
    return


# --------------------------------------------------------------------------------------- T1: one trace, whole


@pytest.mark.parametrize(
    ("handler", "options"),
    [(refuse, {}), (refuse_in_a_thread, {}), (refuse_in_a_thread, {"runner": "inline"})],
    ids=["async", "thread", "inline"],
)
def test_T1_every_attempt_and_publish_is_a_span_of_the_producers_trace(
    handler: Callable[..., object], options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    spans = use_provider(monkeypatch)
    headers, producer = spans.produced()
    with Harness(billing(handler, **options), **PLAN) as kafka:
        sent = kafka.send("orders", b"1", key="k1", headers=headers)
        kafka.run()
        [retry], [dead] = kafka.retries("orders"), kafka.dead_letters("orders")
    assert {trace_id(span) for span in spans.all()} == {producer.trace_id}
    assert [span.name for span in spans.all()] == [
        "process orders",
        "process orders",
        "send orders.billing.retry.30s",
        "process orders.billing.retry.30s",
        "send orders.billing.dlq",
    ]
    first, second, to_retry, third, to_dead = spans.all()
    # A child of the message's context and linked to it; a publish is a child of the attempt that failed.
    assert [parent_id(span) for span in (first, second, to_retry, third, to_dead)] == [
        producer.span_id,
        producer.span_id,
        span_id(second),
        span_id(to_retry),
        span_id(third),
    ]
    assert links(first) == links(second) == [producer.span_id]
    assert links(third) == [span_id(to_retry)]
    for attempt in (first, second, third):
        assert attempt.kind is SpanKind.CONSUMER
        assert attempt.status.status_code is StatusCode.ERROR
        assert attribute(attempt, "error.type") == f"{__name__}.CardError"
        [event] = attempt.events
        assert event.name == "exception"
        assert event.attributes is not None
        assert event.attributes["exception.message"] == "refused"
        assert event.attributes["error.type"] == f"{__name__}.CardError"
        assert "CardError" in str(event.attributes["exception.stacktrace"])
    for publish in (to_retry, to_dead):
        assert publish.kind is SpanKind.PRODUCER
        assert publish.status.status_code is StatusCode.UNSET
    assert [attribute(span, "streamloop.outcome") for span in (first, second, third)] == [
        "failed",
        "retried",
        "dead_lettered",
    ]
    assert [attribute(span, "streamloop.state") for span in (first, second, third)] == [
        "BACKOFF",
        "ROUTING_RETRY",
        "ROUTING_DEAD",
    ]
    assert [attribute(span, "streamloop.attempt") for span in (first, second, third)] == [1, 2, 3]
    # The record bears the context of the span that sent it, once.
    assert header(retry.headers, "traceparent") == [traceparent(context_of(to_retry)).encode()]
    assert header(dead.headers, "traceparent") == [traceparent(context_of(to_dead)).encode()]
    assert attribute(third, "streamloop.original") == f"orders/{sent.partition}/0"


def test_T1_the_attributes_are_those_of_the_messaging_conventions(monkeypatch: pytest.MonkeyPatch) -> None:
    spans = use_provider(monkeypatch)
    headers, _ = spans.produced()
    with Harness(billing(refuse), member="m1", **PLAN) as kafka:
        sent = kafka.send("orders", None, key="k1", headers=headers)
        kafka.run()
        [dead] = kafka.dead_letters("orders")
    process, send = spans.all("process orders")[0], spans.one("send orders.billing.dlq")
    wanted = {
        "messaging.system": "kafka",
        "messaging.operation.name": "process",
        "messaging.operation.type": "process",
        "messaging.destination.name": "orders",
        "messaging.destination.partition.id": str(sent.partition),
        "messaging.kafka.offset": 0,
        "messaging.kafka.message.key": "k1",
        "messaging.kafka.message.tombstone": True,
        "messaging.consumer.group.name": "billing",
        "messaging.client.id": "m1",
        "streamloop.consumer": "charge",
    }
    assert wanted.items() <= dict(process.attributes or {}).items()
    assert (
        attribute(spans.all("process")[-1], "messaging.destination.name") == "orders"
    )  # a null can't be read
    assert attribute(send, "messaging.destination.partition.id") == str(dead.partition)
    assert attribute(send, "messaging.kafka.offset") == dead.offset
    assert attribute(send, "messaging.operation.type") == "send"
    assert attribute(send, "messaging.operation.name") == "send"


def test_T1_a_message_that_succeeds_later_ends_in_the_same_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    spans = use_provider(monkeypatch)
    headers, producer = spans.produced()

    async def later(value: bytes, message: Message) -> None:
        if message.attempt < 3:
            raise CardError("not yet")

    with Harness(billing(later), **PLAN) as kafka:
        kafka.send("orders", b"1", headers=headers)
        kafka.run()
    last = spans.one("process orders.billing.retry.30s")
    assert attribute(last, "streamloop.outcome") == "acked"
    assert attribute(last, "streamloop.state") == "ACKED"
    assert last.status.status_code is StatusCode.UNSET
    assert not last.events
    assert attribute(last, "messaging.consumer.group.name") == "billing.retry"
    assert trace_id(last) == producer.trace_id


def test_T1_without_a_producers_span_all_attempts_are_one_trace_all_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spans = use_provider(monkeypatch)
    with Harness(billing(refuse), **PLAN) as kafka:
        kafka.send("orders", b"1")
        kafka.run()
    first, second, *_ = spans.all()
    assert len({trace_id(span) for span in spans.all()}) == 1
    assert parent_id(first) is None
    assert not links(first)
    assert parent_id(second) == span_id(first)


def test_T1_what_cannot_be_decoded_is_one_failed_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    spans = use_provider(monkeypatch)
    headers, producer = spans.produced()

    async def charge(order: dict[str, int]) -> None:
        return

    def charge_in_a_thread(order: dict[str, int]) -> None:
        return

    for handler in (charge, charge_in_a_thread):
        with Harness(billing(handler)) as kafka:
            kafka.send("orders", b"{", headers=headers)
            kafka.run()
    assert [span.name for span in spans.all("process")] == ["process orders"] * 2
    for process in spans.all("process"):
        assert parent_id(process) == producer.span_id
        assert attribute(process, "error.type") == "streamloop.errors.DecodeError"
        assert attribute(process, "streamloop.outcome") == "dead_lettered"


def test_T1_the_start_and_end_of_spans_are_the_handlers(monkeypatch: pytest.MonkeyPatch) -> None:
    spans = use_provider(monkeypatch)

    async def slow(value: bytes) -> None:
        await asyncio.sleep(3)
        raise Reject("no")

    with Harness(billing(slow)) as kafka:
        began = kafka.now
        kafka.send("orders", b"1")
        kafka.run()
    process = spans.one("process orders")
    assert process.start_time == pytest.approx(began * 1e9, abs=1e6)
    assert (process.end_time or 0) - (process.start_time or 0) == pytest.approx(3e9, abs=1e6)


def test_a_message_that_its_handler_skips_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    spans = use_provider(monkeypatch)

    async def skip(value: bytes) -> None:
        raise Skip("not ours")

    with Harness(billing(skip)) as kafka:
        kafka.send("orders", b"1")
        kafka.run()
    process = spans.one("process orders")
    assert attribute(process, "streamloop.outcome") == "skipped"
    assert process.status.status_code is StatusCode.UNSET
    assert not process.events


def test_a_handler_that_times_out_is_an_error_of_its_attempt(monkeypatch: pytest.MonkeyPatch) -> None:
    spans = use_provider(monkeypatch)

    async def hang(value: bytes) -> None:
        await asyncio.Event().wait()

    with Harness(billing(hang, timeout=2), in_place_attempts=1, retry_topics=()) as kafka:
        kafka.send("orders", b"1")
        kafka.run()
    assert attribute(spans.one("process orders"), "error.type") == "streamloop.runners.base.HandlerTimeout"


# ----------------------------------------------------------------------------- T2: the handler's own context


def test_T2_a_handlers_own_spans_are_children_and_nothing_leaks(monkeypatch: pytest.MonkeyPatch) -> None:
    spans = use_provider(monkeypatch)
    produced = [spans.produced() for _ in range(20)]

    async def work(value: bytes) -> None:
        with spans.tracer.start_as_current_span(f"own {value.decode()}."):
            await asyncio.sleep(float(value) % 3)
        trace.use_span(trace.INVALID_SPAN).__enter__()  # never left: the next message must not see it

    with Harness(billing(work), partitions=1) as kafka:
        for number, (headers, _) in enumerate(produced):
            kafka.send("orders", str(number), key=str(number % 7), headers=headers)
        kafka.run()
    parents = {attribute(span, "messaging.kafka.offset"): span for span in spans.all("process")}
    for number, (_, producer) in enumerate(produced):
        process = parents[number]
        assert trace_id(process) == producer.trace_id
        assert parent_id(spans.one(f"own {number}.")) == span_id(process)


@pytest.mark.parametrize("options", [{}, {"runner": "inline"}], ids=["thread", "inline"])
def test_T2_plain_functions_run_in_their_messages_context(
    options: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    spans = use_provider(monkeypatch)
    headers, producer = spans.produced()

    def work(value: bytes) -> None:
        with spans.tracer.start_as_current_span("own"):
            pass

    with Harness(billing(work, **options)) as kafka:
        kafka.send("orders", b"1", headers=headers)
        kafka.run()
    assert parent_id(spans.one("own")) == span_id(spans.one("process orders"))
    assert trace_id(spans.one("own")) == producer.trace_id


@pytest.mark.parametrize("with_header", [True, False])
@pytest.mark.parametrize("sampler", [DEFAULT_OFF, ParentBasedTraceIdRatio(0.0)])
def test_T2_spans_of_an_unsampled_messages_handler_are_not_recorded(
    with_header: bool, sampler: Sampler, monkeypatch: pytest.MonkeyPatch
) -> None:
    spans = use_provider(monkeypatch, sampler)
    headers, producer = spans.produced(sampled=False)
    seen: list[trace.SpanContext] = []

    async def work(value: bytes) -> None:
        seen.append(trace.get_current_span().get_span_context())
        with spans.tracer.start_as_current_span("own") as own:
            seen.append(own.get_span_context())

    with Harness(billing(work)) as kafka:
        kafka.send("orders", b"1", headers=headers if with_header else None)
        kafka.run()
    current, own = seen
    assert not spans.all()
    assert current.is_valid
    assert own.trace_id == current.trace_id
    assert not own.trace_flags.sampled
    if with_header:
        assert (current.trace_id, current.span_id) == (producer.trace_id, producer.span_id)


def test_T2_baggage_and_tracestate_travel(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[object, str | None]] = []

    async def work(value: bytes) -> None:
        state = trace.get_current_span().get_span_context().trace_state
        seen.append((baggage.get_baggage("tenant"), state.get("vendor")))

    for sampled in (True, False):
        spans = use_provider(monkeypatch)
        headers, _ = spans.produced(sampled=sampled)
        for more in ([], [("baggage", b"tenant=acme")]):
            with Harness(billing(work)) as kafka:
                kafka.send("orders", b"1", headers=[*headers, ("tracestate", b"vendor=1"), *more])
                kafka.run()
    assert seen == [(None, "1"), ("acme", "1")] * 2


# ------------------------------------------------------------------ T3: no traceparent, a malformed one, two


MALFORMED = [
    b"",
    b"00",
    b"nonsense",
    b"00-00000000000000000000000000000000-1111111111111111-00",
    b"00-11111111111111111111111111111111-0000000000000000-01",
    b"00-1111111111111111111111111111111g-1111111111111111-00",
    b"ff-11111111111111111111111111111111-1111111111111111-00",
    b"\xff\xfe",
    b"00-1111111111111111111111111111111111-11111111111111-00",
    b"0a-11111111111111111111111111111111-1111111111111111",
    None,
]


@pytest.mark.parametrize("value", MALFORMED)
@pytest.mark.parametrize("sampler", [DEFAULT_ON, DEFAULT_OFF], ids=["sampled", "unsampled"])
def test_T3_a_malformed_traceparent_is_handled_in_a_new_trace(
    value: bytes | None, sampler: Sampler, monkeypatch: pytest.MonkeyPatch
) -> None:
    spans = use_provider(monkeypatch, sampler)
    headers: RawHeaders = [("traceparent", value)]
    with Harness(billing(refuse), **PLAN) as kafka:
        kafka.send("orders", b"1", headers=headers)
        kafka.run()
        [dead] = kafka.dead_letters("orders")
    assert len(spans.all("process")) == 3
    assert len({trace_id(span) for span in spans.all()}) == 1
    first = spans.all()[0]
    assert parent_id(first) is None
    assert not links(first)
    # In the place of the malformed one there is the new trace's.
    [found] = header(dead.headers, "traceparent")
    assert found == traceparent(context_of(spans.one("send orders.billing.dlq"))).encode()


def test_T3_two_traceparents_make_a_new_trace_that_is_linked_to_both(monkeypatch: pytest.MonkeyPatch) -> None:
    spans = use_provider(monkeypatch, ParentBasedTraceIdRatio(0.0))
    one, first = spans.produced(sampled=True)
    other, second = spans.produced(sampled=False)
    with Harness(billing(refuse), **PLAN) as kafka:
        kafka.send("orders", b"1", headers=[*one, ("mine", b"1"), *other])
        kafka.run()
        [dead] = kafka.dead_letters("orders")
    [trace_of_all] = {trace_id(span) for span in spans.all()}
    assert trace_of_all not in (first.trace_id, second.trace_id)
    attempt = spans.all("process")[0]
    assert parent_id(attempt) is None
    assert sorted(links(attempt)) == sorted([first.span_id, second.span_id])
    assert len(header(dead.headers, "traceparent")) == 1
    assert header(dead.headers, "mine") == [b"1"]


def test_T3_the_same_traceparent_twice_is_one(monkeypatch: pytest.MonkeyPatch) -> None:
    spans = use_provider(monkeypatch)
    headers, producer = spans.produced()
    with Harness(billing(accept)) as kafka:
        kafka.send("orders", b"1", headers=headers * 2)
        kafka.run()
    assert parent_id(spans.one("process orders")) == producer.span_id


def test_T3_without_traceparent_the_sampler_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    spans = use_provider(monkeypatch, ParentBasedTraceIdRatio(0.5))
    with Harness(billing(accept), high_watermark_messages=1000) as kafka:
        for _ in range(200):
            kafka.send("orders", b"1", headers=[("mine", b"1")])
        kafka.run()
    assert 50 < len(spans.all("process orders")) < 150


# ------------------------------------------------------------------------------------------------ publishes


def test_what_a_handler_publishes_is_part_of_the_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    spans = use_provider(monkeypatch)
    headers, producer = spans.produced()

    async def work(value: bytes, message: Message) -> None:
        with spans.tracer.start_as_current_span("own"):
            # Forwarding the headers must not leave the old context in them, nor a second one.
            await message.publish("invoices", b"i", headers=message.headers)
        message.publish_on_success("mails", b"m")

    with Harness(billing(work)) as kafka:
        kafka.send("orders", b"1", headers=[*headers, ("tracestate", b"a=1")])
        kafka.run()
        [invoice], [mail] = kafka.published("invoices"), kafka.published("mails")
    to_invoices, to_mails = spans.one("send invoices"), spans.one("send mails")
    assert parent_id(to_invoices) == span_id(spans.one("own"))
    assert parent_id(to_mails) == span_id(spans.one("process orders"))
    assert header(invoice.headers, "traceparent") == [traceparent(context_of(to_invoices)).encode()]
    assert header(invoice.headers, "tracestate") == [b"a=1"]
    assert header(mail.headers, "traceparent") == [traceparent(context_of(to_mails)).encode()]
    assert trace_id(to_mails) == producer.trace_id
    assert to_mails.kind is SpanKind.PRODUCER


def test_context_reaches_what_a_thread_publishes(monkeypatch: pytest.MonkeyPatch) -> None:
    spans = use_provider(monkeypatch)

    def work(value: bytes, message: Message) -> None:
        message.publish_and_wait("invoices", b"i")
        message.publish_on_success("mails", b"m")

    with Harness(billing(work)) as kafka:
        kafka.send("orders", b"1")
        kafka.run()
    process = spans.one("process orders")
    assert parent_id(spans.one("send invoices")) == parent_id(spans.one("send mails")) == span_id(process)


def test_what_an_unsampled_message_publishes_bears_its_decision(monkeypatch: pytest.MonkeyPatch) -> None:
    spans = use_provider(monkeypatch)
    headers, producer = spans.produced(sampled=False)

    async def work(value: bytes, message: Message) -> None:
        await message.publish("invoices", b"i")

    with Harness(billing(work)) as kafka:
        kafka.send("orders", b"1", headers=headers)
        kafka.run()
        [invoice] = kafka.published("invoices")
    assert not spans.all()
    assert header(invoice.headers, "traceparent") == [traceparent(producer).encode()]


def test_a_publish_that_is_refused_is_an_error_of_its_span(monkeypatch: pytest.MonkeyPatch) -> None:
    spans = use_provider(monkeypatch)

    async def work(value: bytes, message: Message) -> None:
        await message.publish("invoices", b"i")

    with Harness(billing(work), in_place_attempts=1, retry_topics=()) as kafka:
        kafka.refuse("invoices", "no")
        kafka.send("orders", b"1")
        kafka.run()
    send = spans.one("send invoices")
    assert send.status.status_code is StatusCode.ERROR
    assert attribute(send, "error.type")


def test_a_blocked_topic_is_seen_in_the_span_that_waits_for_it(monkeypatch: pytest.MonkeyPatch) -> None:
    spans = use_provider(monkeypatch)
    with Harness(billing(refuse), in_place_attempts=1, retry_topics=()) as kafka:
        kafka.block("orders.billing.dlq", "the topic is full")
        kafka.send("orders", b"1")
        kafka.run()
        assert not spans.all("send")
        kafka.unblock("orders.billing.dlq")
        kafka.run()
    send = spans.one("send orders.billing.dlq")
    assert [event.name for event in send.events] == ["publish blocked"]
    assert send.status.status_code is StatusCode.UNSET


# ------------------------------------------------------------------------------------------------ keep failed


@pytest.mark.parametrize("own", [True, False], ids=["our provider", "the user's"])
@pytest.mark.parametrize("with_header", [True, False])
def test_a_failed_attempt_is_kept_though_its_trace_is_not_sampled(
    with_header: bool, own: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    spans = use_provider(monkeypatch, ParentBasedTraceIdRatio(0.0), own=own)
    headers, producer = spans.produced(sampled=False)
    ids: list[int] = []

    async def slow(value: bytes) -> None:
        ids.append(trace.get_current_span().get_span_context().trace_id)
        await asyncio.sleep(2)
        raise CardError("refused")

    with Harness(billing(slow), **PLAN) as kafka:
        began = kafka.now
        kafka.send("orders", b"1", headers=headers if with_header else None)
        kafka.run()
        [retry] = kafka.retries("orders")
    # The first is made after the fact, with its real start; from then on the trace is sampled.
    first, second, to_retry, third, _ = spans.all()
    assert attribute(first, "streamloop.kept") is True
    assert first.start_time == pytest.approx(began * 1e9, abs=1e6)
    assert (first.end_time or 0) - (first.start_time or 0) == pytest.approx(2e9, abs=1e6)
    assert attribute(second, "streamloop.kept") is None
    assert attribute(third, "streamloop.kept") is None
    assert {trace_id(span) for span in spans.all()} == set(ids)
    if with_header:
        assert parent_id(first) == producer.span_id
        assert links(first) == [producer.span_id]
    [found] = header(retry.headers, "traceparent")
    assert found == traceparent(context_of(to_retry)).encode()
    assert context_of(to_retry).trace_flags.sampled


def test_at_most_ten_alike_failures_a_second_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    spans = use_provider(monkeypatch, DEFAULT_OFF)
    sent: list[bytes | None] = []
    loop = billing(refuse)
    with Harness(loop, in_place_attempts=1, retry_topics=()) as kafka:
        for _ in range(50):
            headers, _context = spans.produced(sampled=False)
            sent.append(headers[0][1])
            kafka.send("orders", b"1", headers=headers)
        kafka.run()
        dead = kafka.dead_letters("orders")
        counted = {
            dict(each)["result"]: value for each, value in loop.metrics()["loop_failed_spans_total"].items()
        }
    assert counted == {"kept": 10, "left_out": 40}
    assert len(spans.all("process")) == 10
    assert len(spans.all("send")) == 10
    # What was not kept goes on with the context that it came with.
    unkept = [header(each.headers, "traceparent")[0] for each in dead]
    assert len([each for each in unkept if each in sent]) == 40


def test_what_is_left_out_is_counted_by_fingerprint() -> None:
    allowance = Allowance(per_second=2)
    taken = [allowance.take("a", 1.0) for _ in range(3)]
    assert taken == [True, True, False]
    assert allowance.take("b", 1.9)
    assert allowance.take("a", 2.0)
    assert (allowance.kept, allowance.left_out) == (4, 1)


def test_nothing_is_kept_when_a_setting_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    spans = use_provider(monkeypatch, DEFAULT_OFF)
    with Harness(billing(refuse), trace_keep_failed=False, **PLAN) as kafka:
        kafka.send("orders", b"1")
        kafka.run()
        [dead] = kafka.dead_letters("orders")
    assert not spans.all()
    [found] = header(dead.headers, "traceparent")
    assert found is not None
    assert found.endswith(b"-00")


def test_a_provider_whose_sampler_is_not_wrapped_is_said_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "streamloop.telemetry")
    spans = use_provider(monkeypatch, DEFAULT_OFF, wrap=False)
    with Harness(billing(refuse), **PLAN) as kafka:
        kafka.send("orders", b"1")
        kafka.run()
    assert not spans.all()
    said = [each.getMessage() for each in caplog.records if "KeepFailedSampler" in each.getMessage()]
    assert len(said) == 1


# ------------------------------------------------------------------------------------------------- batches


def test_T1_each_message_of_a_batch_has_its_attempt_in_its_own_trace(monkeypatch: pytest.MonkeyPatch) -> None:
    spans = use_provider(monkeypatch)
    one, first = spans.produced()
    other, second = spans.produced()
    unsampled, _ = spans.produced(sampled=False)

    async def work(values: list[bytes], messages: list[Message]) -> list[object]:
        with spans.tracer.start_as_current_span("own"):
            await messages[1].publish("invoices", b"i")
        messages[0].publish_on_success("mails", b"m")
        return [None, Reject("bad"), None]

    loop: StreamLoop[None] = StreamLoop("billing")
    loop.consumer("orders", batch=True)(work)
    with Harness(loop, partitions=1, batch_size=3) as kafka:
        for headers in (one, other, unsampled):
            kafka.send("orders", b"1", headers=headers)
        kafka.run()
    batch = next(span for span in spans.all("process") if attribute(span, "messaging.batch.message_count"))
    attempts = {trace_id(span): span for span in spans.all("process") if span is not batch}
    assert attempts.keys() == {first.trace_id, second.trace_id}
    good, bad = attempts[first.trace_id], attempts[second.trace_id]
    assert attribute(batch, "messaging.batch.message_count") == 3
    assert sorted(links(batch)) == sorted([span_id(good), span_id(bad)])
    assert span_id(batch) in links(good)
    assert span_id(batch) in links(bad)
    assert parent_id(spans.one("own")) == span_id(batch)
    assert attribute(good, "streamloop.outcome") == "acked"
    assert attribute(bad, "streamloop.outcome") == "dead_lettered"
    # What a message publishes is part of its own trace, and not of its batch's.
    assert parent_id(spans.one("send invoices")) == span_id(bad)
    assert parent_id(spans.one("send mails")) == span_id(good)
    assert parent_id(spans.one("send orders.billing.dlq")) == span_id(bad)


# ------------------------------------------------------------------------------------------- logs, exemplars


def test_log_lines_bear_the_trace(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "streamloop")
    spans = use_provider(monkeypatch)
    headers, producer = spans.produced()
    with Harness(billing(refuse), in_place_attempts=1, retry_topics=("30s",)) as kafka:
        kafka.send("orders", b"1", headers=headers)
        kafka.run()
    lines = [each for each in caplog.records if getattr(each, "kind", "") in ("routed", "outcome")]
    assert lines
    for line in lines:
        assert getattr(line, "trace_id", "") == f"{producer.trace_id:032x}"
    routed = next(each for each in lines if getattr(each, "kind", "") == "routed")
    assert getattr(routed, "span_id", "") == f"{span_id(spans.all('process')[0]):016x}"


def test_a_traced_attempt_is_an_exemplar_of_its_duration(monkeypatch: pytest.MonkeyPatch) -> None:
    spans = use_provider(monkeypatch)

    async def slow(value: bytes) -> None:
        await asyncio.sleep(0.3)

    loop = billing(slow)
    with Harness(loop) as kafka:
        kafka.send("orders", b"1")
        kafka.run()
        [runner] = kafka._live().core.runners
        [exemplar] = runner.durations.exemplars.values()
    context = context_of(spans.one("process orders"))
    assert (exemplar.trace_id, exemplar.span_id) == (f"{context.trace_id:032x}", f"{context.span_id:016x}")
    assert exemplar.value == pytest.approx(0.3)


# ------------------------------------------------------------------------------------------- samplers


class Picky(Sampler):
    """Records what is sent to a topic of its choice, whatever the parent says."""

    def should_sample(
        self,
        parent_context: Context | None,
        trace_id: int,
        name: str,
        kind: SpanKind | None = None,
        attributes: Attributes = None,
        links: Sequence[Link] | None = None,
        trace_state: TraceState | None = None,
    ) -> SamplingResult:
        wanted = (attributes or {}).get("messaging.destination.name") == "orders"
        return SamplingResult(Decision.RECORD_AND_SAMPLE if wanted else Decision.DROP)

    def get_description(self) -> str:
        return "Picky"


def test_a_sampler_of_the_users_is_asked_with_the_attributes(monkeypatch: pytest.MonkeyPatch) -> None:
    spans = use_provider(monkeypatch, Picky())
    headers, producer = spans.produced(sampled=False)
    with Harness(billing(accept)) as kafka:
        kafka.send("orders", b"1", headers=headers)
        kafka.run()
    assert parent_id(spans.one("process orders")) == producer.span_id


class Broken(Sampler):
    def should_sample(self, *arguments: object, **keywords: object) -> SamplingResult:
        raise ZeroDivisionError

    def get_description(self) -> str:
        return "Broken"


def test_a_sampler_that_raises_fails_no_message(monkeypatch: pytest.MonkeyPatch) -> None:
    use_provider(monkeypatch, Broken())
    with Harness(billing(refuse), **PLAN) as kafka:
        sent = kafka.send("orders", b"1")
        kafka.run()
        assert len(kafka.outcome(sent).attempts) == 3


@pytest.mark.parametrize(
    ("sampler", "policy"),
    [
        (DEFAULT_ON, Policy(True, LOW_64 + 1)),
        (DEFAULT_OFF, Policy(True, 0)),
        (ParentBasedTraceIdRatio(0.25), Policy(True, 2**62)),
        (KeepFailedSampler(ParentBasedTraceIdRatio(0.25)), Policy(True, 2**62)),
        (ALWAYS_ON, Policy(False, None)),
        (ALWAYS_OFF, Policy(False, None)),
        (Picky(), Policy(False, None)),
    ],
)
def test_what_is_known_of_a_sampler_is_what_it_would_say(sampler: Sampler, policy: Policy) -> None:
    assert policy_of(sampler) == policy


def test_the_light_span_reads_the_header_as_the_propagator_does() -> None:
    light = Carried(b"00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-02", b"a=1,b=2")
    context = light.get_span_context()
    assert context.trace_id == 0x0AF7651916CD43DD8448EB211C80319C
    assert context.span_id == 0xB7AD6B7169203331
    assert context.is_remote
    assert not context.trace_flags.sampled
    assert dict(context.trace_state) == {"a": "1", "b": "2"}


def test_without_a_provider_the_harness_traces_nothing() -> None:
    assert isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)
    with Harness(billing(refuse), tracing="on", **PLAN) as kafka:
        kafka.send("orders", b"1", headers=[("traceparent", b"00-" + b"1" * 32 + b"-" + b"1" * 16 + b"-01")])
        kafka.run()
        [dead] = kafka.dead_letters("orders")
    assert header(dead.headers, "traceparent") == [b"00-" + b"1" * 32 + b"-" + b"1" * 16 + b"-01"]
    assert not isinstance(trace.get_tracer_provider(), TracerProvider)


def test_the_short_way_to_attach_a_context_is_what_attach_does(monkeypatch: pytest.MonkeyPatch) -> None:
    given = otel.set_value("a key", "a value", Context())
    own = contextvars.Context()
    own.run(attacher(), given)
    assert own.run(otel.get_current) is given
    assert otel.get_current() is not given
    # Another runtime context (OTEL_PYTHON_CONTEXT) is asked by its own attach().
    monkeypatch.setattr(otel, "_RUNTIME_CONTEXT", object())
    assert attacher() is otel.attach
    monkeypatch.delattr(otel, "_RUNTIME_CONTEXT")
    assert attacher() is otel.attach
