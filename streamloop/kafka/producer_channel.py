"""One Producer with what is in its hands: what is ready for it, what is in flight, what it reported.

It must never decide what a report means (the publisher does), nor do anything in the client's callbacks but
keep their arguments: an exception pending in a delivery callback makes the client raise SystemError and
swallow reports. Only the publisher's thread calls it.
"""

from __future__ import annotations

import functools
import heapq
from collections import deque
from typing import TYPE_CHECKING, Any

from confluent_kafka import KafkaError, KafkaException

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from streamloop.kafka.publish_blocks import Entry

__all__ = ["ProducerChannel", "sentence"]


class ProducerChannel:
    """A Producer that can be replaced. A report of an old one differs by its ``generation`` and counts for
    nothing.

    ``config`` are its librdkafka properties; ``error_cb`` is replaced by the channel's own.
    """

    def __init__(
        self, name: str, config: Mapping[str, object], factory: Callable[[dict[str, Any]], Any]
    ) -> None:
        self.name = name
        self.generation = 0
        self.ready: list[tuple[int, Entry]] = []
        """A heap by order of submission."""
        self.in_flight: dict[int, Entry] = {}
        self.reported: deque[tuple[int, int, Any, Any]] = deque()
        """(generation, seq, error, message) as the client's callback gave them."""
        self.breaks = 0
        """Times in a row that the Producer broke, or could not be made, without a delivery between."""
        self.retry_at = 0.0
        """On the publisher's clock: not opened again before."""
        self.broken: str | None = None
        """Why this Producer delivers nothing any more; None: it works."""
        self.last_error = ""
        self._config = config
        self._factory = factory
        self._producer: Any = None

    @property
    def is_open(self) -> bool:
        return self._producer is not None

    def open(self) -> None:
        """Make a Producer. Raises what the client raises for a bad configuration."""
        self._producer = self._factory({**self._config, "error_cb": self._on_error})
        self.generation += 1

    def push(self, entry: Entry) -> None:
        heapq.heappush(self.ready, (entry.seq, entry))

    def pop(self) -> Entry:
        return heapq.heappop(self.ready)[1]

    def produce(self, entry: Entry) -> None:
        """Hand it to the client. Raises what produce() raises: BufferError when its queue is full."""
        request = entry.request
        self._producer.produce(
            request.topic,
            value=request.value,
            key=request.key,
            partition=request.partition,
            headers=request.headers,
            on_delivery=functools.partial(self._on_delivery, self.generation, entry.seq),
        )
        self.in_flight[entry.seq] = entry

    def poll(self, seconds: float) -> None:
        """Collect reports, for at most ``seconds``. The client raises a fatal error here, or SystemError."""
        try:
            self._producer.poll(seconds)
        except Exception as error:  # noqa: BLE001 - whatever it raises here, it can't be trusted any more
            self.broken = sentence(error)

    def refresh(self, topic: str, seconds: float) -> bool:
        """Make the client ask what the topic is now. False: no answer within ``seconds``."""
        try:
            self._producer.list_topics(topic, timeout=seconds)
        except KafkaException as error:
            self.last_error = sentence(error)
            return False
        return True

    def put_away(self) -> None:
        """Drop the Producer and its queue. Reports that it already holds are read first: less is sent
        twice."""
        producer, self._producer = self._producer, None
        if producer is None:
            return
        for _ in range(3):  # one that raises leaves reports behind
            try:
                producer.poll(0)
            except Exception as error:  # noqa: BLE001 - as in poll()
                self.last_error = sentence(error)
        try:
            producer.purge(in_queue=True, in_flight=True, blocking=False)
        except Exception as error:  # noqa: BLE001 - a broken client must not stop the next one
            self.last_error = sentence(error)

    def _on_delivery(self, generation: int, seq: int, error: Any, message: Any) -> None:
        self.reported.append((generation, seq, error, message))

    def _on_error(self, error: Any) -> None:
        self.last_error = str(error.str())
        if error.fatal():
            self.broken = self.last_error


def sentence(error: BaseException) -> str:
    """An exception in words: the Kafka error's name and text where it has one."""
    if isinstance(error, KafkaException) and error.args and isinstance(error.args[0], KafkaError):
        return f"{error.args[0].name()}: {error.args[0].str()}"
    return f"{type(error).__name__}: {error}"
