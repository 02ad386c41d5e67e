"""librdkafka's lines in our log: each once a minute, those that were asked for always."""

from __future__ import annotations

import logging

from streamloop.kafka.client_log import MOST_REMEMBERED, Seldom

FAIL = "FAIL [vm-1#consumer-6] [thrd:h:9092/1]: h:9092/1: Connect failed (after {}ms in state CONNECT)"


class Lines:
    """A filter on a clock of the test's."""

    def __init__(self) -> None:
        self.now = 100.0
        self._filter = Seldom(lambda: self.now)

    def passes(self, text: str, level: int = logging.ERROR) -> bool:
        record = logging.LogRecord("streamloop.librdkafka", level, "f", 1, text, None, None)
        return bool(self._filter.filter(record))


def test_H5_a_line_comes_once_a_minute_whatever_times_are_in_it() -> None:
    lines = Lines()
    assert [lines.passes(FAIL.format(ms)) for ms in (0, 1, 250)] == [True, False, False]
    lines.now += 59.9
    assert not lines.passes(FAIL.format(0))
    lines.now += 0.1
    assert lines.passes(FAIL.format(0))
    assert not lines.passes(FAIL.format(0))


def test_another_broker_or_client_is_another_line() -> None:
    lines = Lines()
    assert lines.passes(FAIL.format(0))
    assert lines.passes(FAIL.format(0).replace("consumer-6", "consumer-7"))
    assert lines.passes(FAIL.format(0).replace("9092", "9093"))


def test_what_debug_asked_for_is_never_kept_back() -> None:
    lines = Lines()
    assert all(lines.passes("HEARTBEAT", logging.DEBUG) for _ in range(3))


def test_it_remembers_a_bounded_number_of_lines() -> None:
    lines = Lines()
    assert all(lines.passes(f"line {'x' * number}") for number in range(MOST_REMEMBERED * 3))
    assert len(lines._filter._said) <= MOST_REMEMBERED
