"""Pushes the metrics of the table over OTLP, from the same counters that /metrics shows.

The SDK's own reader can't do it: its interface has no observable histogram. So a thread builds the metric
data of the last scrape, histograms included, and hands it to the SDK's OTLP exporter. It must never wait for
the event loop, nor keep a shutdown longer than its flush bound; when the collector is away, a counter says
so and nothing else changes. Where the environment asks for deltas, an export has what came since the last one
that succeeded. Started and stopped by the run.
"""

from __future__ import annotations

import logging
import threading
import time
from typing import TYPE_CHECKING, Any, Final, Protocol

from opentelemetry.sdk.metrics.export import (
    AggregationTemporality,
    Gauge,
    HistogramDataPoint,
    MetricExportResult,
    MetricsData,
    NumberDataPoint,
    ResourceMetrics,
    ScopeMetrics,
    Sum,
)
from opentelemetry.sdk.metrics.export import Histogram as HistogramData
from opentelemetry.sdk.metrics.export import Metric as MetricData
from opentelemetry.sdk.util.instrumentation import InstrumentationScope

try:
    from opentelemetry.sdk.metrics import Exemplar as ExemplarData
except ImportError:  # before the SDK showed it here
    from opentelemetry.sdk.metrics._internal.exemplar import Exemplar as ExemplarData

from streamloop.telemetry.metrics import Histogram
from streamloop.telemetry.table import TABLE, Kind
from streamloop.version import __version__

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from opentelemetry.sdk.resources import Resource

    from streamloop.telemetry.durations import Exemplar
    from streamloop.telemetry.environment import MetricExport, Temporality
    from streamloop.telemetry.metrics import Labels, Scrape, Value
    from streamloop.telemetry.table import Metric

log = logging.getLogger("streamloop.telemetry")

FLUSH_BOUND: Final = 2.0
"""Seconds that a shutdown waits for the last export."""
SAY_AGAIN: Final = 60.0
"""Seconds after which exports that fail are logged again."""

_SCOPE: Final = InstrumentationScope("streamloop", __version__)
_CUMULATIVE: Final = AggregationTemporality.CUMULATIVE
_DELTA: Final = AggregationTemporality.DELTA
_DELTAS: Final[dict[Temporality, frozenset[Kind]]] = {
    "cumulative": frozenset(),
    "delta": frozenset({Kind.COUNTER, Kind.HISTOGRAM}),
    "lowmemory": frozenset({Kind.HISTOGRAM}),
}
"""What is exported as a difference. A gauge never is."""


class Exporter(Protocol):
    """The SDK's OTLP exporter, as it is used here."""

    def export(self, metrics_data: MetricsData, timeout_millis: float = 10_000) -> MetricExportResult:
        """Send; retries within its own time-out."""


def make_exporter(export: MetricExport) -> Exporter:
    """The SDK's exporter of this protocol; it reads endpoint, headers and certificates of the environment."""
    made: Any
    if export.protocol == "grpc":
        from opentelemetry.exporter.otlp.proto.grpc.metric_exporter import OTLPMetricExporter as Grpc

        made = Grpc()
    else:
        from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter as Http

        made = Http()
    exporter: Exporter = made
    return exporter


class OtlpPush:
    """The exporter thread. ``latest`` gives the newest scrape (None: none yet) and never waits.

    ``failures`` counts exports that failed, under 'metrics'.
    """

    def __init__(
        self,
        export: MetricExport,
        resource: Resource,
        *,
        latest: Callable[[], Scrape | None],
        failures: dict[str, int],
        make: Callable[[MetricExport], Exporter] = make_exporter,
    ) -> None:
        self._export = export
        self._resource = resource
        self._latest = latest
        self._failures = failures
        self._make = make
        self._deltas = _DELTAS[export.temporality]
        self._exported: Scrape | None = None
        """The last one that the collector took."""
        self._stop = threading.Event()
        self._said = -SAY_AGAIN
        self._thread = threading.Thread(target=self._run, name="streamloop-otlp", daemon=True)

    def start(self) -> None:
        """Begin to push, every interval."""
        self._thread.start()

    def close(self) -> None:
        """Push once more, and wait for it no longer than the flush bound."""
        self._stop.set()
        if self._thread.is_alive():
            self._thread.join(FLUSH_BOUND)
            if self._thread.is_alive():
                log.warning(
                    "the last metrics were not exported within %g s", FLUSH_BOUND, extra={"kind": "telemetry"}
                )

    def _run(self) -> None:
        try:
            exporter = self._make(self._export)
        except Exception:
            self._failures["metrics"] += 1
            log.exception("metrics can't be pushed over OTLP", extra={"kind": "telemetry"})
            return
        while not self._stop.wait(self._export.interval):
            self._push(exporter)
        self._push(exporter)

    def _push(self, exporter: Exporter) -> None:
        scrape = self._latest()
        if scrape is None:
            return
        problem = ""
        try:
            data = metrics_data(scrape, self._resource, self._deltas, self._exported)
            if exporter.export(data, self._export.timeout * 1000) is MetricExportResult.SUCCESS:
                self._exported = scrape
            else:
                problem = "the exporter could not send them"
        except Exception as error:  # noqa: BLE001 - whatever it is, the next interval tries again
            problem = f"{type(error).__name__}: {error}"
        if problem:
            self._failures["metrics"] += 1
            now = time.monotonic()
            if now - self._said >= SAY_AGAIN:
                self._said = now
                log.warning(
                    "metrics were not exported (%s); handling goes on, and it is tried again every %g s",
                    problem,
                    self._export.interval,
                    extra={"kind": "telemetry"},
                )


