"""Draws a trace as a waterfall of lines in a terminal: who called whom, when, for how long, and what failed.

``telemetry/jaeger.py`` asks for the trace, ``telemetry/waterfall.py`` lays it out; this only draws. Called by
``streamloop trace``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from rich import box
from rich.console import Group
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from streamloop.cli.show import moment, span_time, text
from streamloop.telemetry import attributes as names
from streamloop.telemetry.jaeger import LONGEST_ERROR
from streamloop.telemetry.waterfall import Scale, longest_wait, tree

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

    from streamloop.telemetry.jaeger import Span

MOST_SPANS: Final = 500
"""Drawn; what is left out is said."""
DEEPEST: Final = 32
WIDE: Final = 100
"""Columns from which on there is room for bars."""
BAR: Final = 32
"""Characters."""


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
    scale = Scale(spans, BAR)
    known = {span.span_id for span in spans}
    drawn = 0
    for depth, span in tree(spans):
        if drawn == MOST_SPANS:
            break
        drawn += 1
        orphan = bool(span.parent_id) and span.parent_id not in known
        took = [f"+{span_time(span.start - began)}", span_time(span.end - span.start)]
        label = _label(depth, span, orphan=orphan, indent=1 if narrow else 2)
        table.add_row(*took, label) if narrow else table.add_row(label, *took, bar(scale, span))
    parts: list[RenderableType] = [head, Text(), table]
    if drawn < len(spans):
        parts.append(Text(f"and {len(spans) - drawn} more spans", style="dim"))
    if scale.waits:
        mark = "" if narrow else "┊ a wait; "
        parts.append(Text(f"{mark}the longest wait is {span_time(longest_wait(spans))}", style="dim"))
    return Group(*parts)


def bar(scale: Scale, span: Span) -> Text:
    """The bar of one span."""
    first, last = scale.column(span.start), scale.column(span.end)
    cells = ["┊" if at in scale.waits else " " for at in range(scale.width)]
    for at in range(first, last + 1):
        cells[at] = "━"
    if first == last and span.end - span.start < 1_000_000:
        cells[first] = "╸"
    drawn = Text()
    for at, cell in enumerate(cells):
        inside = first <= at <= last
        drawn.append(cell, style=("red" if span.failed else "green") if inside else "dim")
    return drawn


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
