"""The users' code of the pods that run as processes: `app: shop:loop`, in the image's working directory.

What a message does is in its value; the handler prints a line when it begins and when it ends.
"""

import asyncio
import os
import threading
from typing import Any

from streamloop import Message, StreamLoop

loop = StreamLoop()
hold = threading.Event()


def say(what: str, message: Message) -> None:
    os.write(1, f"{what} {message.partition}/{message.offset}\n".encode())


@loop.consumer("orders")
async def handle(order: dict[str, Any], message: Message) -> None:
    say("begin", message)
    if order.get("do") == "block":
        hold.wait()
    if order.get("do") == "fail":
        raise ConnectionError("the payment service is away")
    await asyncio.sleep(order.get("sleep", 0))
    say("end", message)
