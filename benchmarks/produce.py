"""Fills a topic: messages of one size whose keys come round robin. Called by the driver.

`python -m benchmarks.produce BROKERS TOPIC MESSAGES KEYS SIZE` exits non-zero unless the broker confirmed
every one.
"""

import sys
from typing import Any

from confluent_kafka import KafkaError, Message, Producer

BATCH = 10_000
FLUSH_SECONDS = 120.0


def produce(brokers: str, topic: str, messages: int, keys: int, size: int) -> None:
    """Produce the messages; SystemExit names the first error, or how many have no report."""
    failed: list[KafkaError] = []

    def report(error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            failed.append(error)

    settings: dict[str, Any] = {
        "bootstrap.servers": brokers,
        "partitioner": "murmur2_random",
        "enable.idempotence": True,
        "linger.ms": 20,
        "batch.size": 262_144,
        "queue.buffering.max.messages": 500_000,
        "on_delivery": report,
        "delivery.report.only.error": True,
    }
    producer = Producer(settings)
    value = b"x" * size
    names = [b"key-%d" % number for number in range(keys)]
    for number in range(messages):
        while True:
            try:
                producer.produce(topic, value, names[number % keys])
                break
            except BufferError:
                producer.poll(0.1)
        if number % BATCH == 0:
            producer.poll(0)
    left = producer.flush(FLUSH_SECONDS)
    if failed or left:
        raise SystemExit(f"{topic}: {failed[0] if failed else f'{left} messages without a report'}")


if __name__ == "__main__":
    produce(sys.argv[1], sys.argv[2], *map(int, sys.argv[3:6]))
