"""From the page's words to the library's, and back; traces that can't be had."""

from __future__ import annotations

from collections import Counter
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from streamloop.dlq.plan import Preview
from streamloop.dlq.targets import Skip, Target
from streamloop.errors import ConfigurationError
from streamloop.ops.console.letters import _preview, desk_of, plan_of
from streamloop.ops.console.traces import trace_of, trace_view
from streamloop.ops.web import RefusedError
from streamloop.telemetry.jaeger import Span

if TYPE_CHECKING:
    from tests.console.conftest import Browser


def test_a_plan_of_the_page_is_the_librarys() -> None:
    given = {"target": "source", "topic": None, "rate": 2.5, "limit": 7, "canary": 0, "again": True}
    plan = plan_of(given)
    assert (plan.target, plan.rate, plan.limit, plan.canary) == (Target.SOURCE, 2.5, 7, 0)
    assert (plan.again, plan.takeover) == (True, False)
    assert plan_of({}).target is Target.REPLAY
    assert plan_of({"canary": None}).canary == 10
    assert plan_of({"target": "topic", "topic": "elsewhere"}).to_topic == "elsewhere"


@pytest.mark.parametrize(
    "given",
    [
        {"strange": 1},
        {"target": "nowhere"},
        {"target": "topic"},
        {"topic": "elsewhere"},
        {"target": "topic", "topic": 7},
        {"rate": "fast"},
        {"rate": True},
        {"rate": 0},
        {"limit": 1.5},
        {"limit": 0},
        {"again": "yes"},
        {"takeover": 1.5},
    ],
)
def test_a_plan_that_is_none_is_refused_with_a_sentence(given: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError, match=r"\w+ \w+"):
        plan_of(given)


def test_a_preview_says_what_goes_why_others_do_not_and_who_else_reads_there() -> None:
    found = Preview("all dead letters", "the replay topic")
    found.matched, found.would_go, found.expired, found.hidden = 9, 5, 1, 2
    found.targets = Counter({"orders.billing.replay": 5})
    found.skipped = Counter({Skip.REPLAYED.value: 3, Skip.NO_ORIGINAL.value: 1})
    found.readers = {"orders": ["audit\u202e", "billing"]}
    found.busy = "Grace on billing-1"
    shown = _preview(found)
    assert (shown["would"], shown["target"]) == (5, "the topic orders.billing.replay")
    assert shown["counts"]["no original known: choose another topic"] == 1
    assert shown["counts"]["replayed before"] == 3
    notes = "\n".join(shown["notes"])
    assert "Grace on billing-1" in notes
    assert "audit\\u202e, billing" in notes
    assert "2 offsets are held back" in notes


def test_a_loop_without_dead_letters_has_no_desk() -> None:
    build = SimpleNamespace(settings=SimpleNamespace(dead_letter=False))
    run: Any = SimpleNamespace(assembly=SimpleNamespace(consumers=[build]))
    desk, why = desk_of(run)
    assert desk is None
    assert "dead_letter is off" in why


@pytest.mark.parametrize("given", ["", "x", "0" * 32, "../services", "1" * 33, "g" * 32])
def test_what_is_no_trace_id_is_never_asked_for(given: str) -> None:
    with pytest.raises(RefusedError) as refused:
        trace_of("http://127.0.0.1:9", given)
    assert refused.value.status == 400


def test_a_jaeger_that_is_away_is_a_sentence() -> None:
    with pytest.raises(RefusedError, match="could not be asked") as refused:
        trace_of("http://127.0.0.1:9", "1" * 32)
    assert refused.value.status == 502


def test_a_trace_is_told_in_rows_with_their_bars() -> None:
    def span(key: str, parent: str, start: int, end: int, **more: Any) -> Span:
        return Span(key, parent, "1" * 32, "billing\u202e", "process orders", "consumer", start, end, **more)

    second = 1_000_000_000
    spans = [
        span("a", "", 0, second, failed=True, error="refused \x1b[31m"),
        span("b", "a", 600 * second, 601 * second),
        span("c", "gone", 601 * second, 601 * second),
    ]
    shown = trace_view("1" * 32, spans)
    assert [(each["depth"], each["orphan"]) for each in shown["rows"]] == [(0, False), (1, False), (0, True)]
    assert shown["rows"][0]["error"] == "refused \\x1b[31m"
    assert shown["services"] == ["billing\\u202e"]
    assert shown["longest_wait"] == 599
    assert len(shown["waits"]) == 1
    for each in shown["rows"]:
        assert 0 <= each["from"] < each["to"] <= 1


def test_without_jaeger_the_page_is_told_which_setting_is_missing(signed_in: Browser) -> None:
    answer = signed_in.get("trace?id=" + "1" * 32)
    assert answer.status == 404
    assert "jaeger_url is not set" in answer.json["error"]
