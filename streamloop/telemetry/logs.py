"""What a run logs of messages: outcomes at INFO, state changes and turns at DEBUG; and what all logs avoid.

The level is asked once for each batch. At INFO a batch gets a few looks, at most ``PER_SECOND`` lines a
second for each outcome; what is left out is counted in the next line. At DEBUG the batch's records become
records that log each change of their state: nothing is paid for it otherwise. No payload is ever logged, a
key only when asked for. Called by the core on the event loop; ``printable`` and ``Repeats`` by whatever logs.
"""

from __future__ import annotations

import logging
import re
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from streamloop.engine import events as ev
from streamloop.engine.record import Record
from streamloop.engine.states import State

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from streamloop.engine.events import Effect, Event
    from streamloop.engine.retry import Failure

log = logging.getLogger("streamloop.messages")
states = logging.getLogger("streamloop.states")
turns = logging.getLogger("streamloop.turns")

PER_SECOND: Final = 10
"""Lines a second for each outcome."""
LOOKED_AT: Final = 64
"""Messages of one batch that are looked at: most batches are not larger."""
LONGEST_KEY: Final = 100

_HARMFUL: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]"
)
"""Control characters, what reorders or hides text on a terminal, line separators, lone surrogates."""
_SHORT: Final = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def printable(text: str) -> str:
    """The text with everything escaped that a terminal would obey instead of show."""
    return _HARMFUL.sub(_escape, text)


def _escape(match: re.Match[str]) -> str:
    character = match[0]
    code = ord(character)
    return _SHORT.get(character) or (f"\\x{code:02x}" if code < 0x100 else f"\\u{code:04x}")


def shown_key(key: bytes | None) -> str | None:
    """A message's key for a log line: bounded, and harmless."""
    if key is None:
        return None
    return printable(key[:LONGEST_KEY].decode("utf-8", "backslashreplace"))


# -------------------------------------------------------------------------------------------- state changes

_state: Final[Any] = Record.__dict__["state"]


class LoggedRecord(Record):
    """A record that logs each change of its state. A Record becomes one by its class being changed."""

    __slots__ = ()

    @property
    def state(self) -> State:
        """Where the message is."""
        state: State = _state.__get__(self)
        return state

    @state.setter
    def state(self, state: State) -> None:
        before = _state.__get__(self)
        _state.__set__(self, state)
        part = getattr(self, "part", None)
        fields: dict[str, Any] = {"kind": "state", "offset": self.offset, "state": state.name}
        where = f"offset {self.offset}"
        if part is not None:
            name = part.name
            fields |= {"topic": name.topic, "partition": name.partition, "attempt": self.attempt}
            where = f"{name.topic}/{name.partition}/{self.offset}"
        if before is State.PROCESSING:
            fields["duration_ms"] = round((time.monotonic() - self.started) * 1000, 3)
        states.debug("%s: %s -> %s", where, before.name, state.name, extra=fields)


# -------------------------------------------------------------------------------------------------- turns


@dataclass(slots=True)
class _Allowance:
    """Lines that may still be written this second, and what was left out since the last one."""

    until: float = 0.0
    lines: int = 0
    left_out: int = 0

    def room(self, now: float) -> int:
        if now >= self.until:
            self.until = now + 1.0
            self.lines = PER_SECOND
        return self.lines

    def take(self, now: float) -> bool:
        if self.room(now) <= 0:
            return False
        self.lines -= 1
        return True


@dataclass(slots=True)
class _Seen:
    """A message whose attempt ended, as it was before the turn."""

    record: Record
    before: State
    attempt: int
    failure: Failure | None
    ids: dict[str, str]
    """Its trace, where messages are traced."""


@dataclass(slots=True)
class _Turn:
    """What is kept of a turn from its start to its end."""

    now: float
    began: float
    seen: list[_Seen] = field(default_factory=list)
    more: int = 0
    """Messages that ended and were not looked at."""
    events: int = 0


