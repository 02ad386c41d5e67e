"""The tracer provider of a run: the user's own, or one of ours with a bounded queue and a bounded flush.

Ours is made only when the program has set none; it is the process's then, for the handlers' own spans too,
and is used again by a later run. Spans go through the SDK's batch processor to its OTLP exporter, as the
OTEL_* environment variables say. When the collector is away, spans are dropped and counted, nothing waits,
and a shutdown takes no longer than its bound. Called by the run, at its start and after its consumers left.
"""

from __future__ import annotations

import itertools
import logging
import os
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.export import (
    BatchSpanProcessor,
    ConsoleSpanExporter,
    SpanExporter,
    SpanExportResult,
)
from opentelemetry.sdk.trace.sampling import ParentBasedTraceIdRatio, Sampler

from streamloop.telemetry.environment import resource_of, trace_export
from streamloop.telemetry.sampler import DrawnIds, KeepFailedSampler, Policy, policy_of, samples_everything
from streamloop.telemetry.tracing import Tracing
from streamloop.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from opentelemetry.context import Context
    from opentelemetry.sdk.trace import Span

    from streamloop.settings import Settings
    from streamloop.telemetry.environment import TraceExport

log = logging.getLogger("streamloop.telemetry")

QUEUE: Final = 32_768
"""Spans that wait to be exported: the SDK's default of 2,048 loses half of 20,000 that end at once."""
SAY_AGAIN: Final = 60.0
"""Seconds after which exports that fail are logged again."""
SCHEMA: Final = "https://opentelemetry.io/schemas/1.44.0"


class SpanQueue(SpanProcessor):
    """Stands before the SDK's batch processor: bounds what waits, and counts what is dropped.

    The batch processor itself warns for each span that it drops, which would cost more than the span.
    """

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self.dropped = 0
        """Spans that found the queue full."""
        self.exported = 0
        """Spans that were taken from the queue, sent or not."""
        self._numbers = itertools.count(1)  # several threads end spans, and += would lose some
        self._accepted = 0
        self._batch: BatchSpanProcessor | None = None

    def open(self, exporter: SpanExporter, failures: dict[str, int]) -> None:
        """Begin to export."""
        counted = CountingExporter(exporter, self, failures)
        size = min(512, self.limit)
        self._numbers, self._accepted, self.exported = itertools.count(1), 0, 0
        # Twice the limit, so that the count here is what bounds it.
        self._batch = BatchSpanProcessor(
            counted,
            max_queue_size=2 * self.limit,
            max_export_batch_size=None if os.environ.get("OTEL_BSP_MAX_EXPORT_BATCH_SIZE") else size,
        )

    def on_start(self, span: Span, parent_context: Context | None = None) -> None:
        """Nothing to do."""

    def on_end(self, span: ReadableSpan) -> None:
        """Queue the span, if there is room. Never waits."""
        batch = self._batch
        context = span.get_span_context()
        if batch is None or context is None or not context.trace_flags.sampled:
            return
        if self._accepted - self.exported >= self.limit:
            self.dropped += 1
            return
        self._accepted = next(self._numbers)
        batch.on_end(span)

    @property
    def waiting(self) -> int:
        """Spans that wait to be exported."""
        return self._accepted - self.exported

    def close(self) -> None:
        """Export what waits; takes as long as the exporter does. Later spans are dropped."""
        batch, self._batch = self._batch, None
        if batch is not None:
            batch.shutdown()  # type: ignore[no-untyped-call]

    def shutdown(self) -> None:
        """The provider is shut down (by the user: a run closes the queue itself)."""
        self.close()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Export what waits now."""
        batch = self._batch
        return batch.force_flush(timeout_millis) if batch is not None else True


class CountingExporter(SpanExporter):
    """Counts exports that fail, under 'traces', and says so now and then."""

    def __init__(self, exporter: SpanExporter, queue: SpanQueue, failures: dict[str, int]) -> None:
        self._exporter = exporter
        self._queue = queue
        self._failures = failures
        self._said = -SAY_AGAIN

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Send; the exporter tries again within its own time-out."""
        problem = ""
        try:
            if self._exporter.export(spans) is not SpanExportResult.SUCCESS:
                problem = "the exporter could not send them"
        except Exception as error:  # noqa: BLE001 - whatever it is, the next batch is tried
            problem = f"{type(error).__name__}: {error}"
        self._queue.exported += len(spans)
        if not problem:
            return SpanExportResult.SUCCESS
        self._failures["traces"] += 1
        now = time.monotonic()
        if now - self._said >= SAY_AGAIN:
            self._said = now
            log.warning(
                "%d spans were not exported (%s) and are lost; handling goes on, and the next ones are tried",
                len(spans),
                problem,
                extra={"kind": "telemetry"},
            )
        return SpanExportResult.FAILURE

    def shutdown(self) -> None:
        """End the exporter."""
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        """Nothing waits here."""
        return self._exporter.force_flush(timeout_millis)


