"""Where spans go: whose provider, what the environment says, the queue and its bound; a collector away."""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.sampling import ALWAYS_ON

from streamloop import StreamLoop
from streamloop.telemetry import exporting
from streamloop.telemetry.environment import TraceExport, trace_export
from streamloop.telemetry.exporting import QUEUE, SpanQueue, Traces, open_traces
from streamloop.telemetry.sampler import KeepFailedSampler

if TYPE_CHECKING:
    from collections.abc import Sequence

    from opentelemetry.sdk.trace import ReadableSpan

    from streamloop.settings import Settings


class Collector(SpanExporter):
    """Takes what is exported. ``away``: fails; while ``gate`` is closed an export hangs."""

    def __init__(self, *, away: bool = False, hangs: bool = False) -> None:
        self.away = away
        self.gate = threading.Event()
        if not hangs:
            self.gate.set()
        self.entered = threading.Event()
        self.spans: list[ReadableSpan] = []

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.entered.set()
        self.gate.wait(60)
        if self.away:
            return SpanExportResult.FAILURE
        self.spans += spans
        return SpanExportResult.SUCCESS


@pytest.fixture
def process(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process without a provider and without OTEL_* variables, whose provider can be set."""
    for name in list(os.environ):
        if name.startswith("OTEL_"):
            monkeypatch.delenv(name)
    current: list[trace.TracerProvider] = [trace.ProxyTracerProvider()]
    monkeypatch.setattr(trace, "get_tracer_provider", lambda: current[0])
    monkeypatch.setattr(trace, "set_tracer_provider", lambda provider: current.__setitem__(0, provider))
    monkeypatch.setattr(exporting, "_own", [])


def settings(**given: Any) -> Settings:
    return StreamLoop("billing", member="m1", **given).load_settings().settings


def opened(collector: Collector, failures: dict[str, int] | None = None, **given: Any) -> Traces:
    return open_traces(
        settings(**given), failures if failures is not None else {"traces": 0}, make=lambda _export: collector
    )


def spans_of(traces: Traces, count: int) -> None:
    assert traces.tracing is not None
    for number in range(count):
        traces.tracing.tracer.start_span(f"span {number}").end()


# ------------------------------------------------------------------------------------------ on, or off


@pytest.mark.parametrize(
    ("setting", "env", "export"),
    [
        ("auto", {}, None),
        ("auto", {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318"}, TraceExport("otlp", "http/protobuf")),
        ("auto", {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://c"}, TraceExport("otlp", "http/protobuf")),
        ("auto", {"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://c"}, None),
        ("auto", {"OTEL_TRACES_EXPORTER": "otlp"}, TraceExport("otlp", "http/protobuf")),
        ("auto", {"OTEL_TRACES_EXPORTER": "console"}, TraceExport("console", "http/protobuf")),
        ("auto", {"OTEL_TRACES_EXPORTER": "none", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://c"}, None),
        ("auto", {"OTEL_TRACES_EXPORTER": "zipkin", "OTEL_EXPORTER_OTLP_ENDPOINT": "http://c"}, None),
        (
            "on",
            {"OTEL_EXPORTER_OTLP_PROTOCOL": "http/protobuf", "OTEL_EXPORTER_OTLP_TRACES_PROTOCOL": "grpc"},
            TraceExport("otlp", "grpc"),
        ),
        ("on", {}, TraceExport("otlp", "http/protobuf")),
        ("on", {"OTEL_SDK_DISABLED": "true"}, None),
        ("off", {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://c:4318"}, None),
    ],
)
def test_whether_and_how_spans_are_exported(
    setting: Any, env: dict[str, str], export: TraceExport | None
) -> None:
    assert trace_export(setting, env) == export


@pytest.mark.usefixtures("process")
def test_tracing_is_off_by_default() -> None:
    assert opened(Collector()).tracing is None
    assert isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)


@pytest.mark.usefixtures("process")
def test_a_provider_of_the_programs_own_is_used_as_it_is() -> None:
    own = TracerProvider(shutdown_on_exit=False)
    trace.set_tracer_provider(own)
    assert opened(Collector()).tracing is not None
    assert trace.get_tracer_provider() is own
    assert opened(Collector(), tracing="off").tracing is None
    trace.set_tracer_provider(trace.NoOpTracerProvider())
    assert opened(Collector()).tracing is None


@pytest.mark.usefixtures("process")
def test_our_provider_is_the_processs_and_names_group_and_member(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment=test")
    collector = Collector()
    traces = opened(collector, tracing="on")
    trace.get_tracer_provider().get_tracer("handler").start_span("own").end()
    traces.close(10)
    [span] = collector.spans
    wanted = {"service.name": "billing", "service.instance.id": "m1", "deployment.environment": "test"}
    assert wanted.items() <= dict(span.resource.attributes).items()


@pytest.mark.usefixtures("process")
@pytest.mark.parametrize(
    ("given", "env", "description"),
    [
        ({}, {}, "ParentBased{root:AlwaysOnSampler"),
        ({}, {"OTEL_TRACES_SAMPLER": "always_on"}, "AlwaysOnSampler"),
        (
            {},
            {"OTEL_TRACES_SAMPLER": "parentbased_traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0.25"},
            "ParentBased{root:TraceIdRatioBased{0.25}",
        ),
        (
            {"trace_sample_ratio": 0.5},
            {"OTEL_TRACES_SAMPLER": "always_off"},
            "ParentBased{root:TraceIdRatioBased{0.5}",
        ),
    ],
)
def test_the_sampler_is_the_settings_or_the_environments_and_failures_are_kept_on_top(
    given: dict[str, Any], env: dict[str, str], description: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in env.items():
        monkeypatch.setenv(name, value)
    traces = opened(Collector(), tracing="on", **given)
    provider = trace.get_tracer_provider()
    assert isinstance(provider, TracerProvider)
    assert isinstance(provider.sampler, KeepFailedSampler)
    assert provider.sampler.get_description().startswith(f"KeepFailed{{{description}")
    traces.close(10)


@pytest.mark.usefixtures("process")
def test_a_second_run_exports_through_the_same_provider() -> None:
    first, second = Collector(), Collector()
    traces = opened(first, tracing="on")
    spans_of(traces, 1)
    traces.close(10)
    provider = trace.get_tracer_provider()
    again = opened(second, tracing="on")
    assert trace.get_tracer_provider() is provider
    spans_of(again, 2)
    again.close(10)
    assert (len(first.spans), len(second.spans)) == (1, 2)


@pytest.mark.usefixtures("process")
def test_two_runs_at_once_share_it_and_the_last_one_closes_it() -> None:
    collector = Collector()
    one, other = opened(collector, tracing="on"), opened(Collector(), tracing="on")
    one.close(10)
    spans_of(other, 3)
    other.close(10)
    assert len(collector.spans) == 3


@pytest.mark.usefixtures("process")
def test_an_exporter_that_cannot_be_made_traces_nothing_and_is_counted() -> None:
    failures = {"traces": 0}

    def fail(_export: TraceExport) -> SpanExporter:
        raise ValueError("a certificate that can't be read")

    assert open_traces(settings(tracing="on"), failures, make=fail).tracing is None
    assert failures == {"traces": 1}


# ------------------------------------------------------------------------- the queue, and a collector away


def provider_of(queue: SpanQueue) -> TracerProvider:
    provider = TracerProvider(sampler=ALWAYS_ON, shutdown_on_exit=False)
    provider.add_span_processor(queue)
    return provider


def test_H6_a_full_queue_drops_counts_and_never_waits() -> None:
    collector = Collector(hangs=True)
    queue = SpanQueue(limit=100)
    queue.open(collector, {"traces": 0})
    tracer = provider_of(queue).get_tracer("test")
    for _ in range(1_000):  # would hang for a minute if the queue waited
        tracer.start_span("span").end()
    assert queue.waiting == 100
    assert queue.dropped == 900
    collector.gate.set()
    queue.close()
    assert len(collector.spans) == 100
    assert queue.waiting == 0


def test_nothing_is_lost_at_a_normal_shutdown() -> None:
    collector = Collector()
    queue = SpanQueue(QUEUE)
    queue.open(collector, {"traces": 0})
    tracer = provider_of(queue).get_tracer("test")
    for _ in range(5_000):
        tracer.start_span("span").end()
    queue.close()
    assert len(collector.spans) == 5_000
    assert queue.dropped == 0


def test_spans_that_end_in_many_threads_are_all_counted() -> None:
    collector = Collector()
    queue = SpanQueue(QUEUE)
    queue.open(collector, {"traces": 0})
    tracer = provider_of(queue).get_tracer("test")

    def work() -> None:
        for _ in range(500):
            tracer.start_span("span").end()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    queue.close()
    assert len(collector.spans) == queue.exported == 2_000


def test_H6_exports_that_fail_are_counted_and_the_next_are_tried() -> None:
    collector, failures = Collector(away=True), {"traces": 0}
    queue = SpanQueue(QUEUE)
    queue.open(collector, failures)
    tracer = provider_of(queue).get_tracer("test")
    tracer.start_span("lost").end()
    queue.force_flush()
    assert failures == {"traces": 1}
    assert queue.waiting == 0
    collector.away = False
    tracer.start_span("sent").end()
    queue.close()
    assert [span.name for span in collector.spans] == ["sent"]


@pytest.mark.usefixtures("process")
def test_H6_a_shutdown_waits_no_longer_than_its_bound(caplog: pytest.LogCaptureFixture) -> None:
    collector = Collector(hangs=True)
    traces = opened(collector, tracing="on")
    spans_of(traces, 1)
    closing = threading.Thread(target=traces.close, args=(0.2,))
    closing.start()
    assert collector.entered.wait(30)  # the export hangs
    closing.join(30)
    assert not closing.is_alive()
    assert any("trace_flush_timeout" in each.getMessage() for each in caplog.records)
    collector.gate.set()


@pytest.mark.usefixtures("process")
def test_the_programs_own_provider_is_flushed_and_not_shut_down() -> None:
    collector = Collector()
    queue = SpanQueue(QUEUE)
    queue.open(collector, {"traces": 0})
    trace.set_tracer_provider(provider_of(queue))
    traces = opened(Collector())
    spans_of(traces, 3)
    traces.close(30)
    assert len(collector.spans) == 3
    spans_of(traces, 1)
    queue.close()
    assert len(collector.spans) == 4


@pytest.mark.parametrize(("given", "limit"), [("", QUEUE), ("512", 512), ("many", QUEUE), ("0", QUEUE)])
def test_the_queue_is_as_long_as_the_environment_says(given: str, limit: int) -> None:
    assert exporting.queue_limit({"OTEL_BSP_MAX_QUEUE_SIZE": given}) == limit


def test_a_queue_that_is_closed_takes_nothing_and_says_nothing() -> None:
    queue = SpanQueue(QUEUE)
    provider_of(queue).get_tracer("test").start_span("late").end()
    assert queue.waiting == 0
    assert queue.force_flush()
