"""librdkafka's built-in mock cluster, with faults at the test's command.

The functions are those of the library that confluent-kafka bundles. Its threads belong to this process; it
listens on 127.0.0.1. It proves how a client behaves, never what a broker guarantees. Called by tests only.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import TYPE_CHECKING, Self

import confluent_kafka

if TYPE_CHECKING:
    from types import TracebackType

PRODUCE, INIT_PRODUCER_ID = 0, 22
"""Kafka's api keys of the requests that can be made to fail."""


def _library() -> ctypes.CDLL:
    package = Path(confluent_kafka.__file__).parent
    bundled = [*package.parent.glob("confluent_kafka.libs/librdkafka*"), *package.glob(".dylibs/librdkafka*")]
    library = ctypes.CDLL(str(bundled[0]))
    for name in ("rd_kafka_conf_new", "rd_kafka_new", "rd_kafka_mock_cluster_new"):
        getattr(library, name).restype = ctypes.c_void_p
    library.rd_kafka_mock_cluster_bootstraps.restype = ctypes.c_char_p
    return library


class MockCluster:
    """A mock cluster as a context manager. ``brokers`` nodes, ids from 1."""

    def __init__(self, brokers: int = 1) -> None:
        self._library = _library()
        self._brokers = brokers

    def __enter__(self) -> Self:
        library = self._library
        error = ctypes.create_string_buffer(512)
        configuration = ctypes.c_void_p(library.rd_kafka_conf_new())
        for name, value in ((b"log_level", b"0"), (b"bootstrap.servers", b"127.0.0.1:1")):
            library.rd_kafka_conf_set(configuration, name, value, error, ctypes.c_size_t(512))
        producer = 0
        client = library.rd_kafka_new(producer, configuration, error, ctypes.c_size_t(512))
        assert client, error.value
        self._client = ctypes.c_void_p(client)
        self._cluster = ctypes.c_void_p(library.rd_kafka_mock_cluster_new(self._client, self._brokers))
        self.bootstrap = library.rd_kafka_mock_cluster_bootstraps(self._cluster).decode()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._library.rd_kafka_mock_cluster_destroy(self._cluster)
        self._library.rd_kafka_destroy(self._client)

    def create_topic(self, topic: str, partitions: int = 1) -> str:
        code = self._library.rd_kafka_mock_topic_create(self._cluster, topic.encode(), partitions, 1)
        assert code == 0
        return topic

    def fail_next(self, api_key: int, *codes: int) -> None:
        """The next requests of this kind are answered with these errors, one each."""
        errors = (ctypes.c_int * len(codes))(*codes)
        self._library.rd_kafka_mock_push_request_errors_array(
            self._cluster, ctypes.c_int16(api_key), ctypes.c_size_t(len(codes)), errors
        )

    def set_topic_error(self, topic: str, code: int) -> None:
        """Metadata and produce requests for the topic answer with this error; 0: they work."""
        self._library.rd_kafka_mock_topic_set_error(self._cluster, topic.encode(), code)

    def take_down(self, broker: int = 1) -> None:
        """Close its connections and refuse new ones."""
        self._library.rd_kafka_mock_broker_set_down(self._cluster, broker)

    def bring_up(self, broker: int = 1) -> None:
        self._library.rd_kafka_mock_broker_set_up(self._cluster, broker)

    def answer_after(self, milliseconds: int, broker: int = 1) -> None:
        """Delay each answer of a broker."""
        self._library.rd_kafka_mock_broker_set_rtt(self._cluster, broker, milliseconds)
