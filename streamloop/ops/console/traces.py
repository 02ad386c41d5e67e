"""A trace for the page: asked of Jaeger's API by this member, so that the page needs nothing but us.

The id is 32 checked hexadecimal digits and the address is a setting: nobody chooses what is called. Called by
the console's API.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from streamloop.errors import ConfigurationError
from streamloop.ops.console.shown import shown_text
from streamloop.ops.web import RefusedError
from streamloop.telemetry import attributes as names
from streamloop.telemetry.jaeger import JaegerError, fetch_trace, trace_id_of
from streamloop.telemetry.waterfall import Scale, longest_wait, tree

if TYPE_CHECKING:
    from collections.abc import Sequence

    from streamloop.telemetry.jaeger import Span

MOST_SPANS: Final = 300
COLUMNS: Final = 1_000
"""The waterfall's width in parts; the page scales it."""


def trace_of(url: str, given: str) -> dict[str, Any]:
    """The trace as rows with their bars. RefusedError when there is none, or Jaeger can't be asked."""
    try:
        trace_id = trace_id_of(given)
        spans = fetch_trace(url, trace_id)
    except ConfigurationError as error:
        raise RefusedError(400, str(error)) from None
    except JaegerError as error:
        raise RefusedError(502, shown_text(str(error))) from None
    if not spans:
        raise RefusedError(
            404,
            f"Jaeger has no trace {trace_id}: it was not sampled, is older than what Jaeger keeps, or its "
            "spans are still on their way (some seconds)",
        )
    return trace_view(trace_id, spans)


def trace_view(trace_id: str, spans: Sequence[Span]) -> dict[str, Any]:
    """The rows of a trace that has one span at least."""
    began = min(span.start for span in spans)
    scale = Scale(spans, COLUMNS)
    known = {span.span_id for span in spans}
    rows: list[dict[str, Any]] = []
    for depth, span in tree(spans):
        if len(rows) == MOST_SPANS:
            break
        first, last = scale.column(span.start), scale.column(span.end)
        attributes = span.attributes
        place = (
            attributes.get(names.DESTINATION),
            attributes.get(names.PARTITION),
            attributes.get(names.OFFSET),
        )
        attempt, outcome = attributes.get(names.ATTEMPT), attributes.get(names.OUTCOME)
        rows.append(
            {
                "depth": min(depth, 16),
                "name": shown_text(span.name, 200),
                "service": shown_text(span.service, 100),
                "kind": span.kind,
                "start": (span.start - began) / 1e9,
                "took": (span.end - span.start) / 1e9,
                "failed": span.failed,
                "error": shown_text(span.error, 300),
                "attempt": attempt if isinstance(attempt, int) else None,
                "outcome": shown_text(str(outcome), 60) if outcome else "",
                "place": "/".join(shown_text(str(each), 250) for each in place) if None not in place else "",
                "orphan": bool(span.parent_id) and span.parent_id not in known,
                "from": first / COLUMNS,
                "to": (last + 1) / COLUMNS,
            }
        )
    return {
        "trace_id": trace_id,
        "began": began / 1e9,
        "took": (max(span.end for span in spans) - began) / 1e9,
        "spans": len(spans),
        "failed": sum(span.failed for span in spans),
        "services": [shown_text(s, 100) for s in dict.fromkeys(s.service for s in spans if s.service)][:20],
        "waits": [column / COLUMNS for column in scale.waits],
        "longest_wait": longest_wait(spans) / 1e9 if scale.waits else None,
        "rows": rows,
    }
