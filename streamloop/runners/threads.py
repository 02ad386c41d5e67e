"""Plain functions, in threads of our own.

The threads are daemons and not an executor's: those keep a process from exiting until they return. Each
handler runs in a fresh copy of the base context. A thread can't be interrupted: at its time-out a handler is
asked through ``message.cancelled``, and its lane and place stay taken until it is back.
"""

from __future__ import annotations

import asyncio
import queue
import threading
from collections import deque
from typing import TYPE_CHECKING, Any, TypeVar

from streamloop.runners.base import (
    Handler,
    Runner,
    Sink,
    Slot,
    fail_undecoded,
    failure_in,
    make_message,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextvars import Context

    from streamloop.engine.record import Record
    from streamloop.message import Host, Message
    from streamloop.telemetry.tracing import AnyAttempt, Tracing


T = TypeVar("T")


class _Job:
    """One call: made on the event loop, run in a thread, and taken back on the event loop."""

    __slots__ = ("attempt", "context", "error", "message", "record", "seconds", "slot", "value")

    def __init__(
        self,
        slot: Slot,
        record: Record,
        value: object,
        message: Message | None,
        context: Context,
        attempt: AnyAttempt | None,
    ) -> None:
        self.slot = slot
        self.record = record
        self.value = value
        self.message = message
        self.context = context
        self.attempt = attempt
        self.error: BaseException | None = None
        self.seconds = 0.0


class ThreadRunner(Runner):
    """Runs ``def`` handlers."""

    in_threads = True

    def __init__(
        self,
        handler: Handler,
        sink: Sink,
        host: Host,
        loop: asyncio.AbstractEventLoop,
        tracing: Tracing | None = None,
    ) -> None:
        super().__init__(handler, sink, host, tracing)
        self._loop = loop
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()
        self._results: deque[_Job] = deque()
        self._scheduled = False
        self._free: list[Slot] = []

    def dispatch(self, records: list[Record]) -> None:
        """Run these, in this order, as threads become free."""
        self._ready.extend(records)
        self._start()

    def _start(self) -> None:
        handler, ready, sink, tracing = self.handler, self._ready, self._sink, self._tracing
        while ready:
            if not self._free and len(self._slots) >= handler.concurrency:
                return
            record = ready.popleft()
            value = record.message.value()
            try:
                if value is None or not handler.decoder.is_raw:
                    value = handler.decoder.decode(value)
            except BaseException as error:  # noqa: BLE001 - whatever it is, the loop goes on
                fail_undecoded(record, error, handler, sink, self._clock(), tracing)
                continue
            now = self._clock()
            if not record.begin(now):
                sink.unstarted.append(record)
                sink.soon()
                continue
            slot = self._free.pop() if self._free else self._hire()
            message = make_message(record, handler, self._host, now) if handler.wants_message else None
            slot.begin([record], [message] if message is not None else None, now, handler.timeout)
            context = handler.context.copy()
            attempt = None if tracing is None else tracing.begin(record, context)
            self._jobs.put(_Job(slot, record, value, message, context, attempt))

    def _hire(self) -> Slot:
        slot = Slot()
        self._slots.append(slot)
        thread = threading.Thread(
            target=self._serve, name=f"streamloop-{self.handler.name}-{len(self._slots)}", daemon=True
        )
        thread.start()
        return slot

    # ------------------------------------------------------------------------------------ in the threads

    def _serve(self) -> None:
        call: Callable[..., Any] = self.handler.call
        while (job := self._jobs.get()) is not None:
            job.slot.thread = threading.get_ident()
            start = self._clock()
            try:
                if job.message is None:
                    job.error = failure_in(job.context.run(call, job.value))
                else:
                    job.error = failure_in(job.context.run(call, job.value, job.message))
                    if job.error is None and job.message.publishes_on_success:
                        job.message.publish_what_is_left()
            except BaseException as error:  # noqa: BLE001 - a handler may raise anything
                job.error = error
            job.seconds = self._clock() - start
            self._results.append(job)
            if not self._scheduled:
                self._scheduled = True
                try:
                    self._loop.call_soon_threadsafe(self._take)
                except RuntimeError:
                    return  # the event loop has ended: the run is over, and nobody waits for this result

    # --------------------------------------------------------------------------------- on the event loop

    def _take(self) -> None:
        self._scheduled = False
        results, sink = self._results, self._sink
        while results:
            job = results.popleft()
            slot = job.slot
            error = job.error
            if slot.end() and error is None:
                self.counts.cancel_ignored += 1
            self._free.append(slot)
            if error is not None:
                self._fail(job.record, error, job.attempt, job.seconds)
                self.failed_durations.observe(job.seconds)
            else:
                self.durations.observe(job.seconds)
                if job.attempt is not None and job.attempt.sampled:
                    assert self._tracing is not None
                    self._tracing.returned(job.attempt, job.seconds, self.durations)
            sink.done.append(job.record)
        sink.soon()
        self._start()

    def _interrupt(self, slot: Slot) -> None:
        """A thread can't be interrupted."""

    async def close(self) -> None:
        """End the idle threads; one whose handler still runs ends with the process."""
        for _ in self._slots:
            self._jobs.put(None)


def call_in_thread(
    loop: asyncio.AbstractEventLoop,
) -> Callable[[Callable[[], Any], Slot], asyncio.Future[Any]]:
    """For batches of plain functions: run a call in a daemon thread of its own, and give its future.

    A batch is large, so that a thread for each costs little.
    """

    def call(function: Callable[[], Any], slot: Slot) -> asyncio.Future[Any]:
        future: asyncio.Future[Any] = loop.create_future()

        def settle(result: object, error: BaseException | None) -> None:
            if future.done():
                return
            if error is not None:
                future.set_exception(error)
            else:
                future.set_result(result)

        def serve() -> None:
            slot.thread = threading.get_ident()
            result: object = None
            error: BaseException | None = None
            try:
                result = function()
            except StopIteration as stop:
                error = RuntimeError(f"the handler raised StopIteration: {stop}")
            except BaseException as raised:  # noqa: BLE001 - a handler may raise anything
                error = raised
            try:
                loop.call_soon_threadsafe(settle, result, error)
            except RuntimeError:
                return  # the event loop has ended: the run is over, and nobody waits for this result

        threading.Thread(target=serve, name="streamloop-batch", daemon=True).start()
        return future

    return call


async def in_daemon_thread(function: Callable[[], T]) -> T:
    """Run a blocking call in a daemon thread: unlike an executor's, it can't keep the process."""
    return await call_in_thread(asyncio.get_running_loop())(function, Slot())  # type: ignore[no-any-return]
