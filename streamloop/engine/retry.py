"""What a failure is, and what follows from it: again in place, a retry topic, dead letter, wait, or stop.

Two pure steps. ``classify`` turns an exception into a ``Failure`` and never raises, however hostile the
exception: the engine must go on. ``decide`` takes a plan, a failure and the counts, and returns a
``Decision``; it never drops a message: where the plan has no step left, the answer is HALT.

Standard library only; no clock and no randomness of its own (``age`` and ``uniform`` are given). Called by
the engine for each failed attempt. Outcomes raised by handlers are known here by the class attribute
``streamloop_kind`` alone, so that this module needs nothing outside the engine.
"""

from __future__ import annotations

import enum
import hashlib
import inspect
import math
import re
import sys
from collections.abc import Callable  # noqa: TC003 - get_type_hints() works on the records
from dataclasses import dataclass, field
from typing import Any, Final, TypeGuard

MAX_DELAY: Final = 86_400.0
"""Seconds. No wait in place is longer, whatever a handler or a delay function asks for."""

ERROR_CLASS_BYTES: Final = 256
ERROR_MESSAGE_BYTES: Final = 1024
UNPRINTABLE: Final = "unprintable"

_MAX_RETRY_DELAY: Final = 365 * 86_400.0
_UNAVAILABLE_BASE: Final = 0.2  # never 0: waiting has no bound of attempts, so it must not spin
_MAX_ERRORS_SEEN: Final = 1_000
_MAX_FRAMES: Final = 10_000
_FINGERPRINT_CHARACTERS: Final = 4_096


class Kind(enum.Enum):
    """What an error means for the message.

    A class says so by itself with ``streamloop_kind: ClassVar[Kind]``.
    """

    TRANSIENT = "transient"
    PERMANENT = "permanent"
    UNAVAILABLE = "unavailable"
    FATAL = "fatal"
    SKIP = "skip"


_SEVERITY: Final = {
    Kind.FATAL: 4,
    Kind.PERMANENT: 3,
    Kind.UNAVAILABLE: 2,
    Kind.TRANSIENT: 1,
    Kind.SKIP: 0,
}
"""Several errors in one (causes, groups):

the worst decides. SKIP is last, for it would acknowledge the others.
"""

_BUILT_IN: Final[dict[type, Kind]] = {
    TimeoutError: Kind.TRANSIENT,
    SystemExit: Kind.FATAL,
    KeyboardInterrupt: Kind.FATAL,
}


@dataclass(frozen=True, slots=True)
class ErrorRules:
    """The exception classes a consumer lists; subclasses count, and the most specific listed class decides.

    ``transient`` is for what would otherwise fall under a wider class of another list. What no list names is
    transient, TimeoutError even when a base of it is listed; SystemExit and KeyboardInterrupt are fatal.
    """

    permanent: tuple[type[BaseException], ...] = ()
    transient: tuple[type[BaseException], ...] = ()
    unavailable: tuple[type[BaseException], ...] = ()
    fatal: tuple[type[BaseException], ...] = ()


@dataclass(frozen=True, slots=True)
class Failure:
    """One failed attempt, described in plain values of bounded size.

    ``error_class``: qualified name, at most 256 bytes of UTF-8. ``message``: at most 1 KiB of UTF-8, cut at a
    character, 'unprintable' when the exception can't be printed; control characters are kept, lone surrogates
    are escaped. ``fingerprint``: 16 hex digits, equal for alike errors raised at the same place. ``after``:
    seconds the handler asked to wait, or None. ``dependency``: what is unavailable, or None. ``trace``:
    opaque here: the span of that attempt.
    """

    kind: Kind
    error_class: str
    message: str
    fingerprint: str
    after: float | None = None
    dependency: str | None = None
    trace: object = field(default=None, compare=False, repr=False)


