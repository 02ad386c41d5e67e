"""A trace from Jaeger's API as a waterfall of lines: who called whom, when, for how long, and what failed.

``fetch_trace`` asks (API v3, OTLP's JSON); the rest is pure. Waits between spans (a retry topic's delay is
minutes, a handler's span milliseconds) are drawn as a mark, so that both can be seen. Called by
``streamloop trace``.
"""

from __future__ import annotations

import base64
import binascii
import re
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from rich import box
from rich.console import Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from streamloop.cli.members import get_json, objects
from streamloop.cli.show import moment, short_class, span_time, text
from streamloop.errors import ConfigurationError, StreamLoopError
from streamloop.telemetry import attributes as names

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import RenderableType

TIMEOUT: Final = 10.0
MOST_SPANS: Final = 500
"""Drawn; what is left out is said."""
DEEPEST: Final = 32
WIDE: Final = 100
"""Columns from which on there is room for bars."""
BAR: Final = 32
"""Characters."""
WAIT: Final = 0.2
"""A pause in which no span runs, longer than this share of all running time, is drawn as a mark."""
LONGEST_ERROR: Final = 200
_KINDS: Final = {1: "internal", 2: "server", 3: "client", 4: "producer", 5: "consumer"}
_TRACE_ID: Final = re.compile("[0-9a-f]{32}")


class JaegerError(StreamLoopError):
    """Jaeger could not be asked, or answered with something else than a trace."""


@dataclass(slots=True)
class Span:
    """One span. Times in ns since the epoch. ``error``: what failed, '' when nothing did."""

    span_id: str
    parent_id: str
    trace_id: str
    service: str
    name: str
    kind: str
    start: int
    end: int
    failed: bool = False
    error: str = ""
    attributes: dict[str, Any] = field(default_factory=dict)
    links: tuple[str, ...] = ()
    """The ids of other traces that it is linked to."""


def trace_id_of(given: str) -> str:
    """A trace id as it is written: 32 hexadecimal digits. Raises ConfigurationError."""
    found = given.strip().lower().replace("-", "").removeprefix("0x")
    if 16 <= len(found) < 32:
        found = found.rjust(32, "0")  # Jaeger shows them without leading zeros
    if _TRACE_ID.fullmatch(found) is None or set(found) == {"0"}:
        raise ConfigurationError(f"{given[:80]!r} is no trace id: give its 32 hexadecimal digits.")
    return found


def fetch_trace(url: str, trace_id: str) -> list[Span]:
    """The spans of a trace, by their start; empty when Jaeger has none. Raises JaegerError."""
    asked = f"{url}/api/v3/traces/{quote(trace_id)}"
    try:
        status, answer = get_json(asked, timeout=TIMEOUT)
    except ValueError as error:
        raise JaegerError(f"Jaeger at {url} could not be asked: {error}.") from None
    if status == 404:
        return []
    if status != 200 or not isinstance(answer, dict):
        said = objects(objects(answer).get("error")).get("message", "no reason given")
        raise JaegerError(f"Jaeger at {url} refused the trace (HTTP {status}): {str(said)[:LONGEST_ERROR]}")
    if "result" not in answer:
        raise JaegerError(
            f"The answer of {url} is not that of Jaeger's API v3: give the address of its query API."
        )
    return sorted(spans_of(answer), key=lambda span: (span.start, -span.end))


def spans_of(answer: dict[str, Any]) -> Iterator[Span]:
    """The spans in an answer of the API. What is not as it should be is left out."""
    for resource in _list(objects(answer.get("result")), "resourceSpans"):
        service = str(_attributes(objects(resource.get("resource"))).get("service.name", ""))
        for scope in _list(resource, "scopeSpans"):
            for raw in _list(scope, "spans"):
                span = _span(raw, service)
                if span is not None:
                    yield span


