"""What is logged of messages at which level, what repeats, and what never reaches a terminal."""

from __future__ import annotations

import io
import json
import logging
from typing import TYPE_CHECKING, Any

import pytest
from opentelemetry import trace
from opentelemetry.trace import NonRecordingSpan, SpanContext, TraceFlags

from streamloop import StreamLoop
from streamloop.cli.logs import JsonFormatter, TextFormatter, set_up_logging
from streamloop.engine import events as ev
from streamloop.engine.events import TopicPartition
from streamloop.engine.record import Record
from streamloop.settings import Settings
from streamloop.telemetry.logs import (
    PER_SECOND,
    REPEATS,
    WINDOW,
    LoggedRecord,
    Repeats,
    StepLog,
    printable,
    shown_key,
)
from streamloop.testing import Harness
from tests.realkafka.waiting import wait_until
from tests.running_loop import RunningLoop

if TYPE_CHECKING:
    from collections.abc import Iterator

HOSTILE = "\x1b[2J\x9b31m\x07\u202egnp.exe\u2028{\x7f\ud800\n2026-01-01 INFO forged"


def fields(record: logging.LogRecord) -> dict[str, Any]:
    return dict(record.__dict__)


def of_kind(caplog: pytest.LogCaptureFixture, kind: str) -> list[dict[str, Any]]:
    return [fields(record) for record in caplog.records if getattr(record, "kind", "") == kind]


def billing(handler: Any, **options: Any) -> StreamLoop[None]:
    loop: StreamLoop[None] = StreamLoop("billing")
    loop.consumer("orders", name="charge", **options)(handler)
    return loop


async def nothing(_value: bytes) -> None: ...


async def fail(_value: bytes) -> None:
    raise ConnectionError("refused")


# ----------------------------------------------------------------------------------------------- outcomes


def test_an_outcome_is_logged_at_info_with_where_what_and_how_long(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO), Harness(billing(nothing), partitions=1) as kafka:
        kafka.send("orders", b"secret payload", key=b"customer-7")
        kafka.run()
    [outcome] = of_kind(caplog, "outcome")
    assert outcome["levelname"] == "INFO"
    assert (outcome["topic"], outcome["partition"], outcome["offset"]) == ("orders", 0, 0)
    assert (outcome["consumer"], outcome["attempt"], outcome["state"]) == ("charge", 1, "ACKED")
    assert outcome["outcome"] == "acked"
    assert outcome["duration_ms"] >= 0
    assert "key" not in outcome
    assert "secret" not in caplog.text
    assert "customer-7" not in caplog.text


def test_failed_attempts_routing_and_its_end_are_outcomes_too(caplog: pytest.LogCaptureFixture) -> None:
    loop = billing(fail, in_place_attempts=2, retry_topics=())
    with caplog.at_level(logging.INFO), Harness(loop) as kafka:
        kafka.send("orders", b"x")
        kafka.run()
    outcomes = of_kind(caplog, "outcome")
    assert [(each["outcome"], each["attempt"]) for each in outcomes] == [("failed", 1), ("dead_lettered", 2)]
    assert outcomes[0]["error_class"] == "builtins.ConnectionError"
    [routed] = of_kind(caplog, "routed")
    assert (routed["attempt"], routed["target"]) == (2, "orders.billing.dlq")