class Step(enum.Enum):
    """What happens to a failed message next."""

    AGAIN = "again"
    """Once more in place, after the delay, holding its lane."""
    RETRY_TOPIC = "retry_topic"
    """To the retry topic with ``retry_index``."""
    DEAD_LETTER = "dead_letter"
    HALT = "halt"
    """Not acknowledged; the loop stops, and the note says why."""
    WAIT = "wait"
    """Back off and try again without an attempt being spent."""
    ACK = "ack"
    """Acknowledged as skipped."""


@dataclass(frozen=True, slots=True)
class Decision:
    """``delay`` in seconds, from now.

    ``retry_index`` is -1 unless step is RETRY_TOPIC. ``note``: for the log, or ''.
    """

    step: Step
    delay: float = 0.0
    retry_index: int = -1
    note: str = ""


@dataclass(frozen=True, slots=True)
class RetryPlan:
    """The steps of one consumer. All times in seconds. ``validate_plan`` finds what is wrong with one.

    ``in_place_attempts``: attempts in one delivery from the source topic, the first included. ``backoff_*``:
    full jitter below min(cap, base * factor ** (n - 1)). ``retry_delays``: a retry topic each, one attempt a
    delivery. ``dead_letter`` False: the loop halts instead. ``max_attempts``, ``max_age`` (since the first
    failure): when reached, dead letter is next; waiting for something unavailable never makes a dead letter.
    ``strict_order``: everything in place, no retry topics. ``delay``: called with the attempt and the failure
    instead of the back-off. ``unavailable_cap``: longest back-off while a dependency is unavailable.
    """

    in_place_attempts: int = 3
    backoff_base: float = 0.2
    backoff_factor: float = 2.0
    backoff_cap: float = 5.0
    retry_delays: tuple[float, ...] = (30.0, 300.0, 1800.0)
    dead_letter: bool = True
    max_attempts: int | None = None
    max_age: float | None = None
    strict_order: bool = False
    delay: Callable[[int, Failure], float] | None = None
    unavailable_cap: float = 30.0


def decide(
    plan: RetryPlan,
    failure: Failure,
    *,
    attempt: int,
    in_place: int,
    hop: int,
    age: float,
    unavailable_in_a_row: int,
    uniform: Callable[[], float],
) -> Decision:
    """The next step for a message whose attempt failed.

    ``attempt``: attempts in all since the original or the last replay, this one included. ``in_place``:
    attempts in this delivery, this one included. ``hop``: 0 for a record read from the source or replay
    topic, i + 1 for one read from retry topic i. ``age``: seconds since the first failure.
    ``unavailable_in_a_row``: failures of kind UNAVAILABLE in a row, this one included. ``uniform``: a number
    in [0, 1). Never raises.
    """
    match failure.kind:
        case Kind.SKIP:
            return Decision(Step.ACK, note=failure.message)
        case Kind.FATAL:
            return Decision(Step.HALT, note=f"fatal error {failure.error_class}: {failure.message[:200]}")
        case Kind.UNAVAILABLE:
            if failure.after is not None:
                return Decision(Step.WAIT, min(failure.after, MAX_DELAY))
            base = max(plan.backoff_base, _UNAVAILABLE_BASE)
            return Decision(
                Step.WAIT, _backoff(plan, base, plan.unavailable_cap, unavailable_in_a_row, uniform)
            )
        case Kind.PERMANENT:
            return _dead_letter(plan, f"permanent error {failure.error_class}")
        case Kind.TRANSIENT:
            pass
    if plan.max_attempts is not None and attempt >= plan.max_attempts:
        return _dead_letter(plan, f"max_attempts={plan.max_attempts} reached")
    if plan.max_age is not None and age >= plan.max_age:
        return _dead_letter(plan, f"max_age={plan.max_age:g} s reached")
    # A record of a retry topic gets one attempt a delivery: its lane is shared with records of later hops.
    if in_place < plan.in_place_attempts and (hop == 0 or plan.strict_order):
        return _again(plan, failure, attempt, in_place, uniform)
    if not plan.strict_order and 0 <= hop < len(plan.retry_delays):
        return Decision(Step.RETRY_TOPIC, plan.retry_delays[hop], hop)
    return _dead_letter(plan, "no retry is left")


