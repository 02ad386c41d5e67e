"""Batch handlers: at most ``batch_size`` messages at a time, gathered for at most ``batch_linger`` seconds.

A batch holds runs of lanes in offset order, and a lane is in one batch at a time. The handler may return an
outcome for each message; what it raises is the failure of all. One message that can't be decoded fails alone
and the others go on.
"""

from __future__ import annotations

import asyncio
from collections import deque
from typing import TYPE_CHECKING, Any

from streamloop.outcomes import batch_outcomes
from streamloop.runners.aio import drive
from streamloop.runners.base import (
    TIMEOUT,
    Handler,
    Runner,
    Sink,
    Slot,
    fail_undecoded,
    make_message,
    restore,
    timed_out,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextvars import Context

    from opentelemetry.trace import Span

    from streamloop.engine.record import Record
    from streamloop.message import Host, Message
    from streamloop.telemetry.tracing import AnyAttempt, Tracing


class BatchRunner(Runner):
    """Runs handlers that take a list. ``def`` handlers run in a thread each (``call_in_thread``)."""

    def __init__(
        self,
        handler: Handler,
        sink: Sink,
        host: Host,
        tracing: Tracing | None = None,
        *,
        call_in_thread: Callable[[Callable[[], Any], Slot], asyncio.Future[Any]] | None = None,
    ) -> None:
        super().__init__(handler, sink, host, tracing)
        self._call_in_thread = call_in_thread
        self.in_threads = call_in_thread is not None
        self._ready_since = 0.0
        self._idle: deque[asyncio.Future[None]] = deque()
        self._gathering = 0
        self._loop = asyncio.get_running_loop()

    def dispatch(self, records: list[Record]) -> None:
        """Run these as workers become free and a batch is full or has waited long enough."""
        if not self._ready:
            self._ready_since = self._clock()
        self._ready.extend(records)
        self._wake()

    def _wake(self) -> None:
        while self._idle:
            sleeper = self._idle.popleft()
            if not sleeper.done():
                sleeper.set_result(None)
                return
        if not self._gathering and len(self._slots) < self.handler.concurrency:
            slot = Slot()
            self._slots.append(slot)
            slot.task = self._loop.create_task(
                self._work(slot), name=f"streamloop-{self.handler.name}-{len(self._slots)}"
            )

    async def _work(self, slot: Slot) -> None:
        task = slot.task
        while not self._stopping:
            batch = await self._gather(task)
            if batch:
                await self._run(slot, task, batch)
                self._sink.soon()

    async def _gather(self, task: asyncio.Task[None] | None) -> list[Record]:
        """Wait until a batch is full or has waited for the linger; one worker gathers at a time."""
        ready, size = self._ready, self.handler.batch_size
        while not self._stopping:
            if self._gathering and not ready:
                await self._sleep(task, None)
                continue
            self._gathering += 1
            try:
                while ready and len(ready) < size and not self._stopping:
                    left = self._ready_since + self.handler.batch_linger - self._clock()
                    if left <= 0:
                        break
                    await self._sleep(task, left)
                if ready:
                    batch = [ready.popleft() for _ in range(min(size, len(ready)))]
                    self._ready_since = self._clock()
                    return batch
                await self._sleep(task, None)
            finally:
                self._gathering -= 1
        return []

    async def _sleep(self, task: asyncio.Task[None] | None, seconds: float | None) -> None:
        sleeper = self._loop.create_future()
        self._idle.append(sleeper)
        timer = self._loop.call_later(seconds, _wake_up, sleeper) if seconds is not None else None
        try:
            await sleeper
        except asyncio.CancelledError:
            restore(task)
        finally:
            if timer is not None:
                timer.cancel()

    async def _run(self, slot: Slot, task: asyncio.Task[None] | None, batch: list[Record]) -> None:
        handler, sink, host = self.handler, self._sink, self._host
        now = self._clock()
        records: list[Record] = []
        values: list[Any] = []
        messages: list[Message] = []
        for record in batch:
            value: Any = record.message.value()
            if not handler.takes_messages and (value is None or not handler.decoder.is_raw):
                try:
                    value = handler.decoder.decode(value)
                except BaseException as error:  # noqa: BLE001 - this one fails alone
                    fail_undecoded(record, error, handler, sink, now, self._tracing)
                    continue
            if not record.begin(now):
                sink.unstarted.append(record)
                sink.soon()
                continue
            records.append(record)
            values.append(value)
            messages.append(make_message(record, handler, host, now, plain=self.in_threads))
        if not records:
            return
        slot.begin(records, messages, now, handler.timeout)
        if self._ready:
            self._wake()
        tracing = self._tracing
        context = handler.context.copy()
        attempts: list[AnyAttempt | None] = [None] * len(records)
        span: Span | None = None
        if tracing is not None:
            attempts[:], contexts, span = tracing.begin_batch(records, handler.name, context)
            for message, own in zip(messages, contexts, strict=True):
                message.publish_in(own)
        outcomes = await self._outcomes(slot, values, messages, context)
        restore(task)
        asked = slot.end()
        stopped = [isinstance(outcome, asyncio.CancelledError) for outcome in outcomes]
        if asked and not any(stopped):
            self.counts.cancel_ignored += 1
        failed = sum(outcome is not None for outcome in outcomes)
        durations = self.failed_durations if failed else self.durations
        seconds = self._clock() - now
        durations.observe(seconds)
        if tracing is not None:
            tracing.end_batch(span, failed)
        for record, outcome, was_stopped, attempt in zip(records, outcomes, stopped, attempts, strict=True):
            if was_stopped and asked == TIMEOUT:
                self._fail(record, timed_out(handler, slot), attempt, seconds)
            elif outcome is not None:
                self._fail(record, outcome, attempt, seconds)
            elif attempt is not None and attempt.sampled:
                assert tracing is not None
                tracing.returned(attempt, seconds, durations)
            sink.done.append(record)

    async def _outcomes(
        self, slot: Slot, values: list[Any], messages: list[Message], context: Context
    ) -> list[BaseException | None]:
        """Run the handler, and publish what is to be published on success: all within the time-out."""
        try:
            returned = await self._call(slot, values, messages, context)
        except GeneratorExit:
            raise
        except BaseException as error:  # noqa: BLE001 - a handler may raise anything
            return [error] * len(messages)
        slot.thread = slot.coroutine = None
        outcomes = batch_outcomes(returned, len(messages))
        publishing = [
            self._publish(at, message, outcomes)
            for at, message in enumerate(messages)
            if outcomes[at] is None and message.publishes_on_success
        ]
        if publishing:
            try:
                await asyncio.gather(*publishing)
            except asyncio.CancelledError:
                restore(slot.task)  # each has noted it: those that were confirmed have succeeded
        return outcomes

    async def _call(self, slot: Slot, values: list[Any], messages: list[Message], context: Context) -> object:
        handler = self.handler
        first: list[Any] = messages if handler.takes_messages else values
        arguments = (first, messages) if handler.wants_message and not handler.takes_messages else (first,)
        if self._call_in_thread is not None:
            # Shielded: a thread can't be interrupted, and lane and place stay taken until it is back.
            future = self._call_in_thread(lambda: context.run(handler.call, *arguments), slot)
            while True:
                try:
                    return await asyncio.shield(future)
                except asyncio.CancelledError:
                    restore(asyncio.current_task())
                    if future.done():
                        return future.result()
        coroutine = handler.call(*arguments)
        try:
            waited = context.run(coroutine.send, None)
        except StopIteration as stop:
            return stop.value
        slot.coroutine = coroutine
        return await drive(coroutine, context, waited)

    async def _publish(self, at: int, message: Message, outcomes: list[BaseException | None]) -> None:
        """What a message that succeeded publishes on success; if one is refused, the message has failed."""
        try:
            await asyncio.gather(*map(self._host.publish, message.take_on_success()))
        except BaseException as error:  # noqa: BLE001 - that message has failed
            outcomes[at] = error

    def _interrupt(self, slot: Slot) -> None:
        if slot.thread is None:  # a thread can't be interrupted
            assert slot.task is not None
            slot.task.cancel()

    async def close(self) -> None:
        """End the idle workers."""
        self._stopping = True
        while self._idle:
            _wake_up(self._idle.popleft())
        tasks = [slot.task for slot in self._slots if slot.records is None and slot.task is not None]
        if tasks:
            await asyncio.wait(tasks, timeout=1.0)


def _wake_up(sleeper: asyncio.Future[None]) -> None:
    if not sleeper.done():
        sleeper.set_result(None)
