"""`streamloop trace`: traces of Jaeger's API as waterfalls, and what is said when it does not answer well."""

from __future__ import annotations

import base64
import json
from typing import Any

import pytest
from click.testing import CliRunner, Result
from rich.console import Console, RenderableType

from streamloop.cli import main as cli
from streamloop.cli.waterfall import bar, waterfall
from streamloop.errors import ConfigurationError
from streamloop.telemetry.jaeger import Span, fetch_trace, messages_of, spans_of, trace_id_of
from streamloop.telemetry.waterfall import Scale, tree
from tests.test_top import member

TRACE = "4bf92f3577b34da6a3ce929d0e0e4736"
MS = 1_000_000
BEGIN = 1_700_000_000_000 * MS


def raw(
    number: int,
    name: str,
    start: float,
    took: float,
    parent: int = 0,
    *,
    kind: int = 5,
    error: str = "",
    **attributes: Any,
) -> dict[str, Any]:
    """A span of the API's answer; times in ms."""
    values = [
        {
            "key": key.replace("__", "."),
            "value": {"intValue": str(value)} if isinstance(value, int) else {"stringValue": value},
        }
        for key, value in attributes.items()
    ]
    span: dict[str, Any] = {
        "traceId": TRACE,
        "spanId": f"{number:016x}",
        "parentSpanId": f"{parent:016x}" if parent else "",
        "name": name,
        "kind": kind,
        "startTimeUnixNano": str(BEGIN + round(start * MS)),
        "endTimeUnixNano": str(BEGIN + round((start + took) * MS)),
        "attributes": values,
        "status": {"code": 2, "message": error} if error else {},
    }
    if error:
        event = [
            {"key": "exception.type", "value": {"stringValue": "CardDeclinedError"}},
            {"key": "exception.message", "value": {"stringValue": error}},
        ]
        span["events"] = [{"name": "exception", "attributes": event}]
    return span


def answer(*spans: dict[str, Any], service: str = "billing") -> dict[str, Any]:
    named = {"attributes": [{"key": "service.name", "value": {"stringValue": service}}]}
    return {"result": {"resourceSpans": [{"resource": named, "scopeSpans": [{"spans": list(spans)}]}]}}


PLACE: dict[str, Any] = {
    "messaging__destination__name": "orders",
    "messaging__destination__partition__id": "3",
    "messaging__kafka__offset": 1042,
    "messaging__consumer__group__name": "billing",
}
RETRY: dict[str, Any] = {
    "messaging__destination__name": "orders.billing.retry.5s",
    "messaging__destination__partition__id": "3",
    "messaging__kafka__offset": 9,
    "messaging__consumer__group__name": "billing.retry",
    "streamloop__original": "orders/3/1042",
}
LIFE = answer(
    raw(1, "send orders", 0, 2, kind=4),
    raw(
        2,
        "process orders",
        5,
        20,
        1,
        error="declined",
        streamloop__attempt=1,
        streamloop__outcome="retried",
        **PLACE,
    ),
    raw(3, "charge card", 6, 10, 2, kind=3),
    raw(4, "send orders.billing.retry.5s", 26, 2, 2, kind=4),
    raw(
        5,
        "process orders.billing.retry.5s",
        5026,
        20,
        4,
        streamloop__attempt=2,
        streamloop__outcome="acked",
        **RETRY,
    ),
)


def shown(view: RenderableType, width: int = 140) -> str:
    console = Console(width=width, color_system=None, force_terminal=False, highlight=False)
    with console.capture() as capture:
        console.print(view)
    return capture.get()


def life() -> list[Span]:
    return sorted(spans_of(LIFE), key=lambda span: span.start)


def test_the_waterfall_has_each_span_below_its_parent_with_attempt_outcome_and_error() -> None:
    text = shown(waterfall(TRACE, life()))
    lines = text.split("\n")
    assert f"trace {TRACE}   5 spans of billing   5.05 s from 2023-11-14 22:13:20.000Z   1 failed" in text
    names = [line.rstrip() for line in lines if "  billing, " in line]
    assert [len(line) - len(line.lstrip()) for line in names] == [0, 2, 4, 4, 6]
    [failed] = [line for line in names if line.startswith("  process orders ")]
    assert "attempt 1, retried, at 3/1042" in failed
    assert "+5.0 ms" in failed
    assert "20.0 ms" in failed
    assert "CardDeclinedError: declined" in text
    assert "┊ a wait; the longest wait is 5.00 s" in text


@pytest.mark.parametrize("width", [60, 80, 99])
def test_on_a_narrow_terminal_names_and_errors_stay_whole_and_the_bars_go(width: int) -> None:
    text = shown(waterfall("ab" * 16, life(), width=width), width)
    lines = text.splitlines()
    assert max(map(len, lines)) <= width
    for name in ("send orders", "process orders", "charge card", "send orders.billing.retry.5s"):
        assert any(name in line for line in lines), text
    assert "CardDeclinedError: declined" in text
    assert "+5.03 s" in text
    assert "━━" not in text
    assert "the longest wait is 5.00 s" in text


def test_a_wait_of_minutes_leaves_room_for_spans_of_milliseconds() -> None:
    scale = Scale(life(), width=32)
    assert len(scale.waits) == 1
    bars = {span.name: bar(scale, span).plain for span in life()}
    assert all(len(drawn) == 32 for drawn in bars.values())
    first, second = bars["process orders"], bars["process orders.billing.retry.5s"]
    assert first.count("━") >= 8
    assert second.count("━") >= 8
    assert first.index("━") < scale.waits[0] < second.index("━")


