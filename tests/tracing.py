"""A tracer provider for one test, whose spans are kept in memory, and what tests ask of spans."""

from __future__ import annotations

from typing import TYPE_CHECKING

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.sdk.trace.id_generator import RandomIdGenerator
from opentelemetry.sdk.trace.sampling import DEFAULT_ON

from streamloop.telemetry.sampler import DrawnIds, KeepFailedSampler

if TYPE_CHECKING:
    import pytest
    from opentelemetry.sdk.trace import ReadableSpan
    from opentelemetry.sdk.trace.id_generator import IdGenerator
    from opentelemetry.sdk.trace.sampling import Sampler

    from streamloop.kafka.headers import RawHeaders


class Spans:
    """The spans of one test, in the order they ended."""

    def __init__(self, sampler: Sampler, ids: IdGenerator) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider(sampler=sampler, id_generator=ids, shutdown_on_exit=False)
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer = self.provider.get_tracer("test")

    def all(self, name: str = "") -> list[ReadableSpan]:
        """Those whose name begins so, in the order they started."""
        found = [span for span in self._exporter.get_finished_spans() if span.name.startswith(name)]
        return sorted(found, key=lambda span: span.start_time or 0)

    def one(self, name: str) -> ReadableSpan:
        """The only one of this name."""
        [span] = self.all(name)
        return span

    def produced(self, *, sampled: bool = True) -> tuple[RawHeaders, trace.SpanContext]:
        """The headers that a producer sends, and the context in them."""
        context = trace.SpanContext(
            self.provider.id_generator.generate_trace_id(),
            self.provider.id_generator.generate_span_id(),
            is_remote=True,
            trace_flags=trace.TraceFlags(int(sampled)),
        )
        return [("traceparent", traceparent(context).encode())], context


def use_provider(
    monkeypatch: pytest.MonkeyPatch, sampler: Sampler = DEFAULT_ON, *, wrap: bool = True, own: bool = True
) -> Spans:
    """Make a provider the process's, for this test. ``wrap``: failed attempts can be kept.

    ``own``: as streamloop makes it, so that it decides about traces that begin here beforehand.
    """
    spans = Spans(KeepFailedSampler(sampler) if wrap else sampler, DrawnIds() if own else RandomIdGenerator())
    # The process's provider can be set only once: so what asks for it is answered here.
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: spans.provider)
    return spans


def traceparent(context: trace.SpanContext) -> str:
    """The header of a context."""
    return f"00-{context.trace_id:032x}-{context.span_id:016x}-{context.trace_flags:02x}"


def context_of(span: ReadableSpan) -> trace.SpanContext:
    """A finished span's own context."""
    context = span.get_span_context()
    assert context is not None
    return context


def trace_id(span: ReadableSpan) -> int:
    """The trace that it is part of."""
    return context_of(span).trace_id


def parent_id(span: ReadableSpan) -> int | None:
    """The span id of its parent."""
    return span.parent.span_id if span.parent is not None else None


def span_id(span: ReadableSpan) -> int:
    """Its own id."""
    return context_of(span).span_id


def links(span: ReadableSpan) -> list[int]:
    """The span ids that it is linked to."""
    return [link.context.span_id for link in span.links]


def attribute(span: ReadableSpan, name: str) -> object:
    """One of its attributes, or None."""
    return (span.attributes or {}).get(name)


def header(headers: object, name: str) -> list[bytes | None]:
    """The values of a header."""
    return [value for each, value in headers if each == name]  # type: ignore[attr-defined]
