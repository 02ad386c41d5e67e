"""What all runners share: the handler as declared, where results go, what is running, and durations."""

from __future__ import annotations

import sys
import traceback
from abc import ABC, abstractmethod
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

from streamloop.engine.retry import Failure, Kind, classify
from streamloop.engine.states import State
from streamloop.message import Message, PlainMessage
from streamloop.outcomes import Outcome
from streamloop.telemetry.durations import Durations

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Iterator
    from contextvars import Context

    from streamloop.codecs import Decoder
    from streamloop.engine.record import Record
    from streamloop.engine.retry import ErrorRules
    from streamloop.message import Host
    from streamloop.telemetry.tracing import AnyAttempt, Tracing


@dataclass(slots=True)
class RunnerCounts:
    """Plain integers; read when scraped."""

    timeouts: int = 0
    cancel_ignored: int = 0
    """Handlers that went on after they had been asked to stop."""
    abandoned: int = 0
    """Handlers that were not back within kill_after of their time-out."""


@dataclass(frozen=True, slots=True)
class Handler:
    """One @consumer's handler, ready to be called. Times in seconds."""

    name: str
    call: Callable[..., Any]
    """Called with (value) or (value, message), middleware included."""
    decoder: Decoder
    wants_message: bool
    rules: ErrorRules
    timeout: float
    kill_after: float
    concurrency: int
    context: Context
    """The base context; each message gets a fresh copy of it."""
    batch_size: int = 0
    batch_linger: float = 0.0
    takes_messages: bool = False
    """A batch handler whose only argument is the list of messages."""
    code: object = None
    """The handler's code object, by which it is recognised in a stack."""


class Sink(Protocol):
    """Where runners put what became of records; the engine's next step takes it."""

    done: list[Record]
    """Handlers that ended (``record.failure`` says how), and records that could not be decoded."""
    unstarted: list[Record]
    """Records that may not start any more."""

    def soon(self) -> None:
        """Have the engine take what is there in this turn of the event loop."""

    def flush(self) -> None:
        """Have the engine take what is there now; what it dispatches is in the ready queues on return."""


@dataclass(frozen=True, slots=True)
class Running:
    """A handler that runs, for status, health and logs."""

    consumer: str
    record: Record
    started: float
    deadline: float
    asked_to_stop: bool
    given_up: bool
    """Not back within kill_after of its deadline."""
    thread: int | None
    coroutine: Any

    @property
    def stack(self) -> str:
        """Where it is now, where that can be had (not of what blocks the event loop), or ''.

        Read only when it is shown: a scrape looks at every running handler and needs no stacks.
        """
        return stack_of_thread(self.thread) or stack_of_coroutine(self.coroutine)


TIMEOUT: Final = "timeout"
REVOKED: Final = "revoked"
SHUTDOWN: Final = "shutdown"


class Slot:
    """A place for one running handler (or batch)."""

    __slots__ = (
        "asked",
        "coroutine",
        "deadline",
        "given_up",
        "messages",
        "records",
        "started",
        "task",
        "thread",
        "waits_for",
    )

    def __init__(self) -> None:
        self.task: asyncio.Task[None] | None = None
        self.thread: int | None = None
        """The thread that runs the handler."""
        self.coroutine: Any = None
        """The handler's coroutine, while it waits."""
        self.records: list[Record] | None = None
        self.messages: list[Message] | None = None
        self.started = 0.0
        self.deadline = 0.0
        self.asked = ""
        """Why it was asked to stop: TIMEOUT, REVOKED, SHUTDOWN; '' when it was not."""
        self.given_up = False
        self.waits_for = ""
        """Topics that it waited to have a record in when it was asked to stop."""

    def begin(
        self, records: list[Record], messages: list[Message] | None, now: float, timeout: float
    ) -> None:
        """A handler runs in it."""
        self.records = records
        self.messages = messages
        self.started = now
        self.deadline = now + timeout
        self.asked = ""

    def end(self) -> str:
        """The handler is back; returns why it was asked to stop, or ''."""
        self.records = self.messages = self.coroutine = self.thread = None
        self.given_up = False
        return self.asked


