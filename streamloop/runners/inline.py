"""Cheap plain functions, on the event loop (``runner="inline"``).

Nothing else runs while such a handler does, so that it must not wait; a time-out can't interrupt it, and the
watchdog reports one that blocks the loop.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from streamloop.runners.aio import SLICE, turn
from streamloop.runners.base import (
    Handler,
    Runner,
    Sink,
    Slot,
    fail_undecoded,
    failure_of,
    make_message,
)

if TYPE_CHECKING:
    from streamloop.engine.record import Record
    from streamloop.message import Host, Message


class InlineRunner(Runner):
    """Runs ``def`` handlers one after the other on the event loop."""

    def __init__(self, handler: Handler, sink: Sink, host: Host) -> None:
        super().__init__(handler, sink, host)
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
            await self._run(handler, ready.popleft(), now)

    async def _run(self, handler: Handler, record: Record, now: float) -> None:
        sink = self._sink
        value = record.message.value()
        try:
            if value is None or not handler.decoder.is_raw:
                value = handler.decoder.decode(value)
        except BaseException as error:  # noqa: BLE001 - whatever it is, the loop goes on
            fail_undecoded(record, error, handler, sink, now)
            return
        if not record.begin(now):
            sink.unstarted.append(record)
            sink.soon()
            return
        message: Message | None = None
        slot = self._slots[0]
        slot.begin([record], None, now, handler.timeout)
        try:
            context = handler.context.copy()
            if handler.wants_message:
                message = make_message(record, handler, self._host, now)
                context.run(handler.call, value, message)
                if outgoing := message.take_on_success():
                    await asyncio.gather(*map(self._host.publish, outgoing))
            else:
                context.run(handler.call, value)
        except GeneratorExit:
            raise
        except BaseException as error:  # noqa: BLE001 - a handler may raise anything
            record.failure = failure_of(error, handler)
        slot.end()
        sink.done.append(record)
        sink.soon()
        self.durations.observe(self._clock() - now)

    def _interrupt(self, slot: Slot) -> None:
        """Nothing that runs on the loop can be interrupted; the watchdog sees a blocked loop."""

    async def close(self) -> None:
        """End the worker."""
        self._stopping = True
        if self._sleeper is not None and not self._sleeper.done():
            self._sleeper.set_result(None)
        await asyncio.wait([self._task], timeout=1.0)