def _span(raw: dict[str, Any], service: str) -> Span | None:
    try:
        start, end = int(raw["startTimeUnixNano"]), int(raw["endTimeUnixNano"])
    except (KeyError, TypeError, ValueError):
        return None
    span_id, trace_id = _id(raw.get("spanId"), 8), _id(raw.get("traceId"), 16)
    status = objects(raw.get("status"))
    failed = status.get("code") in (2, "STATUS_CODE_ERROR")
    error = ""
    for event in _list(raw, "events"):
        said = _attributes(event)
        if event.get("name") == "exception" or "exception.type" in said:
            kind = short_class(str(said.get("exception.type", "error")))
            error = f"{kind}: {said.get('exception.message', '')}"
    if failed and not error:
        error = str(status.get("message", "")) or "failed"
    linked = (_id(each.get("traceId"), 16) for each in _list(raw, "links"))
    return Span(
        span_id=span_id,
        parent_id=_id(raw.get("parentSpanId"), 8),
        trace_id=trace_id,
        service=service,
        name=str(raw.get("name", "")),
        kind=_kind(raw.get("kind")),
        start=start,
        end=max(start, end),
        failed=failed,
        error=error if failed else "",
        attributes=_attributes(raw),
        links=tuple(dict.fromkeys(each for each in linked if each and each != trace_id)),
    )


def _list(value: dict[str, Any], name: str) -> list[dict[str, Any]]:
    found = value.get(name)
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []


def _attributes(value: dict[str, Any]) -> dict[str, Any]:
    found = {}
    for each in _list(value, "attributes"):
        for kind, content in objects(each.get("value")).items():
            # OTLP's JSON writes 64-bit integers as texts.
            number = kind == "intValue" and str(content).lstrip("-").isdigit()
            found[str(each.get("key"))] = int(content) if number else content
    return found


def _id(value: Any, size: int) -> str:
    """An id in hexadecimal. OTLP's JSON has it so; plain protobuf JSON has base64."""
    given = value if isinstance(value, str) else ""
    if not given or len(given) == 2 * size:
        return "" if set(given) == {"0"} else given.lower()
    try:
        found = base64.b64decode(given, validate=True).hex()
    except (binascii.Error, ValueError):
        return given
    return "" if set(found) == {"0"} else found


def _kind(value: Any) -> str:
    if isinstance(value, int):
        return _KINDS.get(value, "")
    return str(value or "").removeprefix("SPAN_KIND_").lower()


# ---------------------------------------------------------------------------------------------------- drawing


class Scale:
    """Times to columns of a bar: what runs in proportion, long waits as one column each."""

    def __init__(self, spans: Sequence[Span], width: int = BAR) -> None:
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

    def bar(self, span: Span) -> Text:
        """The bar of one span."""
        first, last = self.column(span.start), self.column(span.end)
        cells = ["┊" if at in self.waits else " " for at in range(self.width)]
        for at in range(first, last + 1):
            cells[at] = "━"
        if first == last and span.end - span.start < 1_000_000:
            cells[first] = "╸"
        bar = Text()
        for at, cell in enumerate(cells):
            inside = first <= at <= last
            bar.append(cell, style=("red" if span.failed else "green") if inside else "dim")
        return bar


def _clusters(spans: Sequence[Span]) -> list[tuple[int, int]]:
    found: list[tuple[int, int]] = []
    for start, end in sorted((span.start, span.end) for span in spans):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(found[-1][1], end))
        else:
            found.append((start, end))
    return found


