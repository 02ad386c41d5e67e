"""Traces: one span for each attempt to handle a message, and one for each record that is published.

``process <topic>`` is a child of the message's context and linked to it; the handler runs in its context. A
routed record bears the context of its ``send`` span, and so the next attempt is a child of that: one trace
from the producer's span through every attempt, retry topic and dead letter. Where nothing is sampled a
message costs one light span that records nothing (streamloop.telemetry.carrier); at a failure a span of that
attempt is made after the fact, with its real start, and later hops are sampled.

It must never fail a message, nor wait for anything. Runners call ``begin``, ``returned``, ``failed`` and
``undecodable``; the router and the core the rest; all on the event loop. A run without tracing has none of
it: runners and core look once whether there is one.
"""

from __future__ import annotations

import asyncio
import contextvars
import logging
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar, Final

import confluent_kafka
from opentelemetry import context as otel
from opentelemetry import trace
from opentelemetry.context import Context
from opentelemetry.trace import Link, SpanKind, Status, StatusCode

from streamloop.engine.retry import Kind
from streamloop.engine.states import State
from streamloop.kafka.headers import TRACEPARENT, TRACESTATE, headers_of, read_routing
from streamloop.kafka.publishing import ReportKind
from streamloop.telemetry import attributes as at
from streamloop.telemetry.carrier import (
    BAGGAGE,
    HEX_TO_ZERO,
    MOST_LINKS,
    SHAPE,
    SPAN_KEY,
    UNSAMPLED,
    ZERO,
    Carried,
    Drawn,
    Light,
    attacher,
    injected,
    is_w3c,
    origin_of,
    read_origin,
    read_traceparent,
    replaced,
)
from streamloop.telemetry.client_spans import ClientSpans
from streamloop.telemetry.sampler import LOW_64, Allowance, Policy, draw_trace_id, kept_in

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from opentelemetry.trace import Span, SpanContext, Tracer

    from streamloop.engine.record import Record
    from streamloop.engine.retry import Failure
    from streamloop.kafka.headers import RawHeaders
    from streamloop.kafka.publishing import PublishRequest, Report
    from streamloop.message import Outgoing, RawMessage
    from streamloop.telemetry.carrier import Origin
    from streamloop.telemetry.durations import Durations
    from streamloop.telemetry.sampler import DrawnIds

log = logging.getLogger("streamloop.tracing")


SAY_AGAIN: Final = 60.0
"""Seconds after which an error of tracing itself is logged again."""

_EMPTY: Final = Context()
_new: Final = object.__new__


class Attempt:
    """An attempt whose span is recorded."""

    __slots__ = ("durations", "ended_ns", "failure", "record", "seconds", "span", "started_ns")

    sampled: ClassVar[bool] = True

    def __init__(self, span: Span, record: Record, started_ns: int) -> None:
        self.span = span
        self.record = record
        self.started_ns = started_ns
        self.ended_ns = 0
        self.seconds = 0.0
        self.durations: Durations | None = None
        self.failure: Failure | None = None


AnyAttempt = Attempt | Light