class OwnProvider:
    """The process's TracerProvider, where streamloop has made it."""

    def __init__(self, settings: Settings) -> None:
        self.sampler = KeepFailedSampler(head_sampler(settings))
        self.queue = SpanQueue(queue_limit(os.environ))
        self.users = 0
        # Not shut down at the interpreter's end: that could wait for half a minute.
        self.provider = TracerProvider(
            sampler=self.sampler,
            resource=resource_of(settings),
            id_generator=DrawnIds(),
            shutdown_on_exit=False,
        )
        self.provider.add_span_processor(self.queue)

    def begin(self, settings: Settings, make: Callable[[], SpanExporter], failures: dict[str, int]) -> None:
        """A run uses it. Raises what the exporter raises."""
        if self.users == 0:
            self.sampler.sampler = head_sampler(settings)
            self.queue.open(make(), failures)
        self.users += 1

    def end(self) -> None:
        """A run uses it no more; exports what waits after the last one."""
        with _lock:
            self.users -= 1
            last = self.users == 0
        if last:
            self.queue.close()
        else:
            self.queue.force_flush()


_lock: Final = threading.Lock()
_own: list[OwnProvider] = []
"""None or one: the process has one global provider, and it can be set only once."""


def head_sampler(settings: Settings) -> Sampler:
    """As the setting says, or OTEL_TRACES_SAMPLER: of the parent's mind, or all, unless that says else."""
    if settings.trace_sample_ratio is not None:
        return ParentBasedTraceIdRatio(settings.trace_sample_ratio)
    return TracerProvider(shutdown_on_exit=False).sampler


def queue_limit(env: Mapping[str, str]) -> int:
    """Spans that may wait: OTEL_BSP_MAX_QUEUE_SIZE, or our default."""
    given = env.get("OTEL_BSP_MAX_QUEUE_SIZE", "").strip()
    return int(given) if given.isascii() and given.isdigit() and int(given) > 0 else QUEUE


def make_exporter(export: TraceExport) -> SpanExporter:
    """The SDK's exporter of this protocol; it reads endpoint, headers and certificates of the environment."""
    made: Any
    if export.exporter == "console":
        return ConsoleSpanExporter()
    if export.protocol == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc.trace_exporter import OTLPSpanExporter as Grpc

        made = Grpc()
    else:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter as Http

        made = Http()
    exporter: SpanExporter = made
    return exporter


@dataclass(frozen=True, slots=True)
class TraceCounts:
    """Failed attempts that were kept unsampled, those that were too many, spans that found the queue full."""

    kept: int
    left_out: int
    dropped: int


