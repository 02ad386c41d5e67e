"""A bounded wait for a condition, in place of a sleep. Called by the fixtures and by tests."""

import threading
import time
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

POLL_SECONDS = 0.05


def wait_until(
    condition: Callable[[], T],
    timeout: float = 30.0,
    message: str | Callable[[], str] = "the condition",
) -> T:
    """Return the condition's first true answer.

    timeout is in seconds (default 30). When it ends, AssertionError names what was waited for, with the last
    answer; a callable message is asked only then, so that it can say what was seen instead.
    """
    pause = threading.Event()
    deadline = time.monotonic() + timeout
    while True:
        answer = condition()
        if answer:
            return answer
        if time.monotonic() >= deadline:
            said = message() if callable(message) else message
            raise AssertionError(f"waited {timeout:g} s in vain for {said} (last answer: {answer!r})")
        pause.wait(POLL_SECONDS)