def metrics_data(
    scrape: Scrape,
    resource: Resource,
    deltas: frozenset[Kind] = frozenset(),
    before: Scrape | None = None,
) -> MetricsData:
    """A scrape in the SDK's form, cumulative since the run began.

    Kinds in ``deltas``: the difference to ``before`` (None: to the beginning of the run).
    """
    metrics = [
        _metric(metric, series, scrape, metric.kind in deltas, before)
        for metric in TABLE
        if (series := scrape.values.get(metric))
    ]
    return MetricsData([ResourceMetrics(resource, [ScopeMetrics(_SCOPE, metrics, "")], "")])


def _metric(
    metric: Metric, series: Mapping[Labels, Value], scrape: Scrape, delta: bool, before: Scrape | None
) -> MetricData:
    temporality = _DELTA if delta else _CUMULATIVE
    since, at = int(scrape.since * 1e9), int(scrape.at * 1e9)
    if delta and before is not None:
        since = int(before.at * 1e9)
        earlier = before.values.get(metric, {})
        series = {labels: _since(value, earlier.get(labels), before.at) for labels, value in series.items()}
    data: HistogramData | Sum | Gauge
    if metric.kind is Kind.HISTOGRAM:
        points = []
        for labels, value in series.items():
            assert isinstance(value, Histogram)
            points.append(_histogram(metric, labels, value, since, at))
        data = HistogramData(points, temporality)
    else:
        numbers = []
        for labels, value in series.items():
            assert not isinstance(value, Histogram)
            begin = since if metric.kind is Kind.COUNTER else 0
            numbers.append(NumberDataPoint(_attributes(metric, labels), begin, at, value))
        data = Sum(numbers, temporality, True) if metric.kind is Kind.COUNTER else Gauge(numbers)
    return MetricData(metric.otlp, metric.help, metric.unit, data)


def _since(value: Value, earlier: Value | None, at: float) -> Value:
    """What was added since ``earlier``, which was taken ``at`` (epoch seconds); None: the series is new.

    A run's counters only grow; sums of seconds are rounded, and may fall by that.
    """
    if isinstance(value, Histogram):
        exemplars = {bucket: each for bucket, each in value.exemplars.items() if each.wall > at}
        if not isinstance(earlier, Histogram):
            return Histogram(value.bounds, value.buckets, value.total, exemplars)
        buckets = tuple(now - then for now, then in zip(value.buckets, earlier.buckets, strict=True))
        return Histogram(value.bounds, buckets, value.total - earlier.total, exemplars)
    assert not isinstance(earlier, Histogram)
    return max(0, value - (earlier or 0))


def _histogram(metric: Metric, labels: Labels, value: Histogram, since: int, at: int) -> HistogramDataPoint:
    nothing: Any = None  # the smallest and the largest are not kept; OTLP has them as optional
    return HistogramDataPoint(
        _attributes(metric, labels),
        since,
        at,
        value.count,
        value.total,
        value.buckets,
        value.bounds,
        nothing,
        nothing,
        [_exemplar(each) for each in value.exemplars.values()],
    )


def _exemplar(exemplar: Exemplar) -> ExemplarData:
    return ExemplarData(
        {}, exemplar.value, int(exemplar.wall * 1e9), int(exemplar.span_id, 16), int(exemplar.trace_id, 16)
    )


def _attributes(metric: Metric, labels: Labels) -> dict[str, str]:
    return {name: label for name, label in zip(metric.labels, labels, strict=True) if label}
