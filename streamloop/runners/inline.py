"""Cheap plain functions, on the event loop (``runner="inline"``).

Nothing else runs while such a handler does, so that it must not wait; a time-out can't interrupt it, and the
watchdog reports one that blocks the loop.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from streamloop.runners.aio import SLICE, turn
from streamloop.runners.base import (
    TIMEOUT,
    Handler,
    Runner,
    Sink,
    Slot,
    fail_undecoded,
    failure_in,
    make_message,
    timed_out,
)

if TYPE_CHECKING:
    from streamloop.engine.record import Record
    from streamloop.message import Host, Message
    from streamloop.telemetry.tracing import AnyAttempt, Tracing


class InlineRunner(Runner):
    """Runs ``def`` handlers one after the other on the event loop."""

    def __init__(self, handler: Handler, sink: Sink, host: Host, tracing: Tracing | None = None) -> None:
        super().__init__(handler, sink, host, tracing)
        self._slots.append(Slot())
        self._sleeper: asyncio.Future[None] | None = None
        self._loop = asyncio.get_running_loop()
        self._task = self._loop.create_task(self._work(), name=f"streamloop-{handler.name}")
        self._slots[0].task = self._task

    def dispatch(self, records: list[Record]) -> None:
        """Run these, in this order."""
        self._ready.extend(records)
        if self._sleeper is not None and not self._sleeper.done():
            self._sleeper.set_result(None)

    async def _work(self) -> None:
        handler, sink, ready, done = self.handler, self._sink, self._ready, self._sink.done
        slice_start = self._clock()
        while True:
            if not ready:
                if done:
                    sink.flush()
                if not ready:
                    if self._stopping:
                        return
                    self._sleeper = self._loop.create_future()
                    await self._sleeper
                    slice_start = self._clock()
                    continue
            now = self._clock()
            if now - slice_start > SLICE:
                await turn()
                slice_start = self._clock()
                continue
            self._run(handler, ready.popleft(), now)

    def _run(self, handler: Handler, record: Record, now: float) -> None:
        sink = self._sink
        value = record.message.value()
        try:
            if value is None or not handler.decoder.is_raw:
                value = handler.decoder.decode(value)
        except BaseException as error:  # noqa: BLE001 - whatever it is, the loop goes on
            fail_undecoded(record, error, handler, sink, now, self._tracing)
            return
        if not record.begin(now):
            sink.unstarted.append(record)
            sink.soon()
            return
        message: Message | None = None
        failure: BaseException | None
        slot = self._slots[0]
        slot.begin([record], None, now, handler.timeout)
        context = handler.context.copy()
        attempt = None if self._tracing is None else self._tracing.begin(record, context)
        try:
            if handler.wants_message:
                message = make_message(record, handler, self._host, now)
                failure = failure_in(context.run(handler.call, value, message))
            else:
                failure = failure_in(context.run(handler.call, value))
        except BaseException as error:  # noqa: BLE001 - a handler may raise anything
            failure = error
        slot.end()
        if message is not None and failure is None and message.publishes_on_success:
            # Others go on meanwhile; how many wait is bounded by the concurrency, as the engine counts it.
            waiting = Slot()
            waiting.begin([record], [message], now, handler.timeout)
            self._slots.append(waiting)
            waiting.task = self._loop.create_task(self._publish(waiting, message, attempt))
        else:
            self._done(record, failure, now, attempt)

    async def _publish(self, slot: Slot, message: Message, attempt: AnyAttempt | None) -> None:
        """What is published on success, within the time-out."""
        failure: BaseException | None = None
        try:
            await asyncio.gather(*map(self._host.publish, message.take_on_success()))
        except BaseException as error:  # noqa: BLE001 - the message has failed
            failure = error
        assert slot.records is not None
        record, started = slot.records[0], slot.started
        if slot.end() == TIMEOUT and isinstance(failure, asyncio.CancelledError):
            failure = timed_out(self.handler, slot)
        self._slots.remove(slot)
        self._done(record, failure, started, attempt)

    def _done(
        self, record: Record, failure: BaseException | None, started: float, attempt: AnyAttempt | None
    ) -> None:
        seconds = self._clock() - started
        if failure is not None:
            self._fail(record, failure, attempt, seconds)
            self.failed_durations.observe(seconds)
        else:
            self.durations.observe(seconds)
            if attempt is not None and attempt.sampled:
                assert self._tracing is not None
                self._tracing.returned(attempt, seconds, self.durations)
        self._sink.done.append(record)
        self._sink.soon()

    def _interrupt(self, slot: Slot) -> None:
        """Nothing that runs on the loop can be interrupted (the watchdog sees it); a publish can."""
        if slot is not self._slots[0] and slot.task is not None:
            slot.task.cancel()

    async def close(self) -> None:
        """End the worker."""
        self._stopping = True
        if self._sleeper is not None and not self._sleeper.done():
            self._sleeper.set_result(None)
        await asyncio.wait([self._task], timeout=1.0)