def test_bars_stay_within_their_width_whatever_the_times_are() -> None:
    for spans in (
        [Span("1", "", TRACE, "", "zero", "", BEGIN, BEGIN)],
        [Span(str(n), "", TRACE, "", "n", "", BEGIN + n * 10**9, BEGIN + n * 10**9 + 5) for n in range(100)],
        [Span(str(n), "", TRACE, "", "n", "", BEGIN + n**9, BEGIN + n**9 + n) for n in range(14)],
    ):
        scale = Scale(spans, width=32)
        for span in spans:
            drawn = bar(scale, span).plain
            assert len(drawn) == 32
            assert drawn.count("━") + drawn.count("╸") >= 1


def test_spans_whose_ids_go_in_a_circle_or_whose_parents_are_missing_are_each_drawn_once() -> None:
    spans = list(
        spans_of(
            answer(raw(1, "a", 0, 1, 2), raw(2, "b", 0, 1, 1), raw(3, "c", 0, 1, 3), raw(4, "d", 0, 1, 99))
        )
    )
    assert sorted(span.name for _, span in tree(spans)) == ["a", "b", "c", "d"]
    assert "its parent is not in Jaeger" in shown(waterfall(TRACE, spans))


def test_ids_in_base64_are_read_too_and_what_is_no_span_is_left_out() -> None:
    span = raw(1, "a", 0, 1)
    span["traceId"] = base64.b64encode(bytes.fromhex(TRACE)).decode()
    span["spanId"] = base64.b64encode(bytes(7) + b"\x01").decode()
    [found] = spans_of(answer(span, {"name": "no times"}, {"startTimeUnixNano": "x", "endTimeUnixNano": "1"}))
    assert (found.trace_id, found.span_id) == (TRACE, f"{1:016x}")
    assert list(spans_of({"result": {"resourceSpans": [3, {"scopeSpans": 4}]}})) == []


def test_no_text_of_a_span_reaches_the_terminal_as_control_characters() -> None:
    evil = "\x1b[2J\r\n[bold]x"
    text = shown(waterfall(TRACE, list(spans_of(answer(raw(1, evil, 0, 1, error=evil), service=evil)))))
    assert not {"\x1b", "\r"} & set(text)
    assert "\\x1b[2J\\r\\n[bold]x" in text


def test_the_messages_of_a_trace_are_the_originals_and_their_groups() -> None:
    assert messages_of(life()) == [("orders", 3, 1042, "billing")]


def test_a_trace_is_fetched_by_its_id() -> None:
    paths: list[str] = []

    def api(path: str, _token: str | None) -> tuple[int, bytes]:
        paths.append(path)
        return 200, json.dumps(LIFE).encode()

    with member(api) as address:
        spans = fetch_trace(f"http://{address}", TRACE)
    assert paths == [f"/api/v3/traces/{TRACE}"]
    assert [span.name for span in spans][:2] == ["send orders", "process orders"]


# ------------------------------------------------------------------------------------------------- command


def run(*arguments: str) -> Result:
    return CliRunner(env={"COLUMNS": "140"}).invoke(cli.main, ["trace", *arguments])


def test_a_trace_id_shows_the_waterfall_and_says_why_the_message_was_not_looked_for() -> None:
    with member(lambda _path, _token: (200, json.dumps(LIFE).encode())) as address:
        result = run("--trace-id", TRACE, "--jaeger", address)
    assert result.exit_code == 0, result.output
    assert "process orders.billing.retry.5s" in result.output
    assert "orders/3/1042 was not looked for: Which brokers? Give --brokers" in result.output


@pytest.mark.parametrize(
    ("reply", "said"),
    [
        ((404, b'{"error": {"httpCode": 404, "message": "not found"}}'), "has no trace"),
        ((500, b'{"error": {"message": "the store is down"}}'), "(HTTP 500): the store is down"),
        ((200, b"<html>"), "no JSON"),
        ((200, b"{}"), "not that of Jaeger's API v3"),
    ],
)
def test_what_jaeger_answers_otherwise_is_a_sentence_and_exit_code_1(
    reply: tuple[int, bytes], said: str
) -> None:
    with member(lambda _path, _token: reply) as address:
        result = run("--trace-id", TRACE, "--jaeger", address)
    assert result.exit_code == 1
    assert said in result.output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ([], "Give TOPIC PARTITION OFFSET"),
        (["orders", "3"], "Give TOPIC PARTITION OFFSET"),
        (["orders", "x", "1"], "'x' is no partition"),
        (["orders", "3", "-"], "'-' is no offset"),
        (["orders/3/99999999999999999999"], "is no offset"),
        (["or ders", "3", "1"], "no name of a topic"),
        (["orders/3/1"], "Which brokers?"),
        (["--trace-id", "xyz", "--jaeger", "h:1"], "no trace id"),
        (["--trace-id", TRACE], "needs --jaeger"),
        (["orders", "3", "1", "--trace-id", TRACE, "--jaeger", "h:1"], "not both"),
        (["orders", "3", "1", "--jaeger", "ftp://h"], "no address"),
    ],
)
def test_mistakes_are_sentences_and_exit_code_2(arguments: list[str], said: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2, result.output
    assert said in result.output


def test_trace_ids_are_taken_as_they_are_shown_elsewhere() -> None:
    assert trace_id_of(TRACE.upper()) == TRACE
    assert trace_id_of("3577b34da6a3ce929d0e0e4736") == "0000003577b34da6a3ce929d0e0e4736"
    with pytest.raises(ConfigurationError):
        trace_id_of("0" * 32)