def next_step_early(plan: RetryPlan, hop: int) -> Decision:
    """What a record in back-off does to make room: its next retry topic, or WAIT (hold its partition)."""
    if not plan.strict_order and 0 <= hop < len(plan.retry_delays):
        return Decision(Step.RETRY_TOPIC, plan.retry_delays[hop], hop, "taken early to make room")
    return Decision(Step.WAIT, note="no retry topic is left in the plan: it keeps its place")


def validate_plan(plan: RetryPlan) -> list[str]:
    """What is wrong with ``plan``, a sentence each that names the setting. Empty when nothing is."""
    problems: list[str] = []
    if not _is_int(plan.in_place_attempts) or plan.in_place_attempts < 1:
        problems.append(f"in_place_attempts is {plan.in_place_attempts!r}: give a whole number of 1 or more")
    for name, least in (
        ("backoff_base", 0.0),
        ("backoff_factor", 1.0),
        ("backoff_cap", 0.0),
        ("unavailable_cap", 0.0),
    ):
        value = getattr(plan, name)
        if not _is_number(value) or not least <= value <= MAX_DELAY:
            problems.append(f"{name} is {value!r}: give a number from {least:g} to {MAX_DELAY:g}")
    problems.extend(
        f"retry_delays has {value!r}: each is a number of seconds above 0 and at most a year"
        for value in plan.retry_delays
        if not _is_number(value) or not 0 < value <= _MAX_RETRY_DELAY
    )
    if len(set(plan.retry_delays)) != len(plan.retry_delays):
        problems.append(
            "retry_delays has one delay twice: each names a topic of its own, so make them differ"
        )
    if plan.strict_order and plan.retry_delays:
        problems.append(
            "strict_order=True does every retry in place, so it can't be used together with retry topics: "
            "set retry_delays=() or leave strict_order out"
        )
    if plan.max_attempts is not None and (not _is_int(plan.max_attempts) or plan.max_attempts < 1):
        problems.append(f"max_attempts is {plan.max_attempts!r}: give a whole number of 1 or more, or None")
    if plan.max_age is not None and (not _is_number(plan.max_age) or not 0 < plan.max_age < math.inf):
        problems.append(f"max_age is {plan.max_age!r}: give a number of seconds above 0, or None")
    if plan.delay is not None and (not callable(plan.delay) or inspect.iscoroutinefunction(plan.delay)):
        problems.append(
            "delay is not a plain function: give one of (attempt, failure) that returns seconds, not async"
        )
    return problems


def classify(error: BaseException, rules: ErrorRules) -> Failure:
    """Describe ``error`` and say of what kind it is. Never raises.

    A class that carries ``streamloop_kind`` and is not listed itself decides by itself, whatever its causes.
    Otherwise the error, its ``__cause__`` and the members of exception groups all count, the worst first:
    FATAL, PERMANENT, UNAVAILABLE, TRANSIENT. For a group the member that decided is described, otherwise the
    error itself.
    """
    try:
        return _classify(error, rules)
    except Exception:  # noqa: BLE001 - a hostile class (metaclass, descriptors) must not stop the engine
        return Failure(Kind.TRANSIENT, "unknown", UNPRINTABLE, _digest("unknown", UNPRINTABLE, ""))


@dataclass(frozen=True, slots=True)
class _Seen:
    """An error met on the walk:

    its kind, how sure that is (2 says so itself, 1 listed, 0 default), what to report.
    """

    error: BaseException
    kind: Kind
    certainty: int
    reported: BaseException


# Read through the base class: a subclass may shadow these names with something that raises or lies.
_cause: Final[Any] = BaseException.__dict__["__cause__"].__get__
_traceback: Final[Any] = BaseException.__dict__["__traceback__"].__get__
_members: Final[Any] = BaseExceptionGroup.__dict__["exceptions"].__get__
_mro: Final[Any] = type.__dict__["__mro__"].__get__


