"""Lays a trace out as a waterfall: the order and depth of its spans, and times as columns. Pure.

Waits between spans (a retry topic's delay is minutes, a handler's span milliseconds) take one column each, so
that both can be seen. Drawn by ``cli/waterfall.py`` for a terminal and by the console for its page.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from streamloop.telemetry.jaeger import Span

WAIT: Final = 0.2
"""A pause in which no span runs, longer than this share of all running time, is drawn as a mark."""


class Scale:
    """Times to columns of a bar: what runs in proportion, long waits as one column each."""

    def __init__(self, spans: Sequence[Span], width: int) -> None:
        clusters = _clusters(spans)
        running = sum(end - start for start, end in clusters)
        merged = [clusters[0]]
        for start, end in clusters[1:]:
            if start - merged[-1][1] > running * WAIT:
                merged.append((start, end))
            else:
                merged[-1] = (merged[-1][0], end)
        if 2 * len(merged) > width:  # more waits than columns: in proportion, after all
            merged = [(merged[0][0], merged[-1][1])]
        free = width - (len(merged) - 1)
        total = sum(end - start for start, end in merged) or 1
        room = free - len(merged)  # each has a column at least
        self._parts: list[tuple[int, int, int, int]] = []
        at, used = 0, 0.0
        for index, (start, end) in enumerate(merged):
            used += room * (end - start) / total
            last = free + len(merged) - 1 if index == len(merged) - 1 else round(used) + 2 * index + 1
            self._parts.append((start, end, at, max(at + 1, min(last, width))))
            at = self._parts[-1][3] + 1
        self.width = width
        self.waits = [end for _, _, _, end in self._parts[:-1]]
        """Columns that stand for a wait."""

    def column(self, moment_ns: int) -> int:
        """Where that time is."""
        for start, end, first, last in self._parts:
            if moment_ns <= end:
                if moment_ns <= start or end == start:
                    return first
                return min(last - 1, first + int((last - first) * (moment_ns - start) / (end - start)))
        return self._parts[-1][3] - 1


def _clusters(spans: Sequence[Span]) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for start, end in sorted((span.start, span.end) for span in spans):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((start, end))
    return found


def longest_wait(spans: Sequence[Span]) -> int:
    """The longest pause in which no span runs, in ns."""
    return max((after[0] - before[1] for before, after in pairwise(_clusters(spans))), default=0)


def tree(spans: Sequence[Span]) -> Iterator[tuple[int, Span]]:
    """Each span once, with its depth: children after their parent, by start. Ids in a circle end it not."""
    known = {span.span_id for span in spans}
    children: dict[str, list[Span]] = {}
    for span in spans:
        parent = span.parent_id if span.parent_id in known and span.parent_id != span.span_id else ""
        children.setdefault(parent, []).append(span)
    seen: set[int] = set()
    waiting = [(0, span) for span in reversed(children.get("", []))]
    rest = iter(spans)
    while True:
        while waiting:
            depth, span = waiting.pop()
            if id(span) in seen:
                continue
            seen.add(id(span))
            yield depth, span
            if span.span_id:
                waiting += [(depth + 1, each) for each in reversed(children.get(span.span_id, []))]
        left = next((span for span in rest if id(span) not in seen), None)
        if left is None:
            return
        waiting.append((0, left))
