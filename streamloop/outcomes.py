"""What a handler says about a message when returning or raising anything else would not say enough.

A handler acknowledges by returning. Any exception is classified (``streamloop.engine.retry``); the ones here
decide by themselves, whatever they were raised from. A batch handler may also *return* them, one a message.
Nothing in this module acts: the runners read the outcome and the engine decides what follows.
"""

from __future__ import annotations

import math
from typing import ClassVar, Final, Self, final

from streamloop.engine.retry import Kind
from streamloop.errors import OutcomeError


class Outcome(Exception):  # noqa: N818 - raised to decide, like StopIteration: most of them are no errors
    """Base of the exceptions by which a handler decides. Raise one of its subclasses.

    ``reason`` goes to the log, the span and the headers of the routed record. ``after`` is seconds or None.
    """

    streamloop_kind: ClassVar[Kind] = Kind.TRANSIENT

    reason: str = ""
    after: float | None = None

    def __str__(self) -> str:
        return self.reason


class Retry(Outcome):
    """Try this message again, as its plan says.

    ``after``: seconds until the next attempt in place (at most one day; None: the plan's back-off). When the
    attempts in place are used up, the retry topic with its own delay is next. Raises TypeError or ValueError
    for an ``after`` that is no finite number of seconds; a negative one means at once.
    """

    streamloop_kind: ClassVar[Kind] = Kind.TRANSIENT

    def __init__(self, after: float | None = None, reason: str = "") -> None:
        self.after = _seconds(after, "Retry")
        self.reason = reason
        super().__init__(self.after, reason)


class Reject(Outcome):
    """Never try this message again: it goes to dead letter at once, with ``reason``."""

    streamloop_kind: ClassVar[Kind] = Kind.PERMANENT

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


class Skip(Outcome):
    """Acknowledge this message without having handled it.

    It is counted and logged with ``reason``, not kept.
    """

    streamloop_kind: ClassVar[Kind] = Kind.SKIP

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


class Unavailable(Outcome):
    """What the handler depends on is down: wait without spending an attempt.

    ``dependency`` names it (a short, fixed name such as "payments-api"). ``after``: seconds to wait, as for
    Retry; None: back-off up to 30 s by default.
    """

    streamloop_kind: ClassVar[Kind] = Kind.UNAVAILABLE

    def __init__(self, dependency: str, reason: str = "", after: float | None = None) -> None:
        self.dependency = dependency
        self.after = _seconds(after, "Unavailable")
        self.reason = reason
        super().__init__(dependency, reason, self.after)

    def __str__(self) -> str:
        return f"{self.dependency}: {self.reason}" if self.reason else f"{self.dependency} is unavailable"


class Fatal(Outcome):
    """Stop the loop with a non-zero exit code.

    This message is not acknowledged and comes again after a restart.
    """

    streamloop_kind: ClassVar[Kind] = Kind.FATAL

    def __init__(self, reason: str) -> None:
        self.reason = reason
        super().__init__(reason)


@final
class Ack:
    """In the list a batch handler returns: this message is acknowledged, as with None. One instance."""

    __slots__ = ()

    _only: ClassVar[Ack | None] = None

    def __new__(cls) -> Self:
        if cls._only is None:
            cls._only = super().__new__(cls)
        return cls._only

    def __repr__(self) -> str:
        return "Ack()"

    def __reduce__(self) -> tuple[type[Ack], tuple[()]]:
        return (Ack, ())


BatchReturn = list[Ack | Outcome | Exception | None] | None
"""What a batch handler may return: one entry a message in their order, or None when all are acknowledged."""

_SHORT: Final = 80


def batch_outcomes(returned: object, count: int) -> list[BaseException | None]:
    """The outcome of each of a batch's ``count`` messages: None is acknowledged, an exception a failure.

    ``returned`` is what the handler returned. Something else than None or a list of ``count`` outcomes can't
    be matched to the messages, so each of them failed, with one OutcomeError that says what is wrong. Never
    raises.
    """
    if returned is None:
        return [None] * count
    if not isinstance(returned, list | tuple):
        problem = f"a {type(returned).__name__}; return None, or a list of one outcome a message"
    elif len(returned) != count:
        problem = f"{len(returned)} outcomes for {count} messages; return exactly one a message, or None"
    else:
        outcomes: list[BaseException | None] = []
        for index, item in enumerate(returned):
            if item is None or item is Ack or isinstance(item, Ack):
                outcomes.append(None)
            elif isinstance(item, BaseException):
                outcomes.append(item)
            else:
                shown = f"the class {item.__name__}" if isinstance(item, type) else f"a {type(item).__name__}"
                problem = (
                    f"{shown[:_SHORT]} for message {index} of the batch; "
                    "an outcome is None, Ack() or an exception such as Retry() or Reject('why')"
                )
                break
        else:
            return outcomes
    error = OutcomeError(f"the batch handler returned {problem}")
    return [error] * count


def _seconds(after: float | None, owner: str) -> float | None:
    if after is None:
        return None
    if isinstance(after, bool) or not isinstance(after, int | float):
        raise TypeError(f"{owner}(after=...) is a number of seconds or None, not a {type(after).__name__}")
    if not math.isfinite(after):
        raise ValueError(f"{owner}(after=...) is a finite number of seconds, not {after}")
    return max(0.0, float(after))
