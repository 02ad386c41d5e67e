"""Metrics over OTLP: the same numbers as the scrape, the environment honoured, and nothing slowed by it."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry.sdk.metrics.export import MetricExportResult, MetricsData
from opentelemetry.sdk.resources import Resource

from streamloop import StreamLoop
from streamloop.settings import Settings
from streamloop.telemetry import otlp_metrics, table
from streamloop.telemetry.durations import Durations
from streamloop.telemetry.environment import MetricExport, metric_export, resource_of
from streamloop.telemetry.metrics import Histogram, Scrape, collect, histogram_of
from streamloop.telemetry.otlp_metrics import OtlpPush
from streamloop.telemetry.table import TABLE, Kind
from streamloop.testing import Harness
from tests import otlp_receiver
from tests.otlp_receiver import OtlpReceiver, metrics_of, points_of
from tests.realkafka.waiting import wait_until
from tests.running_loop import RunningLoop

if TYPE_CHECKING:
    from collections.abc import Iterator

OFTEN = MetricExport("http/protobuf", 0.05, 5.0)
NEVER = MetricExport("http/protobuf", 3_600.0, 5.0)
RESOURCE = Resource({"service.name": "billing"})


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    import os

    for name in [name for name in os.environ if name.startswith("OTEL_")]:
        monkeypatch.delenv(name)
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.delenv(name, raising=False)
    return monkeypatch


@pytest.fixture(params=[False, True], ids=["http", "grpc"])
def receiver(request: pytest.FixtureRequest, environment: pytest.MonkeyPatch) -> Iterator[OtlpReceiver]:
    with OtlpReceiver(over_grpc=request.param) as receiver:
        environment.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.endpoint)
        environment.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc" if request.param else "http/protobuf")
        yield receiver


def scrape_of_a_loop() -> Scrape:
    """What a loop shows that has handled a message, and failed at another."""

    async def handler(value: bytes) -> None:
        if value == b"bad":
            raise ValueError(value)

    loop: StreamLoop[None] = StreamLoop("billing")
    loop.consumer("orders", name="charge", permanent=[ValueError])(handler)
    with Harness(loop) as kafka:
        kafka.send("orders", b"good")
        kafka.send("orders", b"bad")
        kafka.run()
        assert loop._run is not None
        scrape = collect(loop._run)
    durations = scrape.values[table.PROCESSING]["billing", "charge"]
    assert isinstance(durations, Histogram)
    assert durations.count == 2
    return scrape


def pushed(scrape: Scrape, receiver: OtlpReceiver) -> Any:
    """Push this scrape once, and give what came."""
    export = metric_export("auto", dict(environ()))
    assert export is not None
    push = OtlpPush(export, RESOURCE, latest=lambda: scrape, failures={"metrics": 0})
    push.start()
    push.close()
    return receiver.wait(1)


def environ() -> dict[str, str]:
    import os

    return dict(os.environ)


def test_what_is_pushed_has_the_numbers_of_the_scrape(receiver: OtlpReceiver) -> None:
    scrape = scrape_of_a_loop()
    came = metrics_of(pushed(scrape, receiver))
    shown = {metric.otlp: metric for metric in TABLE if scrape.values.get(metric)}
    assert came.keys() == shown.keys()
    for name, metric in shown.items():
        assert (came[name].unit, came[name].description) == (metric.unit, metric.help)
        points = points_of(came[name])
        series = scrape.values[metric]
        assert len(points) == len(series)
        for labels, value in series.items():
            pairs = zip(metric.labels, labels, strict=True)
            point = points[tuple(sorted((label, text) for label, text in pairs if text))]
            if isinstance(value, Histogram):
                assert (point.count, point.sum) == (value.count, value.total)
                assert tuple(point.bucket_counts) == value.buckets
                assert tuple(point.explicit_bounds) == value.bounds
                assert not point.HasField("min")
            else:
                assert (point.as_double if point.HasField("as_double") else point.as_int) == value
            assert point.time_unix_nano == int(scrape.at * 1e9)
            if metric.kind is not Kind.GAUGE:
                assert point.start_time_unix_nano == int(scrape.since * 1e9)


def test_counters_are_monotonic_sums_and_all_is_cumulative(receiver: OtlpReceiver) -> None:
    came = metrics_of(pushed(scrape_of_a_loop(), receiver))
    cumulative = 2
    for metric in TABLE:
        if metric.otlp not in came:
            continue
        kind = came[metric.otlp].WhichOneof("data")
        assert kind == {"counter": "sum", "gauge": "gauge", "histogram": "histogram"}[metric.kind.value]
        if kind != "gauge":
            assert getattr(came[metric.otlp], kind).aggregation_temporality == cumulative
        if kind == "sum":
            assert came[metric.otlp].sum.is_monotonic


def test_exemplars_travel(receiver: OtlpReceiver) -> None:
    durations = Durations()
    durations.observe(0.3)
    durations.exemplar(7, "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331", 0.3, 2e9)
    scrape = Scrape(2e9, 1e9)
    scrape.put(table.PROCESSING, histogram_of(durations), "billing", "charge")
    [point] = points_of(metrics_of(pushed(scrape, receiver))["loop.processing.duration"]).values()
    [exemplar] = point.exemplars
    assert exemplar.trace_id.hex() == "0af7651916cd43dd8448eb211c80319c"
    assert exemplar.span_id.hex() == "b7ad6b7169203331"
    assert exemplar.as_double == 0.3


def test_a_loop_pushes_every_interval_and_once_more_at_its_end(environment: pytest.MonkeyPatch) -> None:
    async def handler(_value: bytes) -> None: ...

    with OtlpReceiver() as receiver:
        environment.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", receiver.endpoint)
        environment.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-tenant=team-a")
        environment.setenv("OTEL_METRIC_EXPORT_INTERVAL", "100")
        environment.setenv("OTEL_RESOURCE_ATTRIBUTES", "deployment.environment.name=test")
        with RunningLoop(handler) as running:
            receiver.wait(2)
            running.send(b"1", b"2", b"3")
            wait_until(
                lambda: running.metric("loop_processed_total", outcome="acked") == 3, 20, "the messages"
            )
            running.stop()
        last = receiver.requests[-1]
    acked = [
        point.as_int
        for labels, point in points_of(metrics_of(last)["loop.processed"]).items()
        if ("outcome", "acked") in labels and ("topic", "orders.billing.replay") not in labels
    ]
    assert acked == [3]
    resource = otlp_receiver.resource_of(last)
    assert resource["service.name"] == "billing"
    assert resource["service.instance.id"] == "member-1"
    assert resource["deployment.environment.name"] == "test"
    assert resource["telemetry.sdk.language"] == "python"
    assert receiver.headers[0]["x-tenant"] == "team-a"
    assert set(receiver.paths) == {"/v1/metrics"}


# ------------------------------------------------------------------------------------------- deltas

DELTA, CUMULATIVE = 1, 2


def at_time(at: float, processed: int, slow: int, total: float, inflight: int) -> Scrape:
    """A scrape with one counter, one gauge and one histogram; counting began at 1e9."""
    scrape = Scrape(at, 1e9)
    scrape.put(table.PROCESSED, processed, "billing", "charge", "orders", "acked")
    scrape.put(table.INFLIGHT, inflight, "billing", "source")
    durations = Durations()
    for _ in range(slow):
        durations.observe(0.3)
    durations.total = total
    durations.exemplar(6, "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331", 0.3, at - 0.5)
    scrape.put(table.PROCESSING, histogram_of(durations), "billing", "charge")
    return scrape


class Keeping:
    """An exporter that keeps what it is given; ``refuse``: and says that it could not send it."""

    def __init__(self) -> None:
        self.taken: list[Any] = []
        self.refuse = False

    def export(self, metrics_data: MetricsData, timeout_millis: float = 10_000) -> MetricExportResult:
        from opentelemetry.exporter.otlp.proto.common.metrics_encoder import encode_metrics

        self.taken.append(metrics_of(encode_metrics(metrics_data)))
        return MetricExportResult.FAILURE if self.refuse else MetricExportResult.SUCCESS


def exporting(scrapes: list[Scrape], preference: str) -> tuple[OtlpPush, Keeping]:
    """A push whose thread is not started: each _push() exports the next scrape."""
    name = "OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE"
    export = metric_export("otlp", {name: preference})
    assert export is not None
    waiting = iter(scrapes)
    push = OtlpPush(export, RESOURCE, latest=lambda: next(waiting), failures={"metrics": 0})
    return push, Keeping()


def shown(came: dict[str, Any]) -> tuple[Any, ...]:
    """What an export says: the counter, the histogram's count and sum, the gauge."""
    [counter] = points_of(came["loop.processed"]).values()
    [histogram] = points_of(came["loop.processing.duration"]).values()
    [gauge] = points_of(came["loop.inflight"]).values()
    assert sum(histogram.bucket_counts) == histogram.count
    return counter.as_int, histogram.count, histogram.sum, gauge.as_int


