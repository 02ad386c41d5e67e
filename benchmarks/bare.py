"""The bare loops that streamloop is measured against: no order, no commits, nothing done with a message.

`python -m benchmarks.bare consume|poll BROKERS TOPIC MESSAGES` reads a topic; `.. sleepers COUNT MESSAGES` is
what asyncio alone does with COUNT tasks that sleep 5 ms a message. Each prints its rate as JSON. Called by
the driver, each in a process of its own.
"""

import asyncio
import sys
import time
import uuid
from collections.abc import Callable

from confluent_kafka import Consumer, KafkaException

from benchmarks.consumer_settings import consumer_settings
from benchmarks.figures import Rate, print_rate

SLEEP_SECONDS = 0.005


def consume_loop(consumer: Consumer, messages: int) -> float:
    """consume(500) until all messages came; the seconds from the first to the last."""
    seen = 0
    started = 0.0
    while seen < messages:
        batch = consumer.consume(500, 0.1)
        if batch:
            if not seen:
                started = time.perf_counter()
            seen += len(batch)
            error = batch[0].error()
            if error is not None:
                raise KafkaException(error)
    return time.perf_counter() - started


def poll_loop(consumer: Consumer, messages: int) -> float:
    """poll() until all messages came; the seconds from the first to the last."""
    seen = 0
    started = 0.0
    while seen < messages:
        message = consumer.poll(0.1)
        if message is not None:
            if not seen:
                started = time.perf_counter()
            seen += 1
            error = message.error()
            if error is not None:
                raise KafkaException(error)
    return time.perf_counter() - started


def read(loop: Callable[[Consumer, int], float], brokers: str, topic: str, messages: int) -> Rate:
    """Run one of the loops on a Consumer of its own group."""
    consumer = Consumer(consumer_settings(brokers, f"bare-{uuid.uuid4().hex[:8]}"))
    consumer.subscribe([topic])
    try:
        return Rate(messages, loop(consumer, messages))
    finally:
        consumer.close()


async def sleepers(count: int, messages: int) -> Rate:
    """`count` tasks that share the messages and sleep for each."""
    left = messages

    async def worker() -> None:
        nonlocal left
        while left > 0:
            left -= 1
            await asyncio.sleep(SLEEP_SECONDS)

    started = time.perf_counter()
    await asyncio.gather(*(worker() for _ in range(count)))
    return Rate(messages, time.perf_counter() - started)


def main(argv: list[str]) -> Rate:
    match argv:
        case ["consume", brokers, topic, messages]:
            return read(consume_loop, brokers, topic, int(messages))
        case ["poll", brokers, topic, messages]:
            return read(poll_loop, brokers, topic, int(messages))
        case ["sleepers", count, messages]:
            return asyncio.run(sleepers(int(count), int(messages)))
    raise SystemExit(__doc__)


if __name__ == "__main__":
    print_rate(main(sys.argv[1:]))
