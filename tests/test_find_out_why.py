"""What the page 'find out why' names exists: metrics, alerts, kinds of log lines, states, reasons."""

from __future__ import annotations

import re
from pathlib import Path

import yaml

from streamloop.engine.events import Reason
from streamloop.engine.states import State
from tests.stack.names import METRICS

ROOT = Path(__file__).resolve().parents[1]
PAGE = (ROOT / "docs" / "find-out-why.md").read_text("utf-8")
SOURCE = "\n".join(path.read_text("utf-8") for path in (ROOT / "streamloop").rglob("*.py"))


def test_every_metric_is_one_that_members_export() -> None:
    named = set(re.findall(r"\bloop_[a-z_]+", PAGE))
    assert len(named) > 15
    assert named - METRICS == set()


def test_every_alert_is_a_rule() -> None:
    rules = yaml.safe_load((ROOT / "stack" / "prometheus" / "rules.yml").read_text("utf-8"))
    alerts = {rule["alert"] for group in rules["groups"] for rule in group["rules"] if "alert" in rule}
    assert set(re.findall(r"\bStreamloop[A-Za-z]+", PAGE)) == alerts


def test_every_kind_of_log_line_is_logged() -> None:
    named = set(re.findall(r'`kind` (?:==? )?"?`?([a-z_]+)`', PAGE))
    assert len(named) > 8
    for kind in named:
        assert re.search(rf'"{kind}"', SOURCE), kind


def test_states_and_reasons_are_those_of_the_engine() -> None:
    states = re.findall(r"^\| ((?:`[a-z_]+`(?:, )?)+) \| (?:a free|its|the broker's)", PAGE, re.MULTILINE)
    named = {each for row in states for each in re.findall("`([a-z_]+)`", row)}
    assert named == {"fetched", "processing", "backoff", "routing_retry", "routing_dead"}
    assert named <= {state.name.lower() for state in State}
    reasons = {reason.value for reason in Reason}
    assert {"retry_not_due", "watermark", "publish_blocked", "breaker", "gap"} <= reasons


def test_links_lead_somewhere() -> None:
    for page in ("find-out-why.md", "top.md"):
        text = (ROOT / "docs" / page).read_text("utf-8")
        for target in re.findall(r"\]\(([^)#]+)(?:#[^)]*)?\)", text):
            assert (ROOT / "docs" / target).is_file(), target
        headings = {
            re.sub(r"[^a-z0-9 -]", "", line.lstrip("# ").lower()).replace(" ", "-")
            for line in text.split("\n")
            if line.startswith("#")
        }
        assert set(re.findall(r"\]\(#([^)]+)\)", text)) <= headings