def test_delta_exports_what_came_since_the_last_export_that_the_collector_took() -> None:
    scrapes = [at_time(1e9 + 10, 5, 2, 0.6, 3), at_time(1e9 + 20, 8, 3, 0.9, 1)]
    scrapes += [at_time(1e9 + 30, 8, 3, 0.9, 0), at_time(1e9 + 40, 20, 3, 0.9, 7)]
    push, exporter = exporting(scrapes, "DELTA")
    push._push(exporter)
    exporter.refuse = True
    push._push(exporter)
    exporter.refuse = False
    push._push(exporter)
    push._push(exporter)
    first, refused, again, last = exporter.taken
    assert shown(first) == (5, 2, 0.6, 3)
    # What was refused is in the next one: nothing is lost.
    assert shown(refused) == (3, 1, pytest.approx(0.3), 1)
    assert shown(again) == (3, 1, pytest.approx(0.3), 0)
    assert shown(last) == (12, 0, 0.0, 7)
    for came, since in ((first, 0), (refused, 10), (again, 10), (last, 30)):
        assert came["loop.processed"].sum.aggregation_temporality == DELTA
        assert came["loop.processing.duration"].histogram.aggregation_temporality == DELTA
        [counter] = points_of(came["loop.processed"]).values()
        assert counter.start_time_unix_nano == int((1e9 + since) * 1e9)
    # An exemplar is exported once: it is of one interval.
    assert [
        len(point.exemplars)
        for came in (first, again, last)
        for point in points_of(came["loop.processing.duration"]).values()
    ] == [1, 1, 1]
    stale, exporter = exporting([scrapes[0], Scrape(1e9 + 50, 1e9, scrapes[0].values)], "delta")
    stale._push(exporter)
    stale._push(exporter)
    [point] = points_of(exporter.taken[1]["loop.processing.duration"]).values()
    assert len(point.exemplars) == 0


