"""A message's trace context: read from its headers, and written into those of what is published.

A message whose context is unsampled gets one light span that records nothing and is read from the header only
when somebody asks: the handler's own spans and calls inherit the decision from it, for little more than a
microsecond a message. Headers are replaced, never appended, so that a record has one traceparent however
often it is forwarded. Called by streamloop.telemetry.tracing.
"""

from __future__ import annotations

import contextvars
import random
import re
from typing import TYPE_CHECKING, Any, ClassVar, Final, NamedTuple

from opentelemetry import context as otel
from opentelemetry import propagate, trace
from opentelemetry.context import Context
from opentelemetry.context.contextvars_context import ContextVarsRuntimeContext
from opentelemetry.propagators.textmap import Getter
from opentelemetry.trace import INVALID_SPAN, SpanContext, TraceFlags, TraceState
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from streamloop.kafka.headers import TRACEPARENT, TRACESTATE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from streamloop.kafka.headers import RawHeaders

BAGGAGE: Final = "baggage"
MOST_LINKS: Final = 128
"""Links of one span: OpenTelemetry's default limit."""

read_traceparent: Final = re.compile(
    rb"00-(?!0{32})([0-9a-f]{32})-(?!0{16})([0-9a-f]{16})-[0-9a-f]{2}"
).fullmatch
"""A valid traceparent of version 00: trace id and span id."""
HEX_TO_ZERO: Final = bytes(ord("0") if chr(code) in "0123456789abcdef" else code for code in range(256))
"""For bytes.translate: makes ``SHAPE`` of each well-formed one, in a third of a regular expression's time."""
SHAPE: Final = b"00-" + b"0" * 32 + b"-" + b"0" * 16 + b"-00"
UNSAMPLED: Final = b"02468ace"
"""The last characters of those whose sampled flag is not set."""
ZERO: Final = ord("0")

SPAN_KEY: Final = next(iter(trace.set_span_in_context(INVALID_SPAN, Context())))
"""Under what the current span is in a Context: making one directly costs half of set_span_in_context()."""

_W3C: Final = TraceContextTextMapPropagator()


def attacher() -> Callable[[Context], Any]:
    """What makes a context the current one: opentelemetry.context.attach, or the very call that it ends in.

    Two calls of Python for each message are a tenth of what an unsampled one costs. Where OTEL_PYTHON_CONTEXT
    names another runtime context, or the API is built otherwise, it is attach().
    """
    runtime = getattr(otel, "_RUNTIME_CONTEXT", None)
    variable = getattr(runtime, "_current_context", None)
    if type(runtime) is ContextVarsRuntimeContext and isinstance(variable, contextvars.ContextVar):
        return variable.set
    return otel.attach


class Light(trace.NonRecordingSpan):
    """The span of an attempt that is not recorded: children inherit that from it.

    ``parent``: the message's context, or None. ``links``: the contexts that the message came with.
    """

    sampled: ClassVar[bool] = False

    def __init__(
        self, context: SpanContext, parent: SpanContext | None, links: Sequence[SpanContext]
    ) -> None:
        super().__init__(context)
        self._parent = parent
        self._links = links

    @property
    def parent(self) -> SpanContext | None:
        """The parent of a span that is made of this attempt after the fact."""
        return self._parent

    @property
    def links(self) -> Sequence[SpanContext]:
        """The links of such a span."""
        return self._links

    @property
    def carried(self) -> bool:
        """The message itself bears exactly this context: it needs none written."""
        return False

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.get_span_context()}>"


class Carried(Light):
    """The message's own, unsampled context. Made for nearly every message, so it reads nothing yet."""

    _tracestate: bytes | None = None
    _read: SpanContext | None = None

    traceparent: bytes
    """The header."""

    def __init__(self, traceparent: bytes, tracestate: bytes | None = None) -> None:
        # Not the base's: what it would set is read from the header later, if at all.
        self.traceparent = traceparent
        if tracestate is not None:
            self._tracestate = tracestate

    def get_span_context(self) -> SpanContext:
        """The context in the header."""
        if self._read is None:
            raw = self.traceparent
            self._read = SpanContext(
                int(raw[3:35], 16),
                int(raw[36:52], 16),
                is_remote=True,
                trace_flags=TraceFlags(int(raw[53:55], 16)),
                trace_state=_state(self._tracestate),
            )
        return self._read

    @property
    def parent(self) -> SpanContext | None:
        """The message's context."""
        return self.get_span_context()

    @property
    def links(self) -> Sequence[SpanContext]:
        """The message's context."""
        return (self.get_span_context(),)

    @property
    def carried(self) -> bool:
        """It is the message's own."""
        return True


