"""The inputs of a plan from running members: two looks at their /metrics, and the difference between them.

Reads over HTTP, each call within a bound, and changes nothing. What a member does not tell stays unknown.
Called by ``streamloop plan --measure``.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from prometheus_client.parser import text_string_to_metric_families

from streamloop.cli.members import member_url
from streamloop.errors import StreamLoopError
from streamloop.http_get import fetch
from streamloop.telemetry import table
from streamloop.telemetry.logs import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from streamloop.telemetry.table import Metric

DEFAULT_PORT: Final = 9464
LEAST_ATTEMPTS: Final = 100
"""Attempts below which a p99 is not a figure to plan with."""

Labels = dict[str, str]


class MeasureError(StreamLoopError):
    """What members show can't be measured. A sentence that says why and what to do."""


@dataclass(frozen=True, slots=True)
class Look:
    """What one member showed. ``at``: monotonic seconds. ``samples``: by name, with labels."""

    url: str
    at: float
    samples: dict[str, list[tuple[Labels, float]]]

    def total(self, name: str, **labels: str) -> float:
        """The sum of the series that have these labels."""
        return sum(value for given, value in self.samples.get(name, ()) if labels.items() <= given.items())


@dataclass(frozen=True, slots=True)
class Measured:
    """What was measured. Times in seconds; None: not known.

    ``values``: inputs of a plan, by name. ``notes``: how they were found, a sentence each.
    """

    values: dict[str, Any]
    notes: list[str] = field(default_factory=list)


def metrics_url(text: str) -> str:
    """The URL of /metrics that ``host``, ``host:port`` or a URL means. Raises ConfigurationError."""
    return f"{member_url(text, setting='ops_address', port=DEFAULT_PORT).removesuffix('/metrics')}/metrics"


def look_at(url: str, timeout: float) -> Look:
    """One look. Raises MeasureError."""
    try:
        status, body = fetch(url, timeout=timeout, accept="text/plain;version=0.0.4")
    except ValueError as error:
        raise MeasureError(f"{url} can't be measured: {error}. Give the member's ops_address.") from None
    if status != 200:
        raise MeasureError(f"{url} answered HTTP {status}: give the ops_address of a running member.")
    at = time.monotonic()
    samples: dict[str, list[tuple[Labels, float]]] = defaultdict(list)
    try:
        for family in text_string_to_metric_families(body.decode("utf-8")):
            for sample in family.samples:
                samples[sample.name].append((dict(sample.labels), float(sample.value)))
    except (ValueError, KeyError, IndexError, TypeError):
        raise MeasureError(f"{url} answered what is no metrics text: is this the ops_address?") from None
    if table.BUILD_INFO.name not in samples:
        raise MeasureError(f"{url} is no member of streamloop: it does not show {table.BUILD_INFO.name}.")
    return Look(url, at, dict(samples))


def measure(
    urls: Sequence[str],
    over: float,
    *,
    consumer: str | None = None,
    timeout: float = 5.0,
    look: Callable[[str, float], Look] = look_at,
    sleep: Callable[[float], None] = time.sleep,
) -> Measured:
    """Look at each member twice, ``over`` seconds apart. Raises MeasureError."""
    before = [look(url, timeout) for url in urls]
    sleep(over)
    after = [look(url, timeout) for url in urls]
    return between(before, after, consumer)


def between(before: Sequence[Look], after: Sequence[Look], consumer: str | None) -> Measured:
    """What the difference between two looks at the same members says. Raises MeasureError."""
    for old, new in zip(before, after, strict=True):
        if new.total(table.ITERATIONS.name) < old.total(table.ITERATIONS.name):
            raise MeasureError(f"{new.url} was started again while it was measured: measure once more.")
    name = _consumer(after, consumer)
    group = next(iter(_label(after, table.PROCESSED, "group")), "")
    sources = {
        labels["messaging_destination_name"]
        for look in after
        for labels, _ in look.samples.get(table.CONSUMED.name, ())
        if labels.get("messaging_consumer_group_name") == group
    }
    topics = {
        labels["topic"]
        for look in after
        for labels, _ in look.samples.get(table.PROCESSED.name, ())
        if labels.get("consumer") == name and labels.get("topic") in sources
    }
    pairs = list(zip(before, after, strict=True))
    values: dict[str, Any] = {}
    notes: list[str] = []
    _handler(pairs, name, values, notes)
    partitions = _partitions(after, topics)
    if partitions:
        values["partitions"] = partitions
    _rate(pairs, name, topics, partitions, values, notes)
    _size(pairs, values, notes)
    _cpu(pairs, values, notes)
    return Measured(values, notes)


# ---------------------------------------------------------------------------------------------------- single


def _consumer(looks: Sequence[Look], wanted: str | None) -> str:
    names = sorted(_label(looks, table.CONCURRENCY, "consumer"))
    shown = ", ".join(map(printable, names)) or "none"
    if wanted is not None:
        if wanted not in names:
            raise MeasureError(
                f"No member that was measured has the consumer {wanted!r}; there are: {shown}."
            )
        return wanted
    if len(names) != 1:
        raise MeasureError(
            f"The members that were measured have {len(names)} consumers ({shown}): each has handlers and a "
            "concurrency of its own, so choose one with --consumer."
        )
    return names[0]


def _label(looks: Sequence[Look], metric: Metric, label: str) -> set[str]:
    return {
        labels[label] for look in looks for labels, _ in look.samples.get(metric.name, ()) if label in labels
    }