def test_a_series_that_is_new_counts_from_the_last_export_and_rounding_never_counts_back() -> None:
    old, new = at_time(1e9 + 10, 5, 2, 0.6, 3), at_time(1e9 + 20, 4, 2, 0.6, 3)
    new.put(table.PROCESSED, 7, "billing", "charge", "orders", "skipped")
    push, exporter = exporting([old, new], "delta")
    push._push(exporter)
    push._push(exporter)
    points = points_of(exporter.taken[1]["loop.processed"])
    by_outcome = {dict(labels)["outcome"]: point.as_int for labels, point in points.items()}
    assert by_outcome == {"acked": 0, "skipped": 7}


def test_lowmemory_has_histograms_as_deltas_and_counters_cumulative() -> None:
    push, exporter = exporting(
        [at_time(1e9 + 10, 5, 2, 0.6, 3), at_time(1e9 + 20, 8, 3, 0.9, 1)], "lowmemory"
    )
    push._push(exporter)
    push._push(exporter)
    assert shown(exporter.taken[1]) == (8, 1, pytest.approx(0.3), 1)
    assert exporter.taken[1]["loop.processed"].sum.aggregation_temporality == CUMULATIVE
    assert exporter.taken[1]["loop.processing.duration"].histogram.aggregation_temporality == DELTA