class Drawn(Light):
    """A trace that begins here and is not recorded."""

    _links: Sequence[SpanContext] = ()
    _made: SpanContext | None = None

    def __init__(self, trace_id: int, links: Sequence[SpanContext] = ()) -> None:
        self.trace_id = trace_id
        if links:
            self._links = links

    def get_span_context(self) -> SpanContext:
        """The drawn trace id, and a span id that nothing else has."""
        if self._made is None:
            self._made = SpanContext(self.trace_id, random.getrandbits(64) or 1, is_remote=False)
        return self._made

    @property
    def parent(self) -> SpanContext | None:
        """None: the trace begins here."""
        return None


def _state(raw: bytes | None) -> TraceState | None:
    if not raw or len(raw) > 512:
        return None
    return TraceState.from_header([raw.decode("ascii", "replace")])


class _HeaderGetter(Getter["RawHeaders"]):
    """Kafka headers as propagators read them."""

    def get(self, carrier: RawHeaders, key: str) -> list[str] | None:
        """The values of this name, or None."""
        found = [value.decode("utf-8", "replace") for name, value in carrier if name == key and value]
        return found or None

    def keys(self, carrier: RawHeaders) -> list[str]:
        """All names."""
        return [name for name, _ in carrier]


_getter: Final = _HeaderGetter()


class Origin(NamedTuple):
    """Where a message's trace comes from: the context that it goes on in, the parent, and what to link to."""

    context: Context
    """With the message's baggage; its current span is the parent, or none."""
    parent: SpanContext | None
    links: tuple[SpanContext, ...]

    @property
    def one_sampled(self) -> bool:
        """One of several contexts is sampled: the new trace that links to it is recorded too."""
        return self.parent is None and any(each.trace_flags.sampled for each in self.links)

    def left(self) -> Origin:
        """A trace of its own, linked to this one."""
        return Origin(trace.set_span_in_context(INVALID_SPAN, self.context), None, self.links)


def origin_of(parent: SpanContext) -> Origin:
    """A message's with this context, and no baggage."""
    return Origin(Context({SPAN_KEY: trace.NonRecordingSpan(parent)}), parent, (parent,))


def read_origin(headers: RawHeaders | None) -> Origin:
    """What the headers say, by the propagators in force.

    More than one traceparent: a new trace, linked to each. None, or a malformed one: a new trace.
    """
    if not headers:
        return Origin(Context(), None, ())
    context = propagate.extract(headers, Context(), _getter)
    given = {value for name, value in headers if name == TRACEPARENT and value}
    if len(given) > 1:
        links = []
        for value in sorted(given):
            each = _W3C.extract({TRACEPARENT: value.decode("utf-8", "replace")}, Context())
            found = trace.get_current_span(each).get_span_context()
            if found.is_valid:
                links.append(found)
        if len(links) > 1:
            return Origin(trace.set_span_in_context(INVALID_SPAN, context), None, tuple(links))
        if links:
            span = trace.NonRecordingSpan(links[0])
            return Origin(trace.set_span_in_context(span, context), links[0], (links[0],))
    parent = trace.get_current_span(context).get_span_context()
    if not parent.is_valid:
        return Origin(context, None, ())
    return Origin(context, parent, (parent,))


def injected(context: Context) -> dict[str, str]:
    """What the propagators in force write for this context."""
    written: dict[str, str] = {}
    propagate.inject(written, context)
    return written


def replaced(headers: RawHeaders, written: dict[str, str]) -> RawHeaders:
    """The headers with these in place of those of the same name; of a trace context all is replaced."""
    if not written:
        return headers
    dropped = set(written)
    if TRACEPARENT in written:
        dropped.add(TRACESTATE)
    kept = [header for header in headers if header[0] not in dropped]
    kept += [(name, value.encode()) for name, value in written.items()]
    return kept


def is_w3c() -> bool:
    """The propagators in force are W3C's, so that traceparent is all there is to look at, and baggage."""
    fields = propagate.get_global_textmap().fields
    return TRACEPARENT in fields and fields <= {TRACEPARENT, TRACESTATE, BAGGAGE}