def waterfall(trace_id: str, spans: Sequence[Span], *, width: int = WIDE) -> RenderableType:
    """The trace. ``spans`` as ``fetch_trace`` gives them; at least one.

    ``width``: columns of the terminal; below ``WIDE`` the times come first and there are no bars.
    """
    narrow = width < WIDE
    began, ended = min(span.start for span in spans), max(span.end for span in spans)
    failed = sum(span.failed for span in spans)
    services = ", ".join(dict.fromkeys(span.service for span in spans if span.service))
    head = Text().append_text(text(f"trace {trace_id}", "bold"))
    head.append(f"   {len(spans)} spans")
    head.append_text(text(f" of {services}" if services else ""))
    head.append(f"   {span_time(ended - began)} from {moment(began // 1_000_000)}   ")
    head.append(f"{failed} failed" if failed else "none failed", style="red" if failed else "green")
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1), header_style="bold")
    times = [("start", "right"), ("took", "right")]
    if not narrow:
        table.add_column("span", overflow="fold", ratio=1)
    for name, justify in times:
        table.add_column(name, justify=justify, no_wrap=True)  # type: ignore[arg-type]
    if narrow:
        table.add_column("span", overflow="fold", ratio=1)
    else:
        table.add_column("", no_wrap=True, width=BAR)
    scale = Scale(spans)
    known = {span.span_id for span in spans}
    drawn = 0
    for depth, span in tree(spans):
        if drawn == MOST_SPANS:
            break
        drawn += 1
        orphan = bool(span.parent_id) and span.parent_id not in known
        took = [f"+{span_time(span.start - began)}", span_time(span.end - span.start)]
        label = _label(depth, span, orphan=orphan, indent=1 if narrow else 2)
        table.add_row(*took, label) if narrow else table.add_row(label, *took, scale.bar(span))
    parts: list[RenderableType] = [head, Text(), table]
    if drawn < len(spans):
        parts.append(Text(f"and {len(spans) - drawn} more spans", style="dim"))
    if scale.waits:
        pauses = [b[0] - a[1] for a, b in pairwise(_clusters(spans))]
        mark = "" if narrow else "┊ a wait; "
        parts.append(Text(f"{mark}the longest wait is {span_time(max(pauses))}", style="dim"))
    return Group(*parts)


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


def _label(depth: int, span: Span, *, orphan: bool, indent: int) -> RenderableType:
    label = Text().append_text(text(span.name, "bold red" if span.failed else "bold"))
    said = [span.service, span.kind]
    known = span.attributes
    if names.ATTEMPT in known:
        said.append(f"attempt {known[names.ATTEMPT]}")
    if names.OUTCOME in known:
        said.append(str(known[names.OUTCOME]))
    place = (known.get(names.PARTITION), known.get(names.OFFSET))
    if None not in place:
        said.append(f"at {place[0]}/{place[1]}")
    if known.get(names.KEPT) is True:
        said.append("kept because it failed")
    if orphan:
        said.append("its parent is not in Jaeger")
    label.append_text(text("  " + ", ".join(each for each in said if each), "dim"))
    if span.error:
        label.append("\n")
        label.append_text(text(span.error[:LONGEST_ERROR], "red"))
    for linked in span.links:
        label.append("\n")
        label.append_text(text(f"linked to trace {linked}", "dim"))
    return Padding(label, (0, 0, 0, indent * min(depth, DEEPEST)))  # what is wrapped is indented, too


# -------------------------------------------------------------------------------------- messages in a trace


def messages_of(spans: Sequence[Span]) -> list[tuple[str, int, int, str]]:
    """(topic, partition, offset, group) of each message that the trace shows being handled: originals."""
    found: dict[tuple[str, int, int, str], None] = {}
    for span in spans:
        known = span.attributes
        if not span.name.startswith("process ") or names.GROUP not in known:
            continue
        original = str(known.get(names.ORIGINAL, ""))
        place = f"{known.get(names.DESTINATION)}/{known.get(names.PARTITION)}/{known.get(names.OFFSET)}"
        topic, _, rest = (original or place).rpartition("/")[0].rpartition("/")
        offset = (original or place).rpartition("/")[2]
        if topic and rest.isdigit() and offset.isdigit():
            group = str(known[names.GROUP])
            # What retry topics deliver is read by a group of their own.
            found[topic, int(rest), int(offset), group.removesuffix(".retry") if original else group] = None
    return list(found)
