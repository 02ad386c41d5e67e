"""The watchdog: it names what blocks the event loop, once, and gives up in the end."""

from __future__ import annotations

import faulthandler
import logging
import threading
import time
from typing import TYPE_CHECKING, Any

import pytest

from streamloop import StreamLoop, watchdog
from streamloop.core import Heartbeat
from streamloop.watchdog import BLOCKED_AFTER, Watchdog

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

BOUND = 20.0
"""Real seconds that a test waits at most."""


class Blocked:
    """A thread that stands for the event loop's and is inside a handler until it is released."""

    def __init__(self, handler: Callable[[threading.Event], None]) -> None:
        self.release = threading.Event()
        self.inside = threading.Event()
        self.ready = threading.Event()
        self.thread = threading.Thread(target=self._run, args=(handler,), daemon=True)
        self.dog: Watchdog | None = None

    def _run(self, handler: Callable[[threading.Event], None]) -> None:
        assert self.ready.wait(BOUND)
        assert self.dog is not None
        self.dog.start()
        self.inside.set()
        handler(self.release)


def charge(release: Any) -> None:
    call_the_bank(release)


def call_the_bank(release: threading.Event) -> None:
    release.wait(BOUND)


def until(condition: Callable[[], bool]) -> None:
    """Wait for what another thread brings about."""
    end = time.monotonic() + BOUND
    while not condition():
        assert time.monotonic() < end, "it did not come"
        threading.Event().wait(0.002)


class Setting:
    """A watchdog with a clock that the test moves."""

    def __init__(self, handler: Callable[[threading.Event], None]) -> None:
        loop: StreamLoop[None] = StreamLoop("billing")
        loop.consumer("orders")(charge)
        handlers = [build.handler for build in loop.assemble(needs_broker=False).consumers]
        self.now = 1000.0
        self.heartbeat = Heartbeat(self.now)
        self.gave_up: list[str] = []
        self.blocked = Blocked(handler)
        self.dog = self.blocked.dog = Watchdog(
            self.heartbeat,
            handlers,
            give_up_after=60,
            give_up=self.gave_up.append,
            end_process=False,
            clock=lambda: self.now,
        )
        self.blocked.thread.start()
        self.blocked.ready.set()
        assert self.blocked.inside.wait(BOUND)

    def end(self) -> None:
        self.dog.stop()
        self.blocked.release.set()
        self.blocked.thread.join(BOUND)


@pytest.fixture
def look_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(watchdog, "LOOK_EVERY", 0.002)


@pytest.fixture
def setting(look_often: None) -> Iterator[Setting]:
    made = Setting(charge)
    yield made
    made.end()


def test_H8_a_blocked_event_loop_is_reported_with_the_handler_and_its_stack(
    setting: Setting, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING, "streamloop.watchdog"):
        setting.now += BLOCKED_AFTER + 1
        until(lambda: setting.dog.blocks == 1)
        until(lambda: bool(caplog.records))
    assert setting.dog.blocked_by == "handler charge"
    text = caplog.records[0].getMessage()
    assert "has been blocked for 3.0 s by handler charge" in text
    assert "in call_the_bank" in text
    assert "release.wait(BOUND)" in text
    assert caplog.records[0].__dict__["handler"] == "charge"


def test_H8_it_is_said_once_and_is_over_when_the_loop_turns(
    setting: Setting, caplog: pytest.LogCaptureFixture
) -> None:
    setting.now += BLOCKED_AFTER + 1
    until(lambda: setting.dog.blocks == 1)
    setting.now += 5
    setting.heartbeat.stamp = setting.now
    until(lambda: not setting.dog.blocked_by)
    assert setting.dog.blocks == 1
    setting.now += BLOCKED_AFTER + 1
    until(lambda: setting.dog.blocks == 2)
    assert setting.gave_up == []


def test_a_loop_that_stays_blocked_is_given_up_once_with_the_handlers_name(setting: Setting) -> None:
    setting.now += 61
    until(lambda: bool(setting.gave_up))
    setting.now += 61
    blocks = setting.dog.blocks
    assert setting.gave_up == ["the event loop has been blocked for 61 s by handler charge"]
    assert blocks == 1


def test_what_is_no_handler_is_called_so(look_often: None, caplog: pytest.LogCaptureFixture) -> None:
    setting = Setting(call_the_bank)
    try:
        setting.now += BLOCKED_AFTER + 1
        until(lambda: setting.dog.blocks == 1)
        assert setting.dog.blocked_by == "code that is no handler"
    finally:
        setting.end()


def test_a_loop_that_turns_is_never_reported(setting: Setting) -> None:
    for _ in range(20):
        setting.now += BLOCKED_AFTER / 2
        setting.heartbeat.stamp = setting.now
        threading.Event().wait(0.004)
    assert setting.dog.blocks == 0


def test_the_timer_in_c_is_armed_only_where_the_process_may_be_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    armed: list[tuple[float, bool]] = []
    cancelled: list[bool] = []

    def arm(seconds: float, *, exit: bool) -> None:  # noqa: A002 - faulthandler's own name
        armed.append((seconds, exit))

    monkeypatch.setattr(faulthandler, "dump_traceback_later", arm)
    monkeypatch.setattr(faulthandler, "cancel_dump_traceback_later", lambda: cancelled.append(True))
    monkeypatch.setattr(watchdog, "_can_dump", lambda: True)
    for end_process in (False, True):
        dog = Watchdog(
            Heartbeat(0.0), [], give_up_after=60, give_up=print, end_process=end_process, clock=lambda: 0.0
        )
        dog.rearm()
        dog.stop()
    assert armed == [(60 + watchdog.C_TIMER_MARGIN, True)]
    assert cancelled == [True]