# ------------------------------------------------------------------------------------- the environment

ENDPOINT = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://collector:4318"}


@pytest.mark.parametrize(
    ("setting", "env", "on"),
    [
        ("auto", {}, False),
        ("auto", ENDPOINT, True),
        ("auto", {"OTEL_EXPORTER_OTLP_METRICS_ENDPOINT": "http://collector:4318/v1/metrics"}, True),
        ("auto", {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://collector:4318/v1/traces"}, False),
        ("auto", {"OTEL_METRICS_EXPORTER": "otlp"}, True),
        ("auto", {**ENDPOINT, "OTEL_METRICS_EXPORTER": "none"}, False),
        ("auto", {**ENDPOINT, "OTEL_METRICS_EXPORTER": "prometheus"}, False),
        ("auto", {**ENDPOINT, "OTEL_METRICS_EXPORTER": "console,otlp"}, True),
        ("auto", {**ENDPOINT, "OTEL_METRICS_EXPORTER": ""}, True),
        ("auto", {**ENDPOINT, "OTEL_SDK_DISABLED": "TRUE"}, False),
        ("none", ENDPOINT, False),
        ("otlp", {"OTEL_METRICS_EXPORTER": "none"}, True),
        ("otlp", {}, True),
    ],
)
def test_whether_metrics_are_pushed(setting: Any, env: dict[str, str], on: bool) -> None:
    assert (metric_export(setting, env) is not None) is on


@pytest.mark.parametrize(
    ("env", "expected"),
    [
        ({}, MetricExport("http/protobuf", 60.0, 30.0)),
        ({"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"}, MetricExport("grpc", 60.0, 30.0)),
        (
            {"OTEL_EXPORTER_OTLP_PROTOCOL": "grpc", "OTEL_EXPORTER_OTLP_METRICS_PROTOCOL": "http/protobuf"},
            MetricExport("http/protobuf", 60.0, 30.0),
        ),
        ({"OTEL_METRIC_EXPORT_INTERVAL": "1500"}, MetricExport("http/protobuf", 1.5, 30.0)),
        ({"OTEL_METRIC_EXPORT_TIMEOUT": "700"}, MetricExport("http/protobuf", 60.0, 0.7)),
    ],
)
def test_protocol_interval_and_timeout_are_those_of_the_environment(
    env: dict[str, str], expected: MetricExport
) -> None:
    assert metric_export("otlp", env) == expected


@pytest.mark.parametrize(
    "env",
    [
        {"OTEL_METRIC_EXPORT_INTERVAL": "often"},
        {"OTEL_METRIC_EXPORT_INTERVAL": "0"},
        {"OTEL_METRIC_EXPORT_INTERVAL": "-5"},
        {"OTEL_EXPORTER_OTLP_PROTOCOL": "http/json"},
        {"OTEL_EXPORTER_OTLP_METRICS_TEMPORALITY_PREFERENCE": "sometimes"},
    ],
)
def test_a_value_that_can_not_be_used_is_warned_about_and_counts_as_not_set(
    env: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        assert metric_export("otlp", env) == MetricExport("http/protobuf", 60.0, 30.0)
    [(name, value)] = env.items()
    assert name in caplog.text
    assert value in caplog.text


def test_the_service_is_the_group_and_the_member_unless_the_environment_names_it(
    environment: pytest.MonkeyPatch,
) -> None:
    settings = Settings.load({"group": "billing", "member": "pod-1", "brokers": "b:1"}).settings
    assert resource_of(settings).attributes["service.name"] == "billing"
    assert resource_of(settings).attributes["service.instance.id"] == "pod-1"
    environment.setenv("OTEL_SERVICE_NAME", "payments")
    environment.setenv("OTEL_RESOURCE_ATTRIBUTES", "service.name=other,service.instance.id=i-9")
    attributes = resource_of(settings).attributes
    assert (attributes["service.name"], attributes["service.instance.id"]) == ("payments", "i-9")


# ------------------------------------------------------------------------------- when the collector is away


class Stuck:
    """An exporter that does not return until it is told to."""

    def __init__(self) -> None:
        self.called = threading.Event()
        self.go_on = threading.Event()

    def export(self, metrics_data: MetricsData, timeout_millis: float = 10_000) -> MetricExportResult:
        assert metrics_data.resource_metrics
        assert timeout_millis == 5_000
        self.called.set()
        self.go_on.wait(30)
        return MetricExportResult.FAILURE


def test_H6_a_collector_that_does_not_answer_delays_the_end_by_its_bound_only(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(otlp_metrics, "FLUSH_BOUND", 0.1)
    stuck = Stuck()
    failures = {"metrics": 0}
    push = OtlpPush(OFTEN, RESOURCE, latest=scrape_of_a_loop, failures=failures, make=lambda _export: stuck)
    push.start()
    assert stuck.called.wait(20)
    with caplog.at_level(logging.WARNING):
        push.close()
    assert "were not exported within" in caplog.text
    stuck.go_on.set()
    push._thread.join(10)
    assert failures["metrics"] >= 1


def test_failed_exports_are_counted_and_said_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    third = threading.Event()
    failures = {"metrics": 0}

    class Failing:
        calls = 0

        def export(self, metrics_data: MetricsData, timeout_millis: float = 10_000) -> MetricExportResult:
            self.calls += 1
            if self.calls == 3:
                third.set()
            if self.calls == 2:
                raise OSError("no route")
            return MetricExportResult.FAILURE

    failing = Failing()
    scrape = Scrape(2e9, 1e9)
    with caplog.at_level(logging.WARNING, "streamloop"):
        push = OtlpPush(OFTEN, RESOURCE, latest=lambda: scrape, failures=failures, make=lambda _e: failing)
        push.start()
        assert third.wait(20)
        push.close()
    assert failures["metrics"] == failing.calls >= 3
    assert caplog.text.count("metrics were not exported") == 1


def test_an_exporter_that_can_not_be_made_is_told_and_harms_nothing(caplog: pytest.LogCaptureFixture) -> None:
    def broken(_export: MetricExport) -> Any:
        raise ValueError("a certificate that can't be read")

    failures = {"metrics": 0}
    push = OtlpPush(NEVER, RESOURCE, latest=lambda: None, failures=failures, make=broken)
    with caplog.at_level(logging.ERROR):
        push.start()
        push.close()
    assert failures["metrics"] == 1
    assert "a certificate that can't be read" in caplog.text


def test_H6_with_the_collector_gone_messages_are_handled_and_only_a_counter_tells(
    environment: pytest.MonkeyPatch,
) -> None:
    async def handler(_value: bytes) -> None: ...

    environment.setenv("OTEL_EXPORTER_OTLP_ENDPOINT", "http://127.0.0.1:9")
    environment.setenv("OTEL_METRIC_EXPORT_INTERVAL", "50")
    environment.setenv("OTEL_EXPORTER_OTLP_TIMEOUT", "0.2")
    with RunningLoop(handler) as running:
        running.send(b"1")
        wait_until(lambda: running.metric("loop_processed_total", outcome="acked") == 1, 20, "the message")
        wait_until(
            lambda: running.metric("loop_export_failures_total", signal="metrics") > 0, 20, "a failure"
        )
        assert running.ops("/live").status == 200
        running.stop()
        assert running.result is not None
        assert running.result.exit_code == 0
