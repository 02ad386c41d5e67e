"""streamloop on one topic, as an application runs it: key order, a commit every second, no tracing.

`python -m benchmarks.streamloop_bench rate BROKERS TOPIC MESSAGES CONCURRENCY SLEEP_MS` prints its rate as
JSON; the handler does nothing, or sleeps. `.. hold BROKERS TOPIC` has a handler that never returns, prints
"held" when the first message reached it, and runs until it is killed. Called by the driver, each in a process
of its own.
"""

import asyncio
import sys
import time
import uuid
from collections.abc import Awaitable, Callable

from benchmarks.figures import Rate, print_rate
from streamloop import StreamLoop

NEVER_SECONDS = 86_400


class Stopwatch:
    """Counts the messages handled; the time runs from the first to the last of them."""

    def __init__(self, messages: int) -> None:
        self.messages = messages
        self.handled = 0
        self.first = 0.0
        self.last = 0.0

    def handler(self, sleep: float) -> Callable[[bytes], Awaitable[None]]:
        """A handler that counts, and sleeps before that when `sleep` (seconds) is not 0."""

        def count() -> None:
            self.handled += 1
            if self.handled == 1:
                self.first = time.perf_counter()
            elif self.handled == self.messages:
                self.last = time.perf_counter()

        async def nothing(_value: bytes) -> None:
            count()

        async def sleeps(_value: bytes) -> None:
            await asyncio.sleep(sleep)
            count()

        return sleeps if sleep else nothing


def rate(brokers: str, topic: str, messages: int, concurrency: int, sleep_ms: float) -> Rate:
    """Handle so many messages; SystemExit when fewer were handled."""
    stopwatch = Stopwatch(messages)
    loop: StreamLoop[None] = StreamLoop(f"bench-{uuid.uuid4().hex[:8]}", brokers=brokers, log_level="WARNING")
    loop.consumer(topic, ordering="key", concurrency=concurrency)(stopwatch.handler(sleep_ms / 1000))
    ended = loop.run(max_messages=messages)
    if ended.exit_code != 0 or stopwatch.handled < messages:
        raise SystemExit(f"{stopwatch.handled} of {messages} messages handled, then: {ended.reason}")
    return Rate(messages, stopwatch.last - stopwatch.first)


def hold(brokers: str, topic: str) -> None:
    """Take messages until the watermark holds back, and handle none."""
    loop: StreamLoop[None] = StreamLoop(f"hold-{uuid.uuid4().hex[:8]}", brokers=brokers, log_level="WARNING")

    @loop.consumer(topic, ordering="key", concurrency=100, timeout=NEVER_SECONDS)
    async def never(_value: bytes) -> None:
        print("held", flush=True)
        await asyncio.Event().wait()

    loop.run()


def main(argv: list[str]) -> None:
    match argv:
        case ["rate", brokers, topic, messages, concurrency, sleep_ms]:
            print_rate(rate(brokers, topic, int(messages), int(concurrency), float(sleep_ms)))
        case ["hold", brokers, topic]:
            hold(brokers, topic)
        case _:
            raise SystemExit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
