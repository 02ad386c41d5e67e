"""Coroutine handlers, on the event loop.

Workers live for ever and pull from a ready queue: no task, no timer and no lock for each message. Each
handler runs in a fresh copy of the base context, inside its worker's task, so that asyncio.timeout, TaskGroup
and current_task work in it and no context variable leaks from one message to the next. Time-outs come from
one scan. A worker that has nothing ready has the engine take what is done before it sleeps, so that handlers
that never wait run without a turn of the event loop for each message.
"""

from __future__ import annotations

import asyncio
import types
from collections import deque
from typing import TYPE_CHECKING, Any, Final

from streamloop.message import Message
from streamloop.runners.base import (
    TIMEOUT,
    Handler,
    Runner,
    Sink,
    Slot,
    fail_undecoded,
    failure_in,
    restore,
    timed_out,
)

if TYPE_CHECKING:
    from collections.abc import Awaitable, Coroutine, Generator
    from contextvars import Context

    from streamloop.engine.record import Record
    from streamloop.message import Host
    from streamloop.telemetry.tracing import AnyAttempt, Tracing

SLICE: Final = 0.002
"""Seconds that one worker may run handlers that never wait before it lets the event loop turn."""


@types.coroutine
def turn() -> Generator[None, None, None]:
    """Let the event loop turn once."""
    yield


@types.coroutine
def drive(coroutine: Coroutine[Any, Any, Any], context: Context, waited: Any) -> Generator[Any, Any, Any]:
    """Go on with a coroutine that has made its first step, each step in ``context``.

    ``waited`` is what the first step yielded. What is thrown into this generator (a cancellation) reaches the
    coroutine; what the coroutine returns or raises comes out here.
    """
    run, send, throw = context.run, coroutine.send, coroutine.throw
    while True:
        try:
            sent = yield waited
        except BaseException as error:  # noqa: BLE001 - it is the coroutine's to handle
            try:
                waited = run(throw, error)
            except StopIteration as stop:
                return stop.value
        else:
            try:
                waited = run(send, sent)
            except StopIteration as stop:
                return stop.value