class Tracing:
    """The spans of one run. ``ids``: of a provider of our own, whose decisions can be made beforehand.

    ``clock``: monotonic seconds; ``wall``: epoch seconds. ``group``, ``client``: as the conventions show
    them. ``retry_group``: of the Consumer of the retry topics. ``link_replays``: what is replayed begins a
    trace of its own, linked to the message's.
    """

    def __init__(
        self,
        tracer: Tracer,
        policy: Policy,
        *,
        group: str,
        client: str,
        clock: Callable[[], float],
        wall: Callable[[], float],
        ids: DrawnIds | None = None,
        keep_failed: bool = True,
        link_replays: bool = False,
    ) -> None:
        self._link_replays = link_replays
        self.tracer = tracer
        self.group = group
        self.client = client
        self.allowance = Allowance()
        self.ended: list[Attempt] = []
        """Attempts that are over; their spans end with what the engine's next turn makes of them."""
        self._clock = clock
        self._wall = wall
        self._ids = ids
        self._attach = attacher()
        self._keep_failed = keep_failed
        self._parent_decides = policy.parent_decides
        self._light = policy.parent_decides and is_w3c()
        self._bound = policy.bound if ids is not None else None
        self._is_source: Callable[[str], bool] = lambda _topic: True
        self._is_replay: Callable[[str], bool] | None = None
        """Topics whose messages begin a trace of their own, linked to the one that they bear."""
        self._say_again = clock()
        self._sends: dict[int, tuple[Span, bool]] = {}
        """By publish id: the span, and whether the record is a routed one."""

    def know(self, is_source: Callable[[str], bool], is_replay: Callable[[str], bool]) -> None:
        """Which topics are source topics (the others are this group's own), and which are replay topics."""
        self._is_source = is_source
        if self._link_replays:
            self._is_replay = is_replay

    # ------------------------------------------------------------------------------------------- attempts

    def begin(self, record: Record, context: contextvars.Context) -> AnyAttempt:
        """An attempt begins now. The message's trace is attached in ``context``, the handler's own."""
        drawn = False
        origin: Origin | None = None
        attempts = record.attempts
        anew = self._is_replay is not None and self._is_replay(record.part.name.topic)
        if self._light and (attempts is None or attempts.last is None) and not anew:
            traceparent = tracestate = None
            simple = True
            for name, value in headers_of(record.message) or ():
                if name == TRACEPARENT:
                    simple = simple and traceparent is None and value is not None
                    traceparent = value
                elif name == TRACESTATE:
                    simple = simple and tracestate is None
                    tracestate = value
                elif name == BAGGAGE:
                    simple = False
            light: Light | None = None
            if not simple:
                pass
            elif traceparent is None:
                drawn = self._bound is not None
                light = self._draw()
            elif (
                traceparent.translate(HEX_TO_ZERO) == SHAPE
                and traceparent[54] in UNSAMPLED
                # Of version 00, and no id of zeros only: one of 256 is left to the slow way.
                and traceparent[0] == traceparent[1] == ZERO
                and (traceparent[3] != ZERO or traceparent[4] != ZERO)
                and (traceparent[36] != ZERO or traceparent[37] != ZERO)
            ):
                if tracestate is None:
                    light = _new(Carried)  # as its __init__ does, for half of the price
                    light.traceparent = traceparent
                else:
                    light = Carried(traceparent, tracestate)
            elif read_traceparent(traceparent) is not None:
                origin = origin_of(Carried(traceparent, tracestate).get_span_context())
            if light is not None:
                context.run(self._attach, Context({SPAN_KEY: light}))
                return light
        try:
            attempt, attached = self._start(record, origin, drawn=drawn)
        except Exception as error:  # noqa: BLE001 - a sampler or a span processor of the user's
            self._went_wrong(error)
            attempt = Drawn(draw_trace_id())
            attached = trace.set_span_in_context(attempt, _EMPTY)
        context.run(self._attach, attached)
        return attempt

    def _draw(self, links: Sequence[SpanContext] = ()) -> Light | None:
        """A trace begins. None: it is recorded (as the next that is started), or the sampler is asked."""
        if self._bound is None:
            return None
        trace_id = draw_trace_id()
        if trace_id & LOW_64 >= self._bound:
            return Drawn(trace_id, links)
        assert self._ids is not None
        self._ids.use(trace_id)
        return None

    def _start(self, record: Record, origin: Origin | None, *, drawn: bool) -> tuple[AnyAttempt, Context]:
        """The attempt, and the context that its handler runs in.

        ``origin``: None when it is not read yet. ``drawn``: it is decided already.
        """
        if origin is None:
            origin = read_origin(headers_of(record.message))
            if self._is_replay is not None and self._is_replay(record.part.name.topic):
                origin = origin.left()
        context, parent = origin.context, origin.parent
        keep = origin.one_sampled
        last = _trace_of(record)
        if last is not None:
            # An attempt in place after another one: the same trace, and recorded if that was.
            keep = keep or last.get_span_context().trace_flags.sampled
            if not keep and self._parent_decides and isinstance(last, Light):
                return last, trace.set_span_in_context(last, context)
            if parent is None:
                parent = last.get_span_context()
                context = trace.set_span_in_context(last, context)
        if parent is not None and self._parent_decides and not keep and not parent.trace_flags.sampled:
            light = Light(parent, origin.parent, origin.links)
            return light, trace.set_span_in_context(light, context)
        if parent is None and not keep and not drawn and (beginning := self._draw(origin.links)) is not None:
            return beginning, trace.set_span_in_context(beginning, context)
        begun = self._wall()
        span = self._start_span(record, context, origin.links, begun, keep=keep)
        if span.is_recording():
            return Attempt(span, record, int(begun * 1e9)), trace.set_span_in_context(span, context)
        light = Light(span.get_span_context(), parent, origin.links)
        return light, trace.set_span_in_context(light, context)

    def _start_span(
        self, record: Record, context: Context, links: Sequence[SpanContext], begun: float, *, keep: bool
    ) -> Span:
        raw: RawMessage = record.message
        topic = raw.topic() or ""
        source = self._is_source(topic)
        attributes = at.operation("process", "process", topic, self.client)
        at.put_place(attributes, raw)
        attributes[at.GROUP] = self.group if source else f"{self.group}.retry"
        attributes[at.ATTEMPT] = record.attempt
        attributes[at.CONSUMER] = record.part.consumer.spec.name
        if not source:
            routing = read_routing(headers_of(raw), group=self.group)
            if routing is not None:
                attributes[at.ORIGINAL] = (
                    f"{routing.original_topic}/{routing.original_partition}/{routing.original_offset}"
                )
        return self.tracer.start_span(
            f"process {topic}",
            kept_in(context) if keep else context,
            kind=SpanKind.CONSUMER,
            attributes=attributes,
            links=[Link(each) for each in links],
            start_time=int(begun * 1e9),
        )

    def returned(self, attempt: AnyAttempt, seconds: float, durations: Durations | None) -> None:
        """A sampled attempt is over, after so many seconds, and was counted in ``durations``."""
        assert isinstance(attempt, Attempt)
        attempt.seconds = seconds
        attempt.ended_ns = attempt.started_ns + int(seconds * 1e9)
        attempt.durations = durations
        self.ended.append(attempt)

    def failed(
        self,
        attempt: AnyAttempt,
        record: Record,
        error: BaseException,
        failure: Failure,
        seconds: float,
        durations: Durations | None,
    ) -> Failure:
        """The attempt has failed. Returns the failure with its trace, for what follows from it."""
        if isinstance(attempt, Light):
            kept = None
            try:
                kept = self._keep(attempt, record, error, failure, seconds)
            except Exception as own:  # noqa: BLE001 - a span processor of the user's
                self._went_wrong(own)
            if kept is None:
                return replace(failure, trace=attempt)
            attempt = kept
        self.returned(attempt, seconds, durations)
        attempt.failure = failure
        if failure.kind is not Kind.SKIP:
            span = attempt.span
            span.add_event("exception", at.exception_event(error, failure), attempt.ended_ns)
            span.set_attribute(at.ERROR, failure.error_class)
            span.set_status(Status(StatusCode.ERROR, failure.message))
        return replace(failure, trace=attempt.span)

    def _keep(
        self, light: Light, record: Record, error: BaseException, failure: Failure, seconds: float
    ) -> Attempt | None:
        """A span for an attempt that failed unsampled; None: there were too many alike, or it can't be."""
        if (
            not self._keep_failed
            or failure.kind is Kind.SKIP
            or isinstance(error, asyncio.CancelledError)
            or not self.allowance.take(failure.fingerprint, self._clock())
        ):
            return None
        begun = self._wall() - seconds
        parent = light.parent
        context = _EMPTY
        if parent is not None:
            context = trace.set_span_in_context(trace.NonRecordingSpan(parent), context)
        elif isinstance(light, Drawn) and self._ids is not None:
            self._ids.use(light.trace_id)
        else:
            # A sampler of the user's drew the trace: its id is in logs and calls already.
            context = trace.set_span_in_context(light, context)
        span = self._start_span(record, context, light.links, begun, keep=True)
        if not span.is_recording():
            return None
        span.set_attribute(at.KEPT, True)
        return Attempt(span, record, int(begun * 1e9))

    def undecodable(self, record: Record, error: BaseException, failure: Failure) -> Failure:
        """The value can't be decoded: an attempt that begins and ends now."""
        attempt = self.begin(record, contextvars.Context())
        return self.failed(attempt, record, error, failure, 0.0, None)

    def settle(self, count: int) -> None:
        """The engine has taken so many of ``ended``: their spans end, and say what became of them."""
        ended = self.ended[:count]
        del self.ended[:count]
        for attempt in ended:
            state = attempt.record.state
            failure = attempt.failure
            outcome = at.OUTCOMES.get(state, "")
            if failure is not None and state is State.ACKED:
                outcome = "skipped"
            elif failure is not None and failure.kind is Kind.UNAVAILABLE and state is State.BACKOFF:
                outcome = "unavailable"
            span = attempt.span
            span.set_attribute(at.STATE, state.name)
            span.set_attribute(at.OUTCOME, outcome or state.name.lower())
            self._end(span, attempt.ended_ns)
            durations = attempt.durations
            context = span.get_span_context()
            if durations is not None and context.trace_flags.sampled:
                durations.exemplar(
                    durations.bucket_of(attempt.seconds),
                    f"{context.trace_id:032x}",
                    f"{context.span_id:016x}",
                    attempt.seconds,
                    attempt.ended_ns / 1e9,
                )

    # -------------------------------------------------------------------------------------------- batches

    def begin_batch(
        self, records: Sequence[Record], consumer: str, context: contextvars.Context
    ) -> tuple[list[AnyAttempt], list[Context], Span | None]:
        """A batch of this consumer begins: an attempt for each message, in the message's own trace.

        Also the context of each message, for what it publishes; and the span of the batch, in which the
        handler runs: a trace of its own that is linked to each of its messages. None: none is sampled.
        """
        attempts = []
        contexts = []
        for record in records:
            own = contextvars.Context()
            attempts.append(self.begin(record, own))
            contexts.append(own.run(otel.get_current))
        sampled = [each.span for each in attempts if isinstance(each, Attempt)]
        if not sampled:
            light = Drawn(draw_trace_id())
            context.run(otel.attach, trace.set_span_in_context(light, _EMPTY))
            return attempts, contexts, None
        topics = {record.message.topic() or "" for record in records}
        topic = topics.pop() if len(topics) == 1 else ""
        attributes = at.operation("process", "process", topic, self.client)
        attributes[at.GROUP] = self.group if self._is_source(topic) else f"{self.group}.retry"
        attributes[at.BATCH] = len(records)
        attributes[at.CONSUMER] = consumer
        try:
            span = self.tracer.start_span(
                f"process {topic}".strip(),
                kept_in(_EMPTY),
                kind=SpanKind.CONSUMER,
                attributes=attributes,
                links=[Link(each.get_span_context()) for each in sampled[:MOST_LINKS]],
                start_time=int(self._wall() * 1e9),
            )
            for each in sampled:
                each.add_link(span.get_span_context())
        except Exception as error:  # noqa: BLE001 - a sampler or a span processor of the user's
            self._went_wrong(error)
            return attempts, contexts, None
        context.run(otel.attach, trace.set_span_in_context(span, _EMPTY))
        return attempts, contexts, span

    def end_batch(self, span: Span | None, failed: int) -> None:
        """The handler of a batch is back; ``failed``: how many of its messages have failed."""
        if span is not None:
            span.set_attribute("streamloop.failed", failed)
            if failed:
                span.set_status(Status(StatusCode.ERROR, f"{failed} messages failed"))
            self._end(span, int(self._wall() * 1e9))

    # ------------------------------------------------------------------------------------------- publishes

    def routed(
        self, request: PublishRequest, headers: RawHeaders | None, failure: Failure, attempt: int
    ) -> tuple[RawHeaders | None, tuple[str, str | None] | None]:
        """A failed message is routed. Returns the record's headers, and the trace to put into them."""
        last = failure.trace
        if not isinstance(last, trace.Span):
            return headers, None
        context = trace.set_span_in_context(last, _EMPTY)
        if last.get_span_context().trace_flags.sampled:
            attributes = self._sending(request.topic, request.partition, request.key, request.value)
            attributes[at.ATTEMPT] = attempt
            span = self._send(request.id, request.topic, kept_in(context), attributes, routed=True)
            context = trace.set_span_in_context(span, _EMPTY)
        elif isinstance(last, Light) and last.carried:
            return headers, None
        written = injected(context)
        traceparent, tracestate = written.pop(TRACEPARENT, ""), written.pop(TRACESTATE, None)
        if written:
            headers = replaced(headers or [], written)
        return headers, (traceparent, tracestate) if traceparent else None

    def publishing(self, number: int, outgoing: Outgoing) -> RawHeaders:
        """A handler publishes. Returns the record's headers."""
        context = outgoing.context if outgoing.context is not None else otel.get_current()
        current = trace.get_current_span(context).get_span_context()
        if not (current.is_valid and self._parent_decides and not current.trace_flags.sampled):
            attributes = self._sending(outgoing.topic, outgoing.partition, outgoing.key, outgoing.value)
            span = self._send(number, outgoing.topic, context, attributes, routed=False)
            context = trace.set_span_in_context(span, context)
        return replaced(outgoing.headers, injected(context))

    def _sending(self, topic: str, partition: int, key: bytes | None, value: bytes | None) -> at.Attributes:
        attributes = at.operation("send", "send", topic, self.client)
        if partition >= 0:
            attributes[at.PARTITION] = str(partition)
        at.put_key(attributes, key, value)
        return attributes

    def _send(
        self, number: int, topic: str, context: Context, attributes: at.Attributes, *, routed: bool
    ) -> Span:
        try:
            span = self.tracer.start_span(
                f"send {topic}",
                context,
                kind=SpanKind.PRODUCER,
                attributes=attributes,
                start_time=int(self._wall() * 1e9),
            )
        except Exception as error:  # noqa: BLE001 - a sampler or a span processor of the user's
            self._went_wrong(error)
            return trace.get_current_span(context)
        if span.is_recording():
            self._sends[number] = (span, routed)
        return span

    def reported(self, report: Report) -> None:
        """The publisher says what became of a record."""
        sent = self._sends.get(report.id)
        if sent is None:
            return
        span, routed = sent
        if report.kind is ReportKind.DELIVERED:
            if report.partition >= 0:
                span.set_attribute(at.PARTITION, str(report.partition))
            if report.offset >= 0:
                span.set_attribute(at.OFFSET, report.offset)
            self._end_send(report.id, span)
        elif report.kind is not ReportKind.UNBLOCKED:
            # A routed record, and one whose topic takes nothing now, is tried again until it is there.
            error = confluent_kafka.KafkaError(report.code).name() if report.code else report.kind.value
            told: at.Attributes = {at.ERROR: error, "streamloop.reason": report.reason}
            span.add_event(f"publish {report.kind.value}", told, int(self._wall() * 1e9))
            if not routed and report.kind is not ReportKind.BLOCKED:
                span.set_attribute(at.ERROR, error)
                span.set_status(Status(StatusCode.ERROR, report.reason))
                self._end_send(report.id, span)

    def gave_up(self, number: int) -> None:
        """Nobody waits for this record any more: its handler was stopped, or its partition has left."""
        sent = self._sends.get(number)
        if sent is not None:
            sent[0].set_attribute(at.ERROR, "cancelled")
            sent[0].set_status(Status(StatusCode.ERROR, "nobody waited for it any more"))
            self._end_send(number, sent[0])

    def _end_send(self, number: int, span: Span) -> None:
        del self._sends[number]
        self._end(span, int(self._wall() * 1e9))

    def _end(self, span: Span, at_ns: int) -> None:
        try:
            span.end(at_ns)
        except Exception as error:  # noqa: BLE001 - a span processor of the user's
            self._went_wrong(error)

    def _went_wrong(self, error: Exception) -> None:
        """What is plugged into the tracer provider has raised: the message must not fail of that."""
        now = self._clock()
        if now >= self._say_again:
            self._say_again = now + SAY_AGAIN
            log.error(
                "tracing failed; the message is handled all the same",
                exc_info=error,
                extra={"kind": "telemetry"},
            )

    # -------------------------------------------------------------------------------------------- the rest

    def client_spans(self, group: str) -> ClientSpans:
        """What traces the polls and commits of a Consumer of this group."""
        return ClientSpans(self.tracer, group=group, client=self.client, wall=self._wall)

    def ids_of(self, record: Record, failure: Failure | None) -> dict[str, str]:
        """The trace of a message that is not acknowledged yet, for a log line; empty when none is known."""
        span = failure.trace if failure is not None else None
        if span is None:
            span = next((each.span for each in self.ended if each.record is record), _trace_of(record))
        if isinstance(span, trace.Span):
            return shown_ids(span.get_span_context())
        for name, value in headers_of(record.message) or ():
            match = read_traceparent(value) if name == TRACEPARENT and value else None
            if match is not None:
                return {"trace_id": match[1].decode()}
        return {}

    def close(self) -> None:
        """End what is still open: records that were not confirmed."""
        self.settle(len(self.ended))
        for number in list(self._sends):
            self.gave_up(number)


def _trace_of(record: Record) -> Span | None:
    """The span of the attempt before, in this delivery."""
    attempts = record.attempts
    last = attempts.last if attempts is not None else None
    span = last.trace if last is not None else None
    return span if isinstance(span, trace.Span) else None


def shown_ids(context: SpanContext) -> dict[str, str]:
    """Trace and span id as logs show them."""
    return {"trace_id": f"{context.trace_id:032x}", "span_id": f"{context.span_id:016x}"}
