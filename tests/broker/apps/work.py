"""The handler that every member of a test's group runs: each message says what is to be done with it.

What it is for: one and the same handler in a thread of the test (build() is called by the team) and in a
member process (`streamloop run tests.broker.apps.work:loop`, told what it needs by the environment). It
writes what it does to the team's journal, one JSON line each, and waits at gates, which the test opens by
making a file. It must never decide anything that a test does not ask for.
"""

import asyncio
import json
import os
import threading
import time
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from streamloop import Message, StreamLoop

LOOK_EVERY = 0.02
"""Seconds between two looks at a gate."""
REPORT_EVERY = 0.1
"""Seconds between two reports of a process's status."""
JOURNAL = "journal"
EVERY_GATE = "all-gates-are-open"
"""The file that lets everything pass: it is made when the test ends."""
FOLDER, TOPICS = "WORK_FOLDER", "WORK_TOPICS"
"""What a process is told by the environment."""


@dataclass
class Work:
    """What a message asks for. ``seconds``: how long it takes.

    ``gate``: wait until it is open; for all (`gate`), for one member (`gate.member`), or for the second time
    that this member handles the message (`gate.member.2`). ``fails``: so many attempts fail. ``stubborn``: go
    on though asked to stop.
    """

    id: int
    gate: str = ""
    seconds: float = 0.0
    fails: int = 0
    stubborn: bool = False


class Worker:
    """The handlers of one member."""

    def __init__(self, member: str, folder: Path) -> None:
        self.member = member
        self.folder = folder
        self.runs: dict[int, int] = {}
        self._journal = os.open(folder / JOURNAL, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def write(self, event: str, work: Work, message: Message, run: int) -> None:
        """Add a line to the journal: a single write, so that members do not mix theirs."""
        line = {
            "at": time.monotonic(),
            "event": event,
            "member": self.member,
            "id": work.id,
            "run": run,
            "topic": message.topic,
            "partition": message.partition,
            "offset": message.offset,
            "attempt": message.attempt,
            "read_from": message.delivery.topic,
        }
        os.write(self._journal, json.dumps(line).encode() + b"\n")

    def begin(self, work: Work, message: Message) -> int:
        """Note the start; returns how often this process has started it."""
        run = self.runs[work.id] = self.runs.get(work.id, 0) + 1
        self.write("start", work, message, run)
        return run

    def closed(self, work: Work, run: int) -> bool:
        """Whether the message has to wait at its gate."""
        if not work.gate:
            return False
        mine = f"{work.gate}.{self.member}"
        names = (work.gate, mine, f"{mine}.{run}", EVERY_GATE)
        return not any((self.folder / name).exists() for name in names)

    def finish(self, work: Work, message: Message, run: int) -> None:
        """Fail or succeed as the message asks."""
        if message.attempt <= work.fails:
            self.write("failed", work, message, run)
            raise ConnectionError(f"attempt {message.attempt} of message {work.id} is to fail")
        self.write("end", work, message, run)

    async def handle(self, work: Work, message: Message) -> None:
        """The handler on the event loop."""
        run = self.begin(work, message)
        while True:
            try:
                while self.closed(work, run):  # noqa: ASYNC110 - another process opens it
                    await asyncio.sleep(LOOK_EVERY)
                await asyncio.sleep(work.seconds)
                break
            except asyncio.CancelledError:
                self.write("cancelled", work, message, run)
                if not work.stubborn:
                    raise
        self.finish(work, message, run)

    def handle_in_thread(self, work: Work, message: Message) -> None:
        """The same in a thread."""
        run = self.begin(work, message)
        pause = threading.Event()
        while self.closed(work, run) and (work.stubborn or not message.cancelled.is_set()):
            pause.wait(LOOK_EVERY)
        if work.stubborn:
            pause.wait(work.seconds)
        elif message.cancelled.wait(work.seconds) or message.cancelled.is_set():
            self.write("cancelled", work, message, run)
            raise TimeoutError(f"message {work.id} was asked to stop")
        self.finish(work, message, run)


def build(
    member: str, topics: Sequence[str], folder: Path, settings: dict[str, Any], declared: dict[str, Any]
) -> StreamLoop[None]:
    """A member: ``settings`` are those of the loop, ``declared`` those of its @consumer."""
    worker = Worker(member, folder)
    loop: StreamLoop[None] = StreamLoop(**{"member": member, **settings})
    in_thread = declared.pop("threads", False)
    loop.consumer(*topics, name="work", **declared)(worker.handle_in_thread if in_thread else worker.handle)
    return loop


def _build_from_environment() -> StreamLoop[None]:
    member, folder = os.environ["STREAMLOOP_MEMBER"], Path(os.environ[FOLDER])
    loop = build(member, os.environ[TOPICS].split(","), folder, {}, {})

    @loop.on_startup
    async def report_status() -> None:
        threading.Thread(target=_report, args=(loop, folder / f"status.{member}"), daemon=True).start()

    return loop


def _report(loop: StreamLoop[None], path: Path) -> None:
    """Write the status to a file, for the test to read."""
    pause = threading.Event()
    partial = path.with_name(path.name + ".partial")
    while True:
        status = loop.status()
        if status is not None:
            partial.write_text(json.dumps(asdict(status)), encoding="utf-8")
            partial.replace(path)
        pause.wait(REPORT_EVERY)


if FOLDER in os.environ:
    loop = _build_from_environment()