class AsyncRunner(Runner):
    """Runs ``async def`` handlers."""

    def __init__(self, handler: Handler, sink: Sink, host: Host, tracing: Tracing | None = None) -> None:
        super().__init__(handler, sink, host, tracing)
        self._idle: deque[asyncio.Future[None]] = deque()
        self._waiting = 0
        """Workers whose handler (or publish) waits: they take nothing from the ready queue now."""
        self._loop = asyncio.get_running_loop()

    def dispatch(self, records: list[Record]) -> None:
        """Run these as workers become free."""
        self._ready.extend(records)
        # One that is on its way to the queue wakes the others when its handler waits.
        if self._waiting + len(self._idle) == len(self._slots):
            self._wake(1)

    def _wake(self, wanted: int) -> None:
        idle = self._idle
        while wanted > 0 and idle:
            sleeper = idle.popleft()
            if not sleeper.done():
                sleeper.set_result(None)
                wanted -= 1
        if wanted > 0:
            self._hire(wanted)

    def _hire(self, wanted: int) -> None:
        for _ in range(min(wanted, self.handler.concurrency - len(self._slots))):
            slot = Slot()
            self._slots.append(slot)
            slot.task = self._loop.create_task(
                self._work(slot), name=f"streamloop-{self.handler.name}-{len(self._slots)}"
            )

    async def _work(self, slot: Slot) -> None:
        handler, sink, host, ready = self.handler, self._sink, self._host, self._ready
        call, wants_message, timeout = handler.call, handler.wants_message, handler.timeout
        decode, is_raw = handler.decoder.decode, handler.decoder.is_raw
        fresh_context = handler.context.copy
        tracing = self._tracing
        begin = tracing.begin if tracing is not None else None
        attempt: AnyAttempt | None = None
        observe, observe_failed = self.durations.observe, self.failed_durations.observe
        done, clock = sink.done, self._clock
        task = slot.task
        now = slice_start = clock()
        message: Message | None = None
        while True:
            if not ready:
                if done:
                    sink.flush()
                if not ready:
                    if self._stopping:
                        return
                    await self._sleep(task)
                    now = slice_start = clock()
                    continue
            if now - slice_start > SLICE:
                await self._turn(task)
                now = slice_start = clock()
                continue
            record = ready.popleft()
            value = record.message.value()
            if value is None or not is_raw:
                try:
                    value = decode(value)
                except BaseException as error:  # noqa: BLE001 - whatever it is, the loop goes on
                    fail_undecoded(record, error, handler, sink, now, tracing)
                    continue
            if not record.begin(now):
                sink.unstarted.append(record)
                sink.soon()
                continue
            context = fresh_context()
            if begin is not None:
                attempt = begin(record, context)
            failure: BaseException | None = None
            rest: Awaitable[Any] | None = None
            try:
                if wants_message:
                    message = Message(record, host, now + timeout)
                    coroutine = call(value, message)
                else:
                    coroutine = call(value)
                waited = context.run(coroutine.send, None)
            except StopIteration as stop:
                if stop.value is None and (message is None or not message.publishes_on_success):
                    # It has returned and never waited: the short way, of nearly all of what is fast.
                    done.append(record)
                    end = clock()
                    observe(end - now)
                    if attempt is not None and attempt.sampled:
                        tracing.returned(attempt, end - now, self.durations)  # type: ignore[union-attr]
                    now = end
                    continue
                failure = failure_in(stop.value)
            except BaseException as error:  # noqa: BLE001 - a handler may raise anything
                failure = error
            else:
                rest = drive(coroutine, context, waited)
                slot.coroutine = coroutine
            if failure is None:
                failure = await self._see_through(slot, record, message, rest, now)
                slice_start = clock()
            message = None
            end = clock()
            if failure is not None:
                self._fail(record, failure, attempt, end - now)
                observe_failed(end - now)
            else:
                observe(end - now)
                if attempt is not None and attempt.sampled:
                    tracing.returned(attempt, end - now, self.durations)  # type: ignore[union-attr]
            done.append(record)
            now = end
            sink.soon()
            if not ready:
                # Others come back in the same turn: the engine takes them all at once, and hands out as many.
                await self._turn(task)
                now = slice_start = clock()

    async def _see_through(
        self,
        slot: Slot,
        record: Record,
        message: Message | None,
        rest: Awaitable[Any] | None,
        now: float,
    ) -> BaseException | None:
        """Wait for a handler, and for what it publishes on success. Returns what it failed of.

        All of it is within the time-out: a topic that takes nothing can't keep a worker for ever.
        """
        failure: BaseException | None = None
        slot.begin([record], None if message is None else [message], now, self.handler.timeout)
        self._waiting += 1
        if self._ready:
            self._wake(len(self._ready))
        try:
            if rest is not None:
                failure = failure_in(await rest)
            if message is not None and failure is None and message.publishes_on_success:
                await asyncio.gather(*map(self._host.publish, message.take_on_success()))
        except GeneratorExit:
            raise
        except BaseException as error:  # noqa: BLE001 - a handler may raise anything
            failure = error
        self._waiting -= 1
        return self._ended(slot, failure)

    async def _turn(self, task: asyncio.Task[None] | None) -> None:
        try:
            await turn()
        except asyncio.CancelledError:
            restore(task)

    async def _sleep(self, task: asyncio.Task[None] | None) -> None:
        sleeper = self._loop.create_future()
        self._idle.append(sleeper)
        try:
            await sleeper
        except asyncio.CancelledError:
            restore(task)

    def _ended(self, slot: Slot, failure: BaseException | None) -> BaseException | None:
        """The handler is back: restore the task, and say what its end means when it was asked to stop."""
        restore(slot.task)
        asked = slot.end()
        if not asked:
            return failure
        if isinstance(failure, asyncio.CancelledError):
            return timed_out(self.handler, slot) if asked == TIMEOUT else failure
        # It swallowed the cancellation, and what it then returned or raised counts.
        self.counts.cancel_ignored += 1
        return failure

    def _interrupt(self, slot: Slot) -> None:
        assert slot.task is not None
        slot.task.cancel()

    async def close(self) -> None:
        """End the idle workers."""
        self._stopping = True
        self._wake(len(self._idle))
        tasks = [slot.task for slot in self._slots if slot.records is None and slot.task is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=1.0)