def _handler(pairs: Sequence[tuple[Look, Look]], name: str, values: dict[str, Any], notes: list[str]) -> None:
    buckets: dict[float, float] = defaultdict(float)
    metric = table.PROCESSING.name
    for sign, look in _signed(pairs):
        for labels, value in look.samples.get(f"{metric}_bucket", ()):
            if labels.get("consumer") == name:
                buckets[_bound(labels.get("le", ""))] += sign * value
    attempts = buckets.get(math.inf, 0.0)
    if attempts < 1:
        raise MeasureError(
            f"No handler of {name} ended while it was measured: measure while messages are handled, or for "
            "longer (--over)."
        )
    total = sum(sign * look.total(f"{metric}_sum", consumer=name) for sign, look in _signed(pairs))
    values["handler_mean"] = max(total / attempts, 1e-6)
    p99 = quantile(0.99, buckets)
    if p99 is None:
        last = max((bound for bound in buckets if math.isfinite(bound)), default=0.0)
        notes.append(
            f"More than 1 in 100 handlers took longer than {last:g} s, where the histogram ends: give "
            "--handler-p99."
        )
    else:
        values["handler_p99"] = max(p99, values["handler_mean"])
        notes.append(f"Handler time: {attempts:,.0f} attempts of {name}; p99 within its histogram's bucket.")
    if attempts < LEAST_ATTEMPTS:
        notes.append(f"{attempts:.0f} attempts are few for a p99: measure for longer (--over).")


def quantile(share: float, cumulative: Mapping[float, float]) -> float | None:
    """As Prometheus' histogram_quantile: linear within the bucket. None: it lies beyond the last bound."""
    bounds = sorted(cumulative)
    if not bounds or not math.isinf(bounds[-1]) or cumulative[bounds[-1]] <= 0:
        return None
    rank = share * cumulative[math.inf]
    lower, below = 0.0, 0.0
    for bound in bounds:
        if cumulative[bound] >= rank:
            if math.isinf(bound):
                return None
            inside = cumulative[bound] - below
            return bound if inside <= 0 else lower + (bound - lower) * (rank - below) / inside
        lower, below = bound, cumulative[bound]
    return None


def _partitions(looks: Sequence[Look], topics: set[str]) -> int:
    known: dict[str, float] = {}
    for look in looks:
        for labels, value in look.samples.get(table.TOPIC_PARTITIONS.name, ()):
            if labels.get("topic") in topics:
                known[labels["topic"]] = value
    return int(sum(known.values())) if known.keys() >= topics else 0


def _rate(
    pairs: Sequence[tuple[Look, Look]],
    name: str,
    topics: set[str],
    partitions: int,
    values: dict[str, Any],
    notes: list[str],
) -> None:
    """What came: what reached an outcome, and what the backlog grew by."""
    seconds = sum(new.at - old.at for old, new in pairs) / len(pairs)
    if seconds <= 0:
        return
    handled = grown = 0.0
    for topic in topics:
        labels = {"consumer": name, "topic": topic}
        handled += sum(sign * look.total(table.PROCESSED.name, **labels) for sign, look in _signed(pairs))
        grown += sum(sign * look.total(table.BACKLOG.name, **labels) for sign, look in _signed(pairs))
    came = max(handled + grown, 0.0) / seconds
    assigned = sum(
        look.total(table.ASSIGNED.name, consumer=name, topic=topic) for _, look in pairs for topic in topics
    )
    note = f"Rate: {handled:,.0f} messages in {seconds:.3g} s, backlog {grown:+,.0f}"
    if partitions and 0 < assigned < partitions:
        came *= partitions / assigned
        note += (
            f"; these members have {assigned:.0f} of {partitions} partitions, so the whole is taken as "
            f"{partitions / assigned:.3g} times that"
        )
    notes.append(note + ". Plan for the peak of a day: give --rate when this was not it.")
    if came > 0:
        values["rate"] = came


def _size(pairs: Sequence[tuple[Look, Look]], values: dict[str, Any], notes: list[str]) -> None:
    messages = sum(look.total(table.INFLIGHT.name) for _, look in _signed(pairs))
    if messages > 0:
        size = sum(look.total(table.INFLIGHT_BYTES.name) for _, look in _signed(pairs))
        values["message_bytes"] = max(1, math.ceil(size / messages))
    else:
        notes.append("Nothing was in flight at the two looks, so that the size of a message is not known.")


def _cpu(pairs: Sequence[tuple[Look, Look]], values: dict[str, Any], notes: list[str]) -> None:
    if not all(table.PROCESS_CPU.name in look.samples for _, look in _signed(pairs)):
        notes.append(f"A member does not show {table.PROCESS_CPU.name}: the CPU time is not known.")
        return
    seconds = sum(sign * look.total(table.PROCESS_CPU.name) for sign, look in _signed(pairs))
    attempts = sum(sign * look.total(f"{table.PROCESSING.name}_count") for sign, look in _signed(pairs))
    if attempts > 0 and seconds > 0:
        values["cpu_per_message"] = seconds / attempts
        notes.append(f"CPU: {seconds:.3g} s of the processes for {attempts:,.0f} attempts of all consumers.")


def _signed(pairs: Sequence[tuple[Look, Look]]) -> Iterator[tuple[int, Look]]:
    for old, new in pairs:
        yield -1, old
        yield 1, new


def _bound(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        return math.nan