def _classify(error: BaseException, rules: ErrorRules) -> Failure:
    decisive = _decisive(error, rules)
    reported = decisive.reported
    error_class = name_of_class(type(reported))
    text = _text(reported)
    if not text:
        text = _text_of_causes(reported)
    after = getattr(decisive.error, "after", None) if decisive.certainty == 2 else None
    dependency = getattr(decisive.error, "dependency", None) if decisive.certainty == 2 else None
    return Failure(
        kind=decisive.kind,
        error_class=error_class,
        message=_cut(text, ERROR_MESSAGE_BYTES),
        fingerprint=_digest(error_class, _normalised(text), _place(reported)),
        after=float(min(after, MAX_DELAY)) if _is_number(after) and after >= 0 else None,
        dependency=_cut(dependency, ERROR_CLASS_BYTES)
        if isinstance(dependency, str) and dependency
        else None,
    )


def _decisive(error: BaseException, rules: ErrorRules) -> _Seen:
    best: _Seen | None = None
    seen: set[int] = set()
    stack: list[tuple[BaseException, BaseException]] = [(error, error)]
    while stack and len(seen) < _MAX_ERRORS_SEEN:
        current, reported = stack.pop()
        if id(current) in seen:
            continue
        seen.add(id(current))
        kind, certainty = _kind_of(type(current), rules)
        is_group = issubclass(type(current), BaseExceptionGroup)
        # An unlisted group says nothing of its own: only its members do.
        if not (is_group and certainty == 0):
            found = _Seen(current, kind, certainty, reported)
            if best is None or _rank(found) > _rank(best):
                best = found
        if certainty == 2:
            if current is error:
                break
            continue  # it decided in full knowledge of what it was raised from
        cause = _cause(current)
        if cause is not None:
            stack.append((cause, reported))
        if is_group:
            members = _members(current)
            stack.extend((each, each if reported is current else reported) for each in reversed(members))
    return best if best is not None else _Seen(error, Kind.TRANSIENT, 0, error)


def _rank(seen: _Seen) -> tuple[int, int]:
    return _SEVERITY[seen.kind], seen.certainty


def _kind_of(error_type: type[BaseException], rules: ErrorRules) -> tuple[Kind, int]:
    listed = (
        (rules.fatal, Kind.FATAL),
        (rules.permanent, Kind.PERMANENT),
        (rules.unavailable, Kind.UNAVAILABLE),
        (rules.transient, Kind.TRANSIENT),
    )
    for each in _mro(error_type):
        for classes, kind in listed:
            if any(each is candidate for candidate in classes):
                return kind, 1
        own = each.__dict__.get("streamloop_kind")
        if isinstance(own, Kind):
            return own, 2
        if each in _BUILT_IN:
            return _BUILT_IN[each], 1
    return Kind.TRANSIENT, 0


def name_of_class(error_type: type[BaseException]) -> str:
    """The qualified name of an exception class, as failures of it bear it."""
    module, name = error_type.__module__, error_type.__qualname__
    if not isinstance(module, str) or not isinstance(name, str):
        return "unknown"
    return _cut(f"{module}.{name}", ERROR_CLASS_BYTES)


def _text(error: BaseException) -> str:
    try:
        # A slice through str itself is a plain str, even when __str__ returned a subclass; and bounded.
        return str.__getitem__(str(error), slice(0, _FINGERPRINT_CHARACTERS))
    except BaseException:  # noqa: BLE001 - printing an error must never be a second one
        return UNPRINTABLE


def _text_of_causes(error: BaseException) -> str:
    seen = {id(error)}
    cause = _cause(error)
    while cause is not None and id(cause) not in seen and len(seen) < _MAX_ERRORS_SEEN:
        text = _text(cause)
        if text:
            return f"{type(cause).__qualname__}: {text}"
        seen.add(id(cause))
        cause = _cause(cause)
    return ""


def _cut(text: str, limit: int) -> str:
    """``text`` in at most ``limit`` bytes of UTF-8, cut at a character, lone surrogates escaped."""
    encoded = text[:limit].encode("utf-8", "backslashreplace")
    return encoded[:limit].decode("utf-8", "ignore")


