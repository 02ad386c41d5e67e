"""The librdkafka settings that all Python rivals share, so that only the loop around them differs."""

from typing import Any


def consumer_settings(brokers: str, group: str) -> dict[str, Any]:
    """Settings of a Consumer that reads a topic from its start and commits nothing by itself."""
    return {
        "bootstrap.servers": brokers,
        "group.id": group,
        "group.protocol": "consumer",
        "auto.offset.reset": "earliest",
        "enable.auto.commit": False,
        "fetch.queue.backoff.ms": 5,
        "queued.max.messages.kbytes": 16_384,
    }
