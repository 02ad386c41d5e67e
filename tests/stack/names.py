"""The metrics that rules and dashboards may name, and how names are found in PromQL.

What calls it: test_rules.py and test_dashboards.py.
"""

import re
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
RULES = ROOT / "stack" / "prometheus" / "rules.yml"

COUNTERS_AND_GAUGES = frozenset(
    [
        "loop_processed_total",
        "loop_failed_total",
        "loop_retried_total",
        "loop_dead_letter_total",
        "loop_errors_total",
        "loop_redelivered_total",
        "loop_cancel_ignored_total",
        "loop_running_handlers",
        "loop_concurrency",
        "loop_breaker_state",
        "loop_backlog",
        "loop_inflight",
        "loop_inflight_bytes",
        "loop_high_watermark_messages",
        "loop_high_watermark_bytes",
        "loop_lag_messages",
        "loop_lag_seconds",
        "loop_commit_gap",
        "loop_held_partitions",
        "loop_held_seconds",
        "loop_held_partition_seconds_total",
        "loop_assigned_partitions",
        "loop_topic_partitions",
        "loop_rebalances_total",
        "loop_commits_total",
        "loop_last_commit_timestamp_seconds",
        "loop_iterations_total",
        "loop_heartbeat_age_seconds",
        "loop_publish_failures_total",
        "loop_publishes_outstanding",
        "loop_drain_timeouts_total",
        "loop_export_failures_total",
        "loop_build_info",
        "messaging_client_consumed_messages_total",
        "messaging_client_sent_messages_total",
    ]
)
HISTOGRAMS = frozenset(
    [
        "loop_processing_duration_seconds",
        "loop_iteration_duration_seconds",
        "messaging_process_duration_seconds",
        "messaging_client_operation_duration_seconds",
    ]
)
METRICS = COUNTERS_AND_GAUGES | {
    f"{name}_{suffix}" for name in HISTOGRAMS for suffix in ("bucket", "sum", "count")
}
"""Series that members export."""

NOT_EXPORTED_YET = frozenset({"loop_dead_letters_open"})
"""Known from the ledger of replays; a rule without a series never fires."""

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
