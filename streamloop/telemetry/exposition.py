"""The two text formats of /metrics: Prometheus' 0.0.4, and OpenMetrics 1.0, which can bear exemplars.

prometheus_client writes both, from families that are made for each scrape; none of its counters is used.
Called by the ops server.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
)
from prometheus_client.exposition import generate_latest
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.samples import Exemplar as ShownExemplar

from streamloop.telemetry.metrics import Histogram
from streamloop.telemetry.table import TABLE, Kind

if TYPE_CHECKING:
    from collections.abc import Iterator

    from prometheus_client.metrics_core import Metric as Family

    from streamloop.telemetry.metrics import Labels, Scrape
    from streamloop.telemetry.table import Metric

TEXT: Final = "text/plain; version=0.0.4; charset=utf-8"
OPENMETRICS: Final = "application/openmetrics-text; version=1.0.0; charset=utf-8"


class _Families:
    """A scrape, in the form that prometheus_client's writers ask for."""

    def __init__(self, scrape: Scrape, *, exemplars: bool) -> None:
        self._scrape = scrape
        self._exemplars = exemplars

    def collect(self) -> Iterator[Family]:
        """The families, in the table's order."""
        for metric in TABLE:
            series = self._scrape.values.get(metric)
            if series:
                yield self._family(metric, series)

    def _family(self, metric: Metric, series: dict[Labels, float | Histogram]) -> Family:
        names = metric.label_names
        if metric.kind is Kind.HISTOGRAM:
            histogram = HistogramMetricFamily(metric.name, metric.help, labels=names)
            for labels, value in series.items():
                assert isinstance(value, Histogram)
                histogram.add_metric(labels, self._buckets(value), value.total)
            return histogram
        kind = CounterMetricFamily if metric.kind is Kind.COUNTER else GaugeMetricFamily
        family = kind(metric.name, metric.help, labels=names)
        for labels, value in series.items():
            assert not isinstance(value, Histogram)
            family.add_metric(labels, value)
        return family

    def _buckets(self, histogram: Histogram) -> list[tuple[str, float, ShownExemplar]]:
        buckets: list[tuple[str, float, Any]] = []  # None stands for no exemplar
        total = 0
        for at, count in enumerate(histogram.buckets):
            total += count
            bound = _bound(histogram.bounds[at]) if at < len(histogram.bounds) else "+Inf"
            exemplar = histogram.exemplars.get(at) if self._exemplars else None
            shown = None
            if exemplar is not None:
                ids = {"trace_id": exemplar.trace_id, "span_id": exemplar.span_id}
                shown = ShownExemplar(ids, exemplar.value, exemplar.wall)
            buckets.append((bound, total, shown))
        return buckets


def render(scrape: Scrape, accept: str) -> tuple[bytes, str]:
    """The body and its content type, for this Accept header."""
    if wants_openmetrics(accept):
        return generate_openmetrics(_Families(scrape, exemplars=True)), OPENMETRICS  # type: ignore[no-untyped-call]
    return generate_latest(_Families(scrape, exemplars=False)), TEXT


def _bound(bound: float) -> str:
    # As both formats write it: 1.0, never 1.
    return repr(float(bound))


def wants_openmetrics(accept: str) -> bool:
    """Whether OpenMetrics 1.x is asked for, and not less than plain text."""
    best = {"openmetrics": 0.0, "text": 0.0}
    for part in accept.lower().split(","):
        media, *parameters = (each.strip() for each in part.split(";"))
        given = dict(parameter.split("=", 1) for parameter in parameters if "=" in parameter)
        try:
            quality = float(given.get("q", "1"))
        except ValueError:
            quality = 0.0
        if media == "application/openmetrics-text" and given.get("version", "1.0.0").startswith("1."):
            best["openmetrics"] = max(best["openmetrics"], quality)
        elif media in ("text/plain", "text/*", "*/*"):
            best["text"] = max(best["text"], quality)
    return best["openmetrics"] > 0 and best["openmetrics"] >= best["text"]
