"""The metrics that rules and dashboards may name, and how names are found in PromQL.

What calls it: test_rules.py and test_dashboards.py.
"""

import re
from pathlib import Path
from typing import Any

import yaml

from streamloop.telemetry.table import TABLE, Kind

ROOT = Path(__file__).resolve().parents[2]
RULES = ROOT / "stack" / "prometheus" / "rules.yml"

COUNTERS_AND_GAUGES = frozenset(metric.name for metric in TABLE if metric.kind is not Kind.HISTOGRAM)
HISTOGRAMS = frozenset(metric.name for metric in TABLE if metric.kind is Kind.HISTOGRAM)
METRICS = COUNTERS_AND_GAUGES | {
    f"{name}_{suffix}" for name in HISTOGRAMS for suffix in ("bucket", "sum", "count")
}
"""Series that members export."""

OTHERS = frozenset({"up"})
"""Prometheus' own."""

RECORDED = re.compile(r"[a-z_]+:[a-z0-9_:]+")
"""How recorded series are named."""


def documents() -> list[dict[str, Any]]:
    """All rules, recordings and alerts."""
    groups = yaml.safe_load(RULES.read_text(encoding="utf-8"))["groups"]
    return [rule for group in groups for rule in group["rules"]]


def alerts() -> dict[str, dict[str, Any]]:
    """The alerts by name."""
    return {rule["alert"]: rule for rule in documents() if "alert" in rule}


def recordings() -> set[str]:
    """The names of the recorded series."""
    return {rule["record"] for rule in documents() if "record" in rule}


def named(expression: str) -> set[str]:
    """The metrics that an expression of these files names; strings, labels and durations left out."""
    text = re.sub(r'"[^"]*"', "", expression)
    text = re.sub(r"\{[^}]*\}", "", text)
    text = re.sub(r"\[[^\]]*\]", "", text)
    text = re.sub(r"\b(by|without|on|ignoring|group_left|group_right)\s*\([^)]*\)", " ", text)
    words = re.findall(r"(?<![\w:])[a-zA-Z_:][\w:]*(?![\w:]|\s*\()", text)
    return {word for word in words if word not in {"and", "or", "unless", "bool", "offset"}}
