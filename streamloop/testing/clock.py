"""Virtual time: a clock that moves only when nothing is left to do at this instant, and the event loop on it.

The loop is asyncio's own. Only its selector differs: where it would sleep until the next timer, the clock
jumps there. What really takes time (a function in a thread, a socket that a running handler waits for) is
waited for, and time passes meanwhile as it really does. Made and driven by the harness alone.
"""

from __future__ import annotations

import asyncio
import selectors
import time
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar, TypeVarTuple

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Executor

T = TypeVar("T")
Ts = TypeVarTuple("Ts")

LOOK_EVERY: Final = 0.05
"""Real seconds of one wait for a thread or a socket."""
SPIN: Final = 1_000
"""Turns of the event loop in which something was always ready, after which LOOK_EVERY seconds pass."""
SPIN_LIMIT: Final = 2_000_000
"""Such turns after which something spins for ever."""


class Clock:
    """Monotonic and epoch seconds that move together."""

    __slots__ = ("_offset", "now")

    def __init__(self, now: float, wall: float) -> None:
        self.now = now
        self._offset = wall - now

    def monotonic(self) -> float:
        """Monotonic seconds."""
        return self.now

    def wall(self) -> float:
        """Epoch seconds."""
        return self.now + self._offset


class StandsStillError(AssertionError):
    """Something keeps the test from going on: it never waits, or it never comes back."""


class Pilot(Protocol):
    """Who decides what happens when nothing is ready."""

    def should_stop(self) -> bool:
        """Asked each time before the clock moves."""

    def next_tick(self) -> float | None:
        """When tick() wants to be called though no timer is due; None: not at all."""

    def tick(self) -> None:
        """Look at deadlines."""

    def is_busy(self, sockets: int) -> bool:
        """Whether something runs that takes real time. ``sockets``: how many the loop watches."""

    def stuck(self) -> str:
        """What it is that runs, with stacks, for the error."""


class _Selector(selectors.DefaultSelector):
    """Asks the loop what to do when nothing is ready."""

    idle: Callable[[float | None], list[Any]]
    turned: Callable[[], None]

    def select(self, timeout: float | None = None) -> list[Any]:
        ready = super().select(0)
        if ready or (timeout is not None and timeout <= 0):
            self.turned()
            return ready
        return self.idle(timeout)

    def select_really(self, timeout: float) -> list[Any]:
        """Wait for what threads and sockets bring."""
        return super().select(timeout)


class VirtualLoop(asyncio.SelectorEventLoop):
    """An event loop on a virtual clock. ``patience``: real seconds that it waits for one thing at most."""

    def __init__(self, clock: Clock, pilot: Pilot, patience: float) -> None:
        self.clock = clock
        self.problem: StandsStillError | None = None
        self._pilot = pilot
        self._patience = patience
        self._executing = 0
        self._turns = 0
        self._waited_since: float | None = None
        self._selecting = _Selector()
        self._selecting.idle = self._idle
        self._selecting.turned = self._turned
        super().__init__(self._selecting)
        self._own_sockets = len(self._selecting.get_map())

    def time(self) -> float:
        """The virtual clock's monotonic seconds."""
        return self.clock.now

    def run_in_executor(
        self, executor: Executor | None, func: Callable[[*Ts], T], *args: *Ts
    ) -> asyncio.Future[T]:
        """As asyncio's; the clock waits for what it runs."""
        future = super().run_in_executor(executor, func, *args)
        self._executing += 1
        future.add_done_callback(self._executed)
        return future

    def _executed(self, _future: asyncio.Future[Any]) -> None:
        self._executing -= 1

    def _turned(self) -> None:
        """Something was ready. What never waits (a loop around asyncio.sleep(0)) must not stop the clock."""
        self._turns += 1
        if self._turns % SPIN == 0:
            self.clock.now += LOOK_EVERY
            self.call_soon(self._pilot.tick)
        if self._turns > SPIN_LIMIT and self.problem is None:
            self.problem = StandsStillError(
                f"the event loop turned {SPIN_LIMIT} times and something was always ready: something spins\n"
                f"{self._pilot.stuck()}"
            )
            self.stop()

    def _idle(self, timeout: float | None) -> list[Any]:
        """Nothing is ready: stop, wait for what really takes time, or let time pass."""
        pilot, clock = self._pilot, self.clock
        self._turns = 0
        if pilot.should_stop():
            self.stop()
            return []
        due = None if timeout is None else clock.now + timeout
        tick = pilot.next_tick()
        if tick is not None:
            tick = max(tick, clock.now + LOOK_EVERY / 2)  # time passes, whatever a tick has not done
            due = tick if due is None else min(due, tick)
        if self._executing or pilot.is_busy(len(self._selecting.get_map()) - self._own_sockets):
            seconds = LOOK_EVERY if due is None else min(due - clock.now, LOOK_EVERY)
            if ready := self._wait(seconds):
                return ready
            clock.now += seconds
        elif due is None:
            self.stop()
        else:
            clock.now = due
        if tick is not None and clock.now >= tick:
            self.call_soon(pilot.tick)
        return []

    def _wait(self, seconds: float) -> list[Any]:
        began = time.monotonic()
        ready = self._selecting.select_really(seconds)
        if ready:
            self._waited_since = None
            return ready
        if self._waited_since is None:
            self._waited_since = began
        elif time.monotonic() - self._waited_since > self._patience:
            self._waited_since = None
            self.problem = StandsStillError(
                f"waited {self._patience:g} real seconds (patience) for what really takes time\n"
                f"{self._pilot.stuck()}"
            )
            self.stop()
        return []