class Traces:
    """The tracing of one run. ``tracing`` None: off."""

    def __init__(self, tracing: Tracing | None = None, own: OwnProvider | None = None) -> None:
        self.tracing = tracing
        self._own = own

    def counts(self) -> TraceCounts:
        """What became of spans so far; from any thread."""
        allowance = self.tracing.allowance if self.tracing is not None else None
        return TraceCounts(
            allowance.kept if allowance is not None else 0,
            allowance.left_out if allowance is not None else 0,
            self._own.queue.dropped if self._own is not None else 0,
        )

    def close(self, within: float) -> None:
        """Export what waits, for at most so many seconds. Blocks: never called on the event loop.

        The SDK ignores its own time-outs while a collector is away, so a thread of ours waits for it and
        is left behind.
        """
        if self.tracing is None:
            return
        thread = threading.Thread(target=self._flush, name="streamloop-traces", daemon=True)
        thread.start()
        thread.join(within)
        if thread.is_alive():
            log.warning(
                "the last spans were not exported within %g s (trace_flush_timeout)",
                within,
                extra={"kind": "telemetry"},
            )

    def _flush(self) -> None:
        try:
            if self._own is not None:
                self._own.end()
                return
            # The user's own provider goes on after the run; but a process may end without its atexit hooks.
            flush = getattr(trace.get_tracer_provider(), "force_flush", None)
            if flush is not None:
                flush()
        except Exception:
            log.exception("the last spans could not be exported", extra={"kind": "telemetry"})


def open_traces(
    settings: Settings,
    failures: dict[str, int],
    *,
    clock: Callable[[], float] = time.monotonic,
    wall: Callable[[], float] = time.time,
    may_make_provider: bool = True,
    make: Callable[[TraceExport], SpanExporter] = make_exporter,
) -> Traces:
    """What traces a run: the user's provider where one is set, ours where a setting or OTEL_* asks for it.

    ``failures`` counts exports that fail, under 'traces'. ``may_make_provider`` False: only the user's.
    """
    if settings.tracing == "off":
        return Traces()
    sdk_off = os.environ.get("OTEL_SDK_DISABLED", "").strip().lower() == "true"
    provider = trace.get_tracer_provider()
    own = _own[0] if _own else None
    if own is None or provider is not own.provider:
        own = None
        if not isinstance(provider, trace.ProxyTracerProvider):
            if sdk_off or isinstance(provider, trace.NoOpTracerProvider):
                return Traces()
            return Traces(_tracing(settings, provider, clock, wall))
    export = None if sdk_off else trace_export(settings.tracing, os.environ)
    if export is None or not may_make_provider:
        return Traces()
    try:
        with _lock:
            if own is None:
                own = OwnProvider(settings)
            own.begin(settings, lambda: make(export), failures)
            if not _own:
                trace.set_tracer_provider(own.provider)
                _own.append(own)
    except Exception:
        failures["traces"] += 1
        log.exception("spans can't be exported: nothing is traced", extra={"kind": "telemetry"})
        return Traces()
    return Traces(_tracing(settings, own.provider, clock, wall), own)


def _tracing(
    settings: Settings,
    provider: trace.TracerProvider,
    clock: Callable[[], float],
    wall: Callable[[], float],
) -> Tracing:
    sampler = getattr(provider, "sampler", None)
    ids = getattr(provider, "id_generator", None)
    wrapped = sampler is not None and "KeepFailed{" in sampler.get_description()
    if settings.trace_keep_failed and not wrapped and not (sampler and samples_everything(sampler)):
        log.info(
            "this program has a TracerProvider of its own: failed attempts of traces that are not sampled "
            "are recorded only if its sampler is wrapped, as in "
            "TracerProvider(sampler=streamloop.KeepFailedSampler(sampler)); trace_keep_failed=false ends "
            "this message",
            extra={"kind": "telemetry"},
        )
    return Tracing(
        provider.get_tracer("streamloop", __version__, SCHEMA),
        policy_of(sampler) if sampler is not None else Policy(parent_decides=False, bound=None),
        group=settings.group,
        client=settings.client_id or settings.member,
        clock=clock,
        wall=wall,
        ids=ids if isinstance(ids, DrawnIds) else None,
        keep_failed=settings.trace_keep_failed and (wrapped or sampler is None),
        link_replays=settings.replay_trace == "link",
    )
