"""Histograms of plain integers: counted on the hot path, read when scraped.

An instrument of a metrics library costs 12 us a record; this costs well under one. Standard library only;
called by whatever measures something, and by the collection of metrics.
"""

from __future__ import annotations

from bisect import bisect_left
from typing import Final, NamedTuple

DURATION_BOUNDS: Final = (0.005, 0.01, 0.025, 0.05, 0.075, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
"""Seconds: the bucket boundaries of the OpenTelemetry messaging conventions."""

STEP_BOUNDS: Final = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0)
"""Seconds: for turns of the event loop, of which most take far less than a handler."""


class Exemplar(NamedTuple):
    """One observation that a trace shows: hexadecimal ids, the value in seconds, epoch seconds."""

    trace_id: str
    span_id: str
    value: float
    wall: float


class Durations:
    """A histogram of seconds. ``bounds``: upper bounds of the buckets, ascending; one more has the rest."""

    __slots__ = ("_first", "bounds", "buckets", "exemplars", "total")

    def __init__(self, bounds: tuple[float, ...] = DURATION_BOUNDS) -> None:
        self.bounds = bounds
        self._first = bounds[0]
        self.buckets = [0] * (len(bounds) + 1)
        self.total = 0.0
        self.exemplars: dict[int, Exemplar] = {}
        """The newest of each bucket, where there was one."""

    def observe(self, seconds: float) -> None:
        """Count one duration."""
        # Nearly all of what is fast enough for this to matter is in the first one.
        self.buckets[0 if seconds <= self._first else bisect_left(self.bounds, seconds)] += 1
        self.total += seconds

    def bucket_of(self, seconds: float) -> int:
        """The bucket that this duration is counted in."""
        return bisect_left(self.bounds, seconds)

    def exemplar(self, bucket: int, trace_id: str, span_id: str, value: float, wall: float) -> None:
        """Remember a traced observation of this bucket; the newest stays."""
        self.exemplars[bucket] = Exemplar(trace_id, span_id, value, wall)

    @property
    def count(self) -> int:
        """How many were observed."""
        return sum(self.buckets)
