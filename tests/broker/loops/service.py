"""The service that member processes run: ``streamloop run tests.broker.loops.service:loop``.

What a message does is in its value, a JSON object, and the handler prints a line when it begins and when it
ends, so that a test can wait for them. The environment says which of the loop's own threads is to break.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import threading
from typing import Any

from streamloop import Fatal, Message, Reject, StreamLoop
from streamloop.kafka.poller import Poller
from streamloop.kafka.publisher import Publisher

loop = StreamLoop(
    commit_interval=0.1,
    backoff_base=0.01,
    backoff_cap=0.05,
    retry_topics=["300ms"],
    in_place_attempts=1,
    ordering="none",
)

hold = threading.Event()
"""Never set: what waits for it hangs for good."""


def line(text: str) -> None:
    """Print a line in one piece, so that no log line comes between it and its end."""
    os.write(1, f"{text}\n".encode())


def say(what: str, message: Message, text: object = "") -> None:
    where = f"{message.topic}/{message.partition}/{message.offset}"
    line(f"{what} {where} attempt={message.attempt} {text}".rstrip())


@loop.consumer("orders")
async def handle(order: dict[str, Any], message: Message) -> None:
    """What a coroutine can do to its loop."""
    say("begin", message, order)
    seconds = order.get("sleep", 0)
    match order.get("do", "work"):
        case "work":
            await asyncio.sleep(seconds)
        case "fail":
            raise ConnectionError("the payment service is away")
        case "reject":
            raise Reject("not wanted")
        case "fatal":
            raise Fatal("the licence has run out")
        case "swallow":
            while True:  # whoever asks it to stop is not heard
                try:
                    await asyncio.sleep(3600)
                except asyncio.CancelledError:
                    continue
        case "block":
            hold.wait()
        case "hold the lock":
            re.match(r"(a+)+$", "a" * 60 + "b")  # no other thread gets to run
    say("end", message)


@loop.on_startup
async def say_started() -> None:
    line("startup")


@loop.on_shutdown
async def say_ended() -> None:
    line("shutdown " + json.dumps({"live": loop.health().live, "ready": loop.health().ready}))


def _break(kind: type[Any], method: str, after: str) -> None:
    """Have a thread of the loop die of an error that nothing expects, once a file with this name exists."""
    whole = getattr(kind, method)

    def broken(self: object, *arguments: object) -> object:
        if os.path.exists(after):
            raise RuntimeError("a bug that nobody knows")
        return whole(self, *arguments)

    setattr(kind, method, broken)


if "BREAK_POLLER" in os.environ:
    _break(Poller, "_turn", os.environ["BREAK_POLLER"])
if "BREAK_PUBLISHER" in os.environ:
    _break(Publisher, "turn", os.environ["BREAK_PUBLISHER"])
