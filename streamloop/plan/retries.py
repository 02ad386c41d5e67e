"""Retries that fit into a time budget: how many attempts in place, which retry topics, and how long it all
takes.

Pure. The times are the longest there can be: each attempt lasts until its time-out, each wait is as long as
its jitter allows. A retry topic whose readers are behind adds to them. Called by the calculation of a plan.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from streamloop.settings.model import HandlerSettings

if TYPE_CHECKING:
    from collections.abc import Sequence

LADDER: Final = (30.0, 300.0, 1_800.0, 7_200.0, 28_800.0, 86_400.0)
"""Seconds: delays of retry topics, in the order they are used; each step is some four to ten times the
last."""

ATTEMPTS: Final = int(HandlerSettings.model_fields["in_place_attempts"].default)
BASE: Final = float(HandlerSettings.model_fields["backoff_base"].default)
FACTOR: Final = float(HandlerSettings.model_fields["backoff_factor"].default)
CAP: Final = float(HandlerSettings.model_fields["backoff_cap"].default)
DEFAULT_TOPICS: Final[tuple[float, ...]] = HandlerSettings.model_fields["retry_topics"].default


@dataclass(frozen=True, slots=True)
class Retries:
    """A retry plan. Times in seconds.

    ``in_place_time``: from the end of the first attempt to the end of the last one in place. ``total``: to
    the end of the last attempt of all.
    """

    in_place_attempts: int
    retry_topics: tuple[float, ...]
    in_place_time: float
    total: float

    @property
    def attempts(self) -> int:
        """Attempts in all."""
        return self.in_place_attempts + len(self.retry_topics)


def waits(attempts: int) -> tuple[float, ...]:
    """The longest wait before each attempt in place but the first."""
    return tuple(min(CAP, BASE * FACTOR**at) for at in range(attempts - 1))


def planned(attempts: int, topics: Sequence[float], timeout: float) -> Retries:
    """The plan of so many attempts in place and these retry topics."""
    in_place = sum(waits(attempts)) + (attempts - 1) * timeout
    return Retries(attempts, tuple(topics), in_place, in_place + sum(each + timeout for each in topics))


def within(budget: float | None, timeout: float) -> Retries:
    """The longest plan that ends within the budget; without one the default plan.

    It has as many attempts in place as the default, or fewer when the budget is shorter, and then the steps
    of the ladder that still fit. A budget shorter than one more attempt leaves no retry at all.
    """
    if budget is None:
        return planned(ATTEMPTS, DEFAULT_TOPICS, timeout)
    attempts = next(each for each in range(ATTEMPTS, 0, -1) if planned(each, (), timeout).total <= budget)
    topics: list[float] = []
    for delay in LADDER:
        if planned(attempts, (*topics, delay), timeout).total > budget:
            break
        topics.append(delay)
    return planned(attempts, topics, timeout)
