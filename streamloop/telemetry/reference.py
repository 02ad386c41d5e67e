"""The tables of docs/metrics.md, made from the table of metrics, so that they say what the code does.

Writes that page and nothing else. Called as ``python -m streamloop.telemetry.reference docs/metrics.md``; a
test fails while the page is older than the table.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Final

from streamloop.settings.generated import write_between
from streamloop.telemetry.table import TABLE, Kind, Metric

_BEGIN: Final = "<!-- made from the table by: python -m streamloop.telemetry.reference docs/metrics.md -->"


def reference() -> str:
    """All metrics, in Markdown."""
    lines = ["| metric | kind, unit | labels | what it says | when it moves |", "|---|---|---|---|---|"]
    lines += [_row(metric) for metric in TABLE]
    lines += ["", "| over OTLP | unit | becomes |", "|---|---|---|"]
    lines += [f"| `{metric.otlp}` | `{metric.unit or '-'}` | `{metric.name}` |" for metric in TABLE]
    return "\n".join(lines)


def _row(metric: Metric) -> str:
    unit = {"s": "seconds", "By": "bytes", "": ""}.get(metric.unit, metric.unit.strip("{}") + "s")
    kind = f"{metric.kind.value}, {unit}" if unit else metric.kind.value
    labels = ", ".join(f"`{label}`" for label in metric.label_names)
    if metric.kind is Kind.HISTOGRAM:
        labels += ", `le`"
    return f"| `{metric.name}` | {kind} | {labels} | {_cell(metric.help)} | {_cell(metric.when_it_moves)} |"


def _cell(text: str) -> str:
    return text.replace("|", "\\|")


def write_reference(page: Path) -> bool:
    """Put the tables into ``page`` between its two marks. Whether that changed it."""
    return write_between(page, _BEGIN, reference())


if __name__ == "__main__":
    write_reference(Path(sys.argv[1]))