_VARYING: Final = re.compile(
    r"""(?P<text>(?<!\w)(?:'[^']*'|"[^"]*"))"""
    r"|(?P<id>\b[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b)"
    r"|(?P<hex>\b0[xX][0-9a-fA-F]+|\b(?=[a-fA-F]*[0-9])[0-9a-fA-F]{8,}\b)"
    r"|(?P<n>[0-9]+(?:\.[0-9]+)?)"
)
"""What differs between alike errors. Every alternative is linear: a slow pattern would hold all threads."""


def _normalised(text: str) -> str:
    return _VARYING.sub(lambda match: f"<{match.lastgroup}>", text)[:_FINGERPRINT_CHARACTERS]


def _place(error: BaseException) -> str:
    """module:function of the innermost frame in the user's own code, or of the innermost frame there is."""
    own = installed = anything = ""
    traceback = _traceback(error)
    for _ in range(_MAX_FRAMES):
        if traceback is None:
            break
        frame = traceback.tb_frame
        module = str(frame.f_globals.get("__name__", "?"))
        anything = f"{module}:{frame.f_code.co_qualname}"
        top = module.partition(".")[0]
        if top != "streamloop" and top not in sys.stdlib_module_names:
            installed = anything
            if not re.search(r"[/\\](?:site|dist)-packages[/\\]", frame.f_code.co_filename):
                own = anything
        traceback = traceback.tb_next
    return own or installed or anything


def _digest(error_class: str, text: str, place: str) -> str:
    material = "\n".join((error_class, text, place)).encode("utf-8", "backslashreplace")
    return hashlib.blake2b(material, digest_size=8).hexdigest()


def fingerprint_of(error_class: str, message: str) -> str:
    """The fingerprint of an error of which only the texts are known (another program's): 16 hex digits."""
    return _digest(error_class, _normalised(message), "")


def _again(
    plan: RetryPlan, failure: Failure, attempt: int, in_place: int, uniform: Callable[[], float]
) -> Decision:
    if failure.after is not None:
        return Decision(Step.AGAIN, min(failure.after, MAX_DELAY))
    note = ""
    if plan.delay is not None:
        asked, note = _asked_delay(plan.delay, attempt, failure)
        if asked is not None:
            return Decision(Step.AGAIN, asked)
    return Decision(
        Step.AGAIN, _backoff(plan, plan.backoff_base, plan.backoff_cap, in_place, uniform), note=note
    )


def _asked_delay(
    delay: Callable[[int, Failure], object], attempt: int, failure: Failure
) -> tuple[float | None, str]:
    try:
        value = delay(attempt, failure)
        if _is_number(value) and 0 <= value <= MAX_DELAY:
            return float(value), ""
        if inspect.iscoroutine(value):
            value.close()
        problem = f"returned {_shown(value)}, which is no number of seconds from 0 to {MAX_DELAY:.0f}"
    except BaseException as error:  # noqa: BLE001 - the user's function must not stop the engine
        problem = f"raised {name_of_class(type(error))}"
    return None, f"the delay function {problem}: the default delay is used"


def _shown(value: object) -> str:
    return f"{value:g}" if isinstance(value, float) else f"a value of type {type(value).__qualname__}"


def _backoff(plan: RetryPlan, base: float, cap: float, count: int, uniform: Callable[[], float]) -> float:
    try:
        ceiling = min(cap, base * plan.backoff_factor ** max(0, count - 1))
    except OverflowError:
        ceiling = cap
    return uniform() * ceiling


def _dead_letter(plan: RetryPlan, why: str) -> Decision:
    if plan.dead_letter:
        return Decision(Step.DEAD_LETTER, note=why)
    return Decision(
        Step.HALT,
        note=f"{why}, and dead_letter is False: set dead_letter=True on this consumer to move it out",
    )


def _is_int(value: object) -> TypeGuard[int]:
    return isinstance(value, int) and not isinstance(value, bool)


def _is_number(value: object) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)
