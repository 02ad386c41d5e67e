"""What takes longer than an answer may: reading dead letters, a dry run, a replay. Each in its own thread.

Starting one answers at once; its progress and its result are asked for later. All is bounded: how many run,
how many results are kept, and how long one goes on that nobody asks for any more (its page was closed). A
replay goes on without its page. Called by the console's API; ``drain`` and ``close`` by the run's operations.
"""

from __future__ import annotations

import logging
import secrets
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

from streamloop.errors import StreamLoopError
from streamloop.ops.web import RefusedError

log = logging.getLogger("streamloop.ops")

LOOKS_AT_ONCE: Final = 2
"""Reading jobs at once; each has a Consumer and its buffer."""
KEPT: Final = 12
"""Jobs that have ended and can still be asked for."""
LOOK, REPLAY = "look", "replay"
FORGOTTEN: Final = 30.0
"""Seconds after which a look that nobody asks for is ended."""

Progress: TypeAlias = Callable[[dict[str, Any]], None]
Work: TypeAlias = Callable[[Progress, threading.Event], Any]


@dataclass(slots=True)
class Job:
    """One of them. ``state``: running, done, stopped (its result is partial), failed (``error`` says why)."""

    id: str
    kind: str
    what: str
    by: str
    started: float
    asked: float
    """Monotonic: when somebody last asked for it."""
    state: str = "running"
    progress: dict[str, Any] = field(default_factory=dict)
    result: Any = None
    error: str = ""
    ended: float | None = None
    stop: threading.Event = field(default_factory=threading.Event)
    stopped_because: str = ""
    thread: threading.Thread | None = None

    def shown(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "id": self.id,
            "kind": self.kind,
            "what": self.what,
            "by": self.by,
            "started": self.started,
            "ended": self.ended,
            "state": self.state,
            "progress": self.progress,
            "result": self.result,
            "error": self.error,
            "stopped_because": self.stopped_because,
        }


class Jobs:
    """The jobs of one member. ``clock``: monotonic seconds."""

    def __init__(
        self, *, clock: Callable[[], float] = time.monotonic, wall: Callable[[], float] = time.time
    ) -> None:
        self._clock = clock
        self._wall = wall
        self._jobs: dict[str, Job] = {}
        self._lock = threading.Lock()
        self._draining = ""

    def start(self, kind: str, what: str, work: Work, *, by: str) -> Job:
        """Begin it. RefusedError when too many run, or the member is about to end."""
        with self._lock:
            if self._draining:
                raise RefusedError(503, f"{self._draining}: ask another member")
            self._check_room(kind)
            job = Job(secrets.token_hex(8), kind, what, by, self._wall(), self._clock())
            self._jobs[job.id] = job
            self._forget_old()
            job.thread = threading.Thread(
                target=self._run, args=(job, work), name=f"streamloop-console-{kind}", daemon=True
            )
        job.thread.start()
        return job

    def _check_room(self, kind: str) -> None:
        running = [job for job in self._jobs.values() if job.state == "running" and job.kind == kind]
        if kind == REPLAY and running:
            raise RefusedError(
                409, f"a replay by {running[0].by} runs on this member: wait for its end, or stop it"
            )
        if kind == LOOK and len(running) >= LOOKS_AT_ONCE:
            oldest = min(running, key=lambda job: job.asked)
            if self._clock() - oldest.asked <= FORGOTTEN / 10:
                raise RefusedError(
                    429, f"{len(running)} searches run on this member: wait a moment", ("Retry-After", "2")
                )
            self._stop(oldest, "another search needed its place")  # its page has stopped asking

    def _forget_old(self) -> None:
        ended = [job for job in self._jobs.values() if job.state != "running"]
        for job in sorted(ended, key=lambda each: each.asked)[: max(0, len(ended) - KEPT)]:
            del self._jobs[job.id]

    def get(self, key: str) -> Job:
        """One of them; asking for it keeps it going. RefusedError when it is not known (any more)."""
        with self._lock:
            job = self._jobs.get(key)
            if job is None:
                raise RefusedError(404, "this search is not known here (any more): begin it again")
            job.asked = self._clock()
            return job

    def replaying(self) -> Job | None:
        """The newest replay of this member, running or ended."""
        with self._lock:
            return max(
                (j for j in self._jobs.values() if j.kind == REPLAY), key=lambda j: j.started, default=None
            )

    def stop(self, key: str, why: str) -> Job:
        """Ask it to end."""
        job = self.get(key)
        self._stop(job, why)
        return job

    def _stop(self, job: Job, why: str) -> None:
        if job.state == "running" and not job.stop.is_set():
            job.stopped_because = why
            job.stop.set()

    def _run(self, job: Job, work: Work) -> None:
        def progress(values: dict[str, Any]) -> None:
            job.progress = values
            if job.kind == LOOK and self._clock() - job.asked > FORGOTTEN:
                self._stop(job, "nobody asked for it any more")

        state = "failed"
        try:
            job.result = work(progress, job.stop)
            state = "stopped" if job.stop.is_set() else "done"
        except StreamLoopError as error:
            job.error = str(error)
        except Exception as error:
            log.exception("console: %s has failed", job.what, extra={"kind": "ops"})
            job.error = f"an internal error ({type(error).__name__}): the log of this member has it"
        job.ended = self._wall()
        job.state = state

    def drain(self, why: str) -> None:
        """Ask all to end, and begin no more."""
        with self._lock:
            self._draining = why
            jobs = list(self._jobs.values())
        for job in jobs:
            self._stop(job, why)

    def close(self, timeout: float) -> bool:
        """``drain`` and wait for their ends, ``timeout`` seconds at most. Whether all have ended."""
        self.drain(self._draining or "this member ends")
        until = self._clock() + timeout
        with self._lock:
            threads = [(job, job.thread) for job in self._jobs.values() if job.thread is not None]
        for job, thread in threads:
            if job.state == "running":
                thread.join(max(0.0, until - self._clock()))
        left = [job for job, thread in threads if thread.is_alive()]
        for job in left:
            log.warning("console: %s by %s has not ended", job.what, job.by, extra={"kind": "ops"})
        return not left