def test_outcomes_that_come_fast_are_sampled_and_what_is_left_out_is_counted(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with caplog.at_level(logging.INFO), Harness(billing(nothing)) as kafka:
        for number in range(500):
            kafka.send("orders", str(number).encode())
        kafka.run()
        first = len(of_kind(caplog, "outcome"))
        assert 0 < first <= 2 * PER_SECOND
        kafka.advance(2)
        kafka.send("orders", b"later")
        kafka.run()
    outcomes = of_kind(caplog, "outcome")
    assert len(outcomes) == first + 1
    assert sum(each.get("left_out", 0) for each in outcomes) + len(outcomes) == 501


def test_failures_are_logged_though_successes_come_fast(caplog: pytest.LogCaptureFixture) -> None:
    async def some(value: bytes) -> None:
        if value == b"bad":
            raise ConnectionError

    with caplog.at_level(logging.INFO), Harness(billing(some), partitions=1) as kafka:
        for _ in range(30):
            kafka.send("orders", b"good")
        kafka.send("orders", b"bad")
        kafka.advance(0.1)
        assert [each["offset"] for each in of_kind(caplog, "outcome") if each["outcome"] == "failed"] == [30]


def test_keys_are_shown_when_asked_for_bounded_and_harmless(caplog: pytest.LogCaptureFixture) -> None:
    loop = billing(nothing)
    with caplog.at_level(logging.INFO), Harness(loop) as kafka:
        assert loop._run is not None
        assert loop._run.parts is not None
        loop._run.parts.core.step_log.keys = True
        kafka.send("orders", b"x", key=b"\x1b[2Jcustomer-7" + b"\xff" * 200)
        kafka.run()
    [outcome] = of_kind(caplog, "outcome")
    assert outcome["key"].startswith("\\x1b[2Jcustomer-7\\xff")
    assert len(outcome["key"]) < 500
    assert shown_key(None) is None


def test_at_warning_nothing_is_looked_at(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        assert StepLog().before(0.0, [ev.Finished([])]) is None


# -------------------------------------------------------------------------------- state changes and turns


def test_every_state_change_and_turn_is_logged_at_debug(caplog: pytest.LogCaptureFixture) -> None:
    attempts: list[bytes] = []

    async def handler(value: bytes) -> None:
        attempts.append(value)
        if len(attempts) == 1:
            raise ConnectionError

    options = {"in_place_attempts": 2, "backoff_base": 0.01, "backoff_cap": 0.02}
    with caplog.at_level(logging.DEBUG, "streamloop"), RunningLoop(handler, options=options) as running:
        running.send(b"payload-of-it")
        wait_until(lambda: running.metric("loop_processed_total", outcome="acked") == 1, 20, "the message")
    states = [each["state"] for each in of_kind(caplog, "state") if each["offset"] == 0]
    assert states == ["FETCHED", "PROCESSING", "FAILED", "BACKOFF", "PROCESSING", "ACKED"]
    changes = [each for each in of_kind(caplog, "state") if each["state"] != "FETCHED"]
    assert {(each["topic"], each["partition"]) for each in changes} == {("orders", 0)}
    assert [each["attempt"] for each in changes if each["state"] == "PROCESSING"] == [1, 2]
    assert all("duration_ms" in each for each in changes if each["state"] in ("FAILED", "ACKED"))
    assert of_kind(caplog, "turn_start")
    assert all(each["duration_ms"] >= 0 for each in of_kind(caplog, "turn_end"))
    assert "payload-of-it" not in caplog.text


def test_without_debug_records_stay_what_they_are(caplog: pytest.LogCaptureFixture) -> None:
    record = Record(0, None, 1, -1, None)
    fetched = ev.Fetched(TopicPartition("orders", 0), 1, [record])
    with caplog.at_level(logging.INFO, "streamloop"):
        StepLog().before(0.0, [fetched])
        assert type(record) is Record
    with caplog.at_level(logging.DEBUG, "streamloop"):
        StepLog().before(0.0, [fetched])
        assert type(record) is LoggedRecord


def test_what_holds_a_partition_is_one_warning_that_names_the_message(
    caplog: pytest.LogCaptureFixture,
) -> None:
    loop = billing(fail, in_place_attempts=1, retry_topics=(), dead_letter_max_per_minute=1)
    with caplog.at_level(logging.INFO), Harness(loop, partitions=1) as kafka:
        for _ in range(5):
            kafka.send("orders", b"x")
        kafka.advance(5)
    [held] = [each for each in of_kind(caplog, "held") if each["reason"] == "dead_letter_rate"]
    assert held["levelname"] == "WARNING"
    assert (held["topic"], held["partition"], held["holding_offset"]) == ("orders", 0, 0)
    assert held["holding_state"] == "ROUTING_DEAD"


# ------------------------------------------------------------------------------------------------ repeats


def line(
    message: str = "it goes on", *, at: float, name: str = "streamloop.x", **extra: Any
) -> logging.LogRecord:
    record = logging.makeLogRecord({"name": name, "levelno": logging.WARNING, "msg": message, **extra})
    record.created = at
    return record


def test_repeats_are_left_out_and_the_next_line_counts_them() -> None:
    repeats = Repeats()
    written = [repeats.filter(line(at=100.0 + number / 100)) for number in range(REPEATS + 30)]
    assert written == [True] * REPEATS + [False] * 30
    later = line(at=100.0 + WINDOW)
    assert repeats.filter(later)
    assert fields(later)["left_out"] == 30
    again = line(at=100.1 + WINDOW)
    assert repeats.filter(again)
    assert "left_out" not in fields(again)


def test_other_partitions_other_texts_debug_and_the_users_own_lines_are_no_repeats() -> None:
    repeats = Repeats()
    for number in range(REPEATS * 3):
        assert repeats.filter(line(at=1.0, topic="orders", partition=number))
        assert repeats.filter(line(f"text {number}", at=1.0))
        assert repeats.filter(line(at=1.0, name="app.billing"))
        assert repeats.filter(line(at=1.0, levelno=logging.DEBUG))


def test_a_clock_that_steps_back_silences_nothing_for_good() -> None:
    repeats = Repeats()
    for _ in range(REPEATS + 1):
        repeats.filter(line(at=1_000_000.0))
    assert repeats.filter(line(at=10.0))


def test_many_kinds_of_lines_do_not_fill_the_memory() -> None:
    repeats = Repeats()
    for number in range(5_000):
        repeats.filter(line(f"text {number}", at=1.0))
    assert len(repeats._seen) <= 1_000


# ------------------------------------------------------------------------------------------ hostile texts


def harmless(text: str) -> bool:
    return all(character.isprintable() or character == "\n" for character in text)


def hostile_record() -> logging.LogRecord:
    try:
        raise ValueError(HOSTILE)
    except ValueError as error:
        info = (ValueError, error, error.__traceback__)
    record = logging.LogRecord("streamloop.x", logging.WARNING, "f", 1, "failed: %s", (HOSTILE,), info)
    record.error_text = HOSTILE
    return record


def test_no_control_character_reaches_a_terminal_and_no_line_is_forged() -> None:
    text = TextFormatter().format(hostile_record())
    assert harmless(text)
    first, *others = text.split("\n")
    assert first.split()[1] == "WARNING"
    assert all(each.startswith("    ") for each in others)
    assert "\\x1b[2J" in text
    assert "\\u202e" in text


def test_json_is_one_line_without_anything_a_terminal_obeys() -> None:
    text = JsonFormatter({"group": "billing", "member": "m-1"}).format(hostile_record())
    assert harmless(text)
    assert "\n" not in text
    read = json.loads(text)
    assert read["error_text"] == HOSTILE
    assert (read["group"], read["member"]) == ("billing", "m-1")


def test_json_survives_what_json_can_not_hold() -> None:
    record = logging.makeLogRecord(
        {"msg": "x", "big": 2**80, "raw": b"\x1b", "lone": "\ud800", "nan": float("nan")}
    )
    read = json.loads(JsonFormatter().format(record))
    assert read["big"] == 2**80
    assert read["message"] == "x"


@pytest.mark.parametrize("formatter", [JsonFormatter(), TextFormatter()])
def test_a_line_whose_arguments_do_not_fit_is_written_all_the_same(formatter: logging.Formatter) -> None:
    class Unprintable:
        def __str__(self) -> str:
            raise RuntimeError

    record = logging.LogRecord("app", logging.INFO, "f", 1, "%d of %s", (Unprintable(), 1), None)
    assert "%d of %s" in formatter.format(record)


def test_printable_keeps_what_people_read() -> None:
    assert printable("Größe: 5 €, 日本語 🎉") == "Größe: 5 €, 日本語 🎉"
    assert printable("a\tb\nc\x00") == "a\\tb\\nc\\x00"


# --------------------------------------------------------------------------------------- set-up and traces


@pytest.fixture
def root() -> Iterator[logging.Logger]:
    """The root logger, put back as it was."""
    logger = logging.getLogger()
    level, handlers = logger.level, logger.handlers[:]
    yield logger
    logger.handlers[:] = handlers
    logger.setLevel(level)


@pytest.mark.parametrize("kind", ["json", "text"])
def test_lines_bear_the_trace_they_were_logged_in(
    kind: str, root: logging.Logger, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = io.StringIO()
    monkeypatch.setattr("sys.stderr", stream)
    set_up_logging(Settings.load({"group": "billing", "member": "m-1", "log_format": kind}).settings)
    context = SpanContext(0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331, False, TraceFlags(1))
    with trace.use_span(NonRecordingSpan(context)):
        logging.getLogger("app").warning("in it")
    logging.getLogger("app").warning("outside")
    inside, outside = stream.getvalue().splitlines()
    assert "0af7651916cd43dd8448eb211c80319c" in inside
    assert "b7ad6b7169203331" in inside
    assert "trace_id" not in outside
    assert len(root.handlers) == 1
    if kind == "json":
        read = json.loads(inside)
        assert (read["trace_id"], read["span_id"]) == ("0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331")
        assert (read["group"], read["member"], read["level"]) == ("billing", "m-1", "WARNING")
