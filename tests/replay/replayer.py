"""One replay in a process of its own, stopped at a named point: ``python -m tests.replay.replayer CONFIG``.

CONFIG is JSON: the settings, the topics, and where to stop. At that point it prints ``AT point`` and waits:
to be killed, or for its gate (a file) after it was stopped and another has fenced it. It prints the summary
as its last line. What it does otherwise is what ``streamloop dlq replay`` does.
"""

from __future__ import annotations

import json
import os
import random
import signal
import socket
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from streamloop.dlq import replay as course
from streamloop.dlq.filters import ALL
from streamloop.dlq.plan import ReplayPlan
from streamloop.dlq.session import InProgressError
from streamloop.dlq.targets import Target
from streamloop.dlq.writer import Entry, LedgerWriter, Placed, Publish
from streamloop.settings import Settings

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence


class Point:
    """Waits at the point, the n-th time that it is passed."""

    def __init__(self, name: str, times: int, gate: Path, *, cut: bool) -> None:
        self._name = name
        self._left = times
        self._gate = gate
        self._cut = cut

    def __call__(self, point: str) -> None:
        if point == "began":
            say("BEGAN")
        if point != self._name:
            return
        self._left -= 1
        if self._left != 0:
            return
        if self._cut:
            # Not before the call but within it: the connections break again and again meanwhile.
            threading.Thread(target=self._cutting, daemon=True).start()
            say(f"AT {point}")
            return
        say(f"AT {point}")
        while not self._gate.exists():
            time.sleep(0.02)

    def _cutting(self) -> None:
        while not self._gate.exists():
            cut_connections()
            time.sleep(random.uniform(0.0, 0.03))


def cut_connections() -> None:
    """Break every TCP connection of this process."""
    for name in os.listdir("/proc/self/fd"):
        try:
            if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(int(name))) as one:
                if one.family == socket.AF_INET and one.type == socket.SOCK_STREAM:
                    one.shutdown(socket.SHUT_RDWR)
        except OSError:
            continue  # closed meanwhile, or not connected


def split_in_two(writer: type[LedgerWriter]) -> None:
    """The negative control: publish in one transaction, and write the ledger in another."""
    whole = writer.transact

    def transact(
        self: LedgerWriter,
        publishes: Sequence[Publish],
        entries: Callable[[list[Placed]], Sequence[Entry]],
    ) -> list[Placed]:
        if not publishes:
            return whole(self, publishes, entries)
        placed = whole(self, publishes, lambda _placed: [])
        self._at("between")
        whole(self, [], lambda _placed: entries(placed))
        return placed

    writer.transact = transact  # type: ignore[method-assign]


def say(line: str) -> None:
    os.write(1, f"{line}\n".encode())


def main(config: dict[str, Any]) -> int:
    vars(course)["MOST_RECORDS"] = config.get("most", 7)
    if config.get("split"):
        split_in_two(LedgerWriter)
    plan = dict(config.get("plan", {}))
    if "target" in plan:
        plan["target"] = Target(plan["target"])
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    replay = course.Replay(
        Settings.load(config["settings"], env={}).settings,
        config["topics"],
        ALL,
        ReplayPlan(**{"canary": 0, "settle": 0, **plan}),
        by=config.get("by", "replayer"),
        stop=stop,
        courteous=config.get("courteous", True),
        at=Point(
            config.get("point", ""),
            config.get("times", 1),
            Path(config.get("gate", "/nowhere")),
            cut=config.get("cut", False),
        ),
    )
    try:
        summary = replay.run()
    except InProgressError as error:
        say(f"REFUSED {error}")
        return 1
    say("SUMMARY " + json.dumps(summary.to_json()))
    return summary.exit_code


if __name__ == "__main__":
    sys.exit(main(json.loads(sys.argv[1])))