class StepLog:
    """Logs the turns of one core. ``keys``: show the messages' keys."""

    def __init__(self, *, keys: bool = False) -> None:
        self.keys = keys
        self.ids: Callable[[Record, Failure | None], dict[str, str]] | None = None
        """The trace of a message, where messages are traced."""
        self._allowances: dict[str, _Allowance] = {}

    def before(self, now: float, events: Sequence[Event]) -> _Turn | None:
        """A turn begins. None: there is nothing to log about it."""
        if states.isEnabledFor(logging.DEBUG):
            for event in events:
                if type(event) is ev.Fetched:
                    self._watch(event)
        debug = turns.isEnabledFor(logging.DEBUG)
        if not debug and not (events and log.isEnabledFor(logging.INFO)):
            return None
        turn = _Turn(now, time.monotonic(), events=len(events))
        for event in events:
            if type(event) is ev.Finished:
                self._look(turn, event.records)
            elif type(event) is ev.Published:
                record = event.record
                # Its attempt is over and counted: ``record.attempt`` is the next one's number.
                turn.seen.append(self._see(record, None, record.attempt - 1))
        if debug and events:
            turns.debug("turn: %s", _named(events), extra={"kind": "turn_start", "events": len(events)})
        return turn

    def _look(self, turn: _Turn, records: list[Record]) -> None:
        """Keep those of which a line may be written: most have succeeded, and have no room left."""
        room = self._allowance("acked").room(turn.now)
        looked_at = records[:LOOKED_AT]
        failed = [record for record in looked_at if record.failure is not None]
        chosen = failed
        if room > 0:
            chosen = failed + [record for record in looked_at if record.failure is None][:room]
        turn.seen += [self._see(each, each.failure, each.attempt) for each in chosen]
        turn.more += len(records) - len(chosen)

    def _see(self, record: Record, failure: Failure | None, attempt: int) -> _Seen:
        ids = self.ids(record, failure) if self.ids is not None else {}
        return _Seen(record, record.state, attempt, failure, ids)

    def _allowance(self, outcome: str) -> _Allowance:
        return self._allowances.setdefault(outcome, _Allowance())

    def _watch(self, event: ev.Fetched) -> None:
        name = event.partition
        for record in event.records:
            if type(record) is Record:
                record.__class__ = LoggedRecord
            states.debug(
                "%s/%s/%s: FETCHED",
                name.topic,
                name.partition,
                record.offset,
                extra={
                    "kind": "state",
                    "topic": name.topic,
                    "partition": name.partition,
                    "offset": record.offset,
                    "state": "FETCHED",
                },
            )

    def after(self, turn: _Turn, effects: Sequence[Effect]) -> None:
        """The turn is over."""
        for seen in turn.seen:
            self._outcome(seen, turn.now)
        if turn.more:
            self._allowance("acked").left_out += turn.more
        if (turn.events or effects) and turns.isEnabledFor(logging.DEBUG):
            duration = round((time.monotonic() - turn.began) * 1000, 3)
            turns.debug(
                "turn done in %s ms: %s",
                duration,
                _named(effects) or "nothing to do",
                extra={"kind": "turn_end", "effects": len(effects), "duration_ms": duration},
            )

    def _outcome(self, seen: _Seen, now: float) -> None:
        record = seen.record
        outcome = _outcome_of(seen)
        if not outcome:
            return
        allowance = self._allowance(outcome)
        if not allowance.take(now):
            allowance.left_out += 1
            return
        name = record.part.name
        fields: dict[str, Any] = {
            "kind": "outcome",
            "consumer": record.part.consumer.spec.name,
            "topic": name.topic,
            "partition": name.partition,
            "offset": record.offset,
            "attempt": seen.attempt,
            "state": record.state.name,
            "outcome": outcome,
        }
        duration = ""
        if seen.before is State.PROCESSING:
            fields["duration_ms"] = round((now - record.started) * 1000, 3)
            duration = f" in {fields['duration_ms']:g} ms"
        fields |= seen.ids
        if self.keys:
            fields["key"] = shown_key(record.key)
        if allowance.left_out:
            fields["left_out"], allowance.left_out = allowance.left_out, 0
        error = ""
        if seen.failure is not None:
            fields["error_class"] = seen.failure.error_class
            fields["fingerprint"] = seen.failure.fingerprint
            error = f": {seen.failure.error_class}"
        log.info(
            "%s/%s/%s: %s%s%s",
            name.topic,
            name.partition,
            record.offset,
            outcome,
            duration,
            error,
            extra=fields,
        )


def _outcome_of(seen: _Seen) -> str:
    """The outcome in the metrics' words; '' for what is logged elsewhere, or is none."""
    state = seen.record.state
    if state is State.ACKED:
        if seen.before is State.ROUTING_RETRY:
            return "retried"
        if seen.before is State.ROUTING_DEAD:
            return "dead_lettered"
        return "acked" if seen.failure is None else "skipped"
    return "failed" if state is State.BACKOFF and seen.failure is not None else ""


def _named(what: Sequence[object]) -> str:
    """``Fetched x 2, Finished``."""
    counts: dict[str, int] = {}
    for each in what:
        name = type(each).__name__
        counts[name] = counts.get(name, 0) + 1
    return ", ".join(name if count == 1 else f"{name} x {count}" for name, count in counts.items())


# ------------------------------------------------------------------------------------------------ repeats

REPEATS: Final = 10
"""Like lines within the window that are written."""
WINDOW: Final = 10.0
"""Seconds."""
MOST_KINDS: Final = 1_000
OURS: Final = ("streamloop", "opentelemetry", "waitress")


class Repeats(logging.Filter):
    """Leaves out what repeats itself; the next like line says how many were left out (``left_out``).

    Alike are lines of one logger and level with the same text before its arguments, about the same partition.
    Only lines of ours, and of what we run, are ever left out: never the user's.
    """

    def __init__(self) -> None:
        super().__init__()
        self._seen: dict[tuple[Any, ...], list[float]] = {}
        """By kind of line: when its window began, the lines in it, and how many were left out."""

    def filter(self, record: logging.LogRecord) -> bool:
        """Whether the line is written."""
        if record.name.partition(".")[0] not in OURS or record.levelno < logging.INFO:
            return True
        key = (
            record.name,
            record.levelno,
            record.msg,
            getattr(record, "topic", None),
            getattr(record, "partition", None),
        )
        seen = self._seen.get(key)
        if seen is None:
            if len(self._seen) >= MOST_KINDS:
                self._seen.clear()
            seen = self._seen[key] = [record.created, 0.0, 0.0]
        if not 0 <= record.created - seen[0] < WINDOW:
            seen[0], seen[1] = record.created, 0.0
        if seen[1] >= REPEATS:
            seen[2] += 1
            return False
        seen[1] += 1
        if seen[2]:
            record.left_out = int(seen[2]) + getattr(record, "left_out", 0)
            seen[2] = 0.0
        return True
