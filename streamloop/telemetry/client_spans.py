"""Spans of a Consumer's own work: ``poll`` and ``commit``, CLIENT, when the setting trace_clients asks.

They say how long fetching and committing took, not what became of messages: each is a trace of its own (the
sampler decides), and a poll is linked to the sampled messages that it returned. Called by a poller's thread;
a poller without one pays a look at None for each batch.
"""

from __future__ import annotations

import logging
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

import confluent_kafka
from opentelemetry.context import Context
from opentelemetry.trace import Link, SpanKind, Status, StatusCode

from streamloop.kafka.headers import TRACEPARENT, headers_of
from streamloop.telemetry import attributes as at
from streamloop.telemetry.carrier import MOST_LINKS, read_origin

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from opentelemetry.trace import Tracer

    from streamloop.engine.events import Commit

log = logging.getLogger("streamloop.tracing")

_ROOT: Final = Context()


class ClientSpans:
    """The spans of one Consumer. ``group`` is its group; ``wall`` gives epoch seconds."""

    def __init__(self, tracer: Tracer, *, group: str, client: str, wall: Callable[[], float]) -> None:
        self._tracer = tracer
        self._group = group
        self._client = client
        self._wall = wall
        self._committing: tuple[float, list[str]] | None = None
        self._said = False

    def polled(self, seconds: float, messages: Sequence[Any]) -> None:
        """A call that took so long has returned these."""
        try:
            self._polled(seconds, messages)
        except Exception as error:  # noqa: BLE001 - a sampler or a span processor of the user's
            self._went_wrong(error)

    def _polled(self, seconds: float, messages: Sequence[Any]) -> None:
        taken = [message for message in messages if message.error() is None]
        topics = Counter(message.topic() for message in taken)
        if not topics:
            return
        topic = next(iter(topics)) if len(topics) == 1 else ""
        links: list[Link] = []
        for message in taken:
            headers = headers_of(message) or ()
            if any(name == TRACEPARENT for name, _ in headers):
                links += [Link(each) for each in read_origin(list(headers)).links if each.trace_flags.sampled]
            if len(links) >= MOST_LINKS:
                break
        attributes = self._attributes("poll", "receive", topic)
        attributes[at.BATCH] = len(taken)
        end = self._wall()
        span = self._tracer.start_span(
            f"poll {topic}".strip(),
            _ROOT,
            kind=SpanKind.CLIENT,
            attributes=attributes,
            links=links[:MOST_LINKS],
            start_time=int((end - seconds) * 1e9),
        )
        span.end(int(end * 1e9))

    def _attributes(self, name: str, kind: str, topic: str) -> at.Attributes:
        attributes = at.operation(name, kind, topic, self._client)
        attributes[at.GROUP] = self._group
        return attributes

    def committing(self, parts: Sequence[Commit]) -> None:
        """A commit is on its way; there is one at a time."""
        self._committing = self._wall(), sorted({part.partition.topic for part in parts})

    def committed(self, code: int) -> None:
        """The broker has answered, with this error code or 0."""
        committing, self._committing = self._committing, None
        if committing is None:
            return
        try:
            began, topics = committing
            for topic in topics:
                span = self._tracer.start_span(
                    f"commit {topic}",
                    _ROOT,
                    kind=SpanKind.CLIENT,
                    attributes=self._attributes("commit", "settle", topic),
                    start_time=int(began * 1e9),
                )
                if code:
                    name = confluent_kafka.KafkaError(code).name()
                    span.set_attribute(at.ERROR, name)
                    span.set_status(Status(StatusCode.ERROR, name))
                span.end(int(self._wall() * 1e9))
        except Exception as error:  # noqa: BLE001 - a sampler or a span processor of the user's
            self._went_wrong(error)

    def _went_wrong(self, error: Exception) -> None:
        if not self._said:
            self._said = True
            log.error("polls and commits can't be traced", exc_info=error, extra={"kind": "telemetry"})