class Runner(ABC):
    """Runs the handler of one consumer. All of it is called on the event loop."""

    in_threads = False
    """Its handlers run in threads, and not on the event loop."""

    def __init__(self, handler: Handler, sink: Sink, host: Host, tracing: Tracing | None = None) -> None:
        self.handler = handler
        self.counts = RunnerCounts()
        self.durations = Durations()
        """Of attempts that returned."""
        self.failed_durations = Durations()
        """Of attempts that failed."""
        self._sink = sink
        self._host = host
        self._tracing = tracing
        self._clock = host.clock
        self._ready: deque[Record] = deque()
        self._slots: list[Slot] = []
        self._stopping = False

    @abstractmethod
    def dispatch(self, records: list[Record]) -> None:
        """Run these, in this order, as workers become free."""

    @abstractmethod
    def _interrupt(self, slot: Slot) -> None:
        """Ask what runs in the slot to stop, beyond ``message.cancelled``."""

    @abstractmethod
    async def close(self) -> None:
        """End the idle workers. Returns soon, whatever still runs."""

    def cancel(self, records: list[Record]) -> None:
        """Ask the handlers of these to stop: their partition has left."""
        wanted = set(records)
        for slot in self._slots:
            if slot.records is None or wanted.isdisjoint(slot.records):
                continue
            for record, message in zip(slot.records, slot.messages or (), strict=False):
                if record in wanted:
                    message.cancelled.set()
            # A batch is asked to stop when all of it has left, its partitions perhaps one after the other.
            if all(record.state is State.REVOKED for record in slot.records):
                self._ask(slot, REVOKED)

    def scan(self, now: float) -> None:
        """Ask what is past its deadline to stop; give up what did not come back. Called every 50 ms."""
        for slot in self._slots:
            if slot.records is None or now < slot.deadline:
                continue
            if not slot.asked:
                self.counts.timeouts += 1
                self._ask(slot, TIMEOUT)
            elif not slot.given_up and now >= slot.deadline + self.handler.kill_after:
                slot.given_up = True
                self.counts.abandoned += 1

    def _fail(self, record: Record, error: BaseException, attempt: AnyAttempt | None, seconds: float) -> None:
        """The attempt has failed: describe how, by the consumer's rules."""
        failure = failure_of(error, self.handler)
        if attempt is not None:
            assert self._tracing is not None
            failure = self._tracing.failed(attempt, record, error, failure, seconds, self.failed_durations)
        record.failure = failure

    def tasks(self) -> Iterator[asyncio.Task[None]]:
        """The workers' tasks. None of them ever ends with an error, unless there is a bug of ours."""
        for slot in self._slots:
            if slot.task is not None:
                yield slot.task

    def next_scan(self) -> float | None:
        """When scan() will have something to do, as far as it is known now; None: nothing runs."""
        return min(
            (
                slot.deadline + (self.handler.kill_after if slot.asked else 0.0)
                for slot in self._slots
                if slot.records is not None and not slot.given_up
            ),
            default=None,
        )

    def stop(self) -> None:
        """Ask all handlers to stop: the drain time is over."""
        for slot in self._slots:
            if slot.records is not None:
                self._ask(slot, SHUTDOWN)

    def _ask(self, slot: Slot, why: str) -> None:
        if slot.asked:
            return
        slot.asked = why
        slot.waits_for = self._host.waits_for(slot.records or ())
        for message in slot.messages or ():
            message.cancelled.set()
        self._interrupt(slot)

    def running(self) -> Iterator[Running]:
        """What runs now."""
        for slot in self._slots:
            for record in slot.records or ():
                yield Running(
                    self.handler.name,
                    record,
                    slot.started,
                    slot.deadline,
                    bool(slot.asked),
                    slot.given_up,
                    slot.thread,
                    slot.coroutine,
                )


def failure_of(error: BaseException, handler: Handler) -> Failure:
    """Describe an exception by the consumer's rules."""
    return classify(error, handler.rules)


def fail_undecoded(
    record: Record,
    error: BaseException,
    handler: Handler,
    sink: Sink,
    now: float,
    tracing: Tracing | None = None,
) -> None:
    """The value can't be decoded: permanent, unless the codec's own dependency failed."""
    failure = classify(error, handler.rules)
    # A permanent one never begins; a record that is not this member's any more is nobody's dead letter here.
    may = record.may_begin(now) if failure.kind is Kind.PERMANENT else record.begin(now)
    if not may:
        sink.unstarted.append(record)
        sink.soon()
        return
    record.failure = failure if tracing is None else tracing.undecodable(record, error, failure)
    sink.done.append(record)
    sink.soon()


class HandlerTimeout(TimeoutError):  # noqa: N818 - a TimeoutError by name and nature
    """The handler did not end within its time-out."""


def timed_out(handler: Handler, slot: Slot) -> HandlerTimeout:
    """The error of a handler that was asked to stop at its time-out."""
    waited = f"; it waited for its publish to {slot.waits_for}" if slot.waits_for else ""
    return HandlerTimeout(
        f"the handler {handler.name} did not end within {handler.timeout:g} s (timeout){waited}"
    )


def failure_in(returned: object) -> Outcome | None:
    """A handler acknowledges by returning; but what says 'reject this' means it, returned or raised."""
    return returned if isinstance(returned, Outcome) else None


def make_message(record: Record, handler: Handler, host: Host, now: float, *, plain: bool = True) -> Message:
    """The handler's view of a record; ``plain``: the handler is a ``def``."""
    return (PlainMessage if plain else Message)(record, host, now + handler.timeout)


def stack_of_thread(ident: int | None) -> str:
    """The Python stack of a thread, or ''."""
    frame = sys._current_frames().get(ident) if ident is not None else None  # noqa: SLF001 - there is no other way
    return "".join(traceback.format_stack(frame)) if frame is not None else ""


MOST_FRAMES: Final = 50


def stack_of_coroutine(coroutine: Any) -> str:
    """Where a coroutine waits: its frame and those of what it awaits, outermost first."""
    lines: list[str] = []
    while coroutine is not None and len(lines) < MOST_FRAMES:
        frame = getattr(coroutine, "cr_frame", None) or getattr(coroutine, "gi_frame", None)
        if frame is None:
            break
        lines += traceback.format_list(traceback.StackSummary.extract([(frame, frame.f_lineno)]))
        coroutine = getattr(coroutine, "cr_await", None) or getattr(coroutine, "gi_yieldfrom", None)
    return "".join(lines)


def restore(task: asyncio.Task[Any] | None) -> None:
    """After a cancellation was taken: the next message must not see it."""
    while task is not None and task.cancelling():
        task.uncancel()
