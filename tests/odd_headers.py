"""Writes a record whose header's name is not UTF-8, as clients in other languages can and Python's can't.

Through the library that confluent-kafka bundles. Called by tests only; needs a broker, mock or real.
"""

from __future__ import annotations

import ctypes
from pathlib import Path
from typing import TYPE_CHECKING

import confluent_kafka

if TYPE_CHECKING:
    from collections.abc import Sequence

TOPIC, PARTITION, VALUE, KEY, FLAGS, HEADER = 1, 3, 4, 5, 7, 9
"""librdkafka's rd_kafka_vtype_t."""
COPY = 2


class _Bytes(ctypes.Structure):
    _fields_ = [("pointer", ctypes.c_char_p), ("size", ctypes.c_size_t)]


class _Header(ctypes.Structure):
    _fields_ = [("name", ctypes.c_char_p), ("value", ctypes.c_char_p), ("size", ctypes.c_ssize_t)]


class _Any(ctypes.Union):
    _fields_ = [
        ("text", ctypes.c_char_p),
        ("number", ctypes.c_int32),
        ("bytes", _Bytes),
        ("header", _Header),
        ("padding", ctypes.c_char * 64),
    ]


class _Argument(ctypes.Structure):
    _fields_ = [("kind", ctypes.c_int), ("value", _Any)]


def produce_with_header_names(
    bootstrap: str, topic: str, value: bytes, headers: Sequence[tuple[bytes, bytes]], *, key: bytes = b"key"
) -> None:
    """Write one record to partition 0. The names of the headers are any bytes without a zero."""
    package = Path(confluent_kafka.__file__).parent
    bundled = [*package.parent.glob("confluent_kafka.libs/librdkafka*"), *package.glob(".dylibs/librdkafka*")]
    library = ctypes.CDLL(str(bundled[0]))
    for name in ("rd_kafka_conf_new", "rd_kafka_new", "rd_kafka_produceva"):
        getattr(library, name).restype = ctypes.c_void_p
    error = ctypes.create_string_buffer(512)
    configuration = ctypes.c_void_p(library.rd_kafka_conf_new())
    for setting, given in ((b"log_level", b"0"), (b"bootstrap.servers", bootstrap.encode())):
        library.rd_kafka_conf_set(configuration, setting, given, error, ctypes.c_size_t(512))
    client = ctypes.c_void_p(library.rd_kafka_new(0, configuration, error, ctypes.c_size_t(512)))
    arguments = (_Argument * (5 + len(headers)))()
    for at, kind in enumerate((TOPIC, PARTITION, VALUE, KEY, FLAGS)):
        arguments[at].kind = kind
    arguments[0].value.text = topic.encode()
    arguments[1].value.number = 0
    arguments[2].value.bytes = _Bytes(value, len(value))
    arguments[3].value.bytes = _Bytes(key, len(key))
    arguments[4].value.number = COPY
    for at, (header, content) in enumerate(headers, 5):
        arguments[at].kind = HEADER
        arguments[at].value.header = _Header(header, content, len(content))
    try:
        refused = library.rd_kafka_produceva(client, arguments, ctypes.c_size_t(len(arguments)))
        assert refused is None, "librdkafka refused the record"
        assert library.rd_kafka_flush(client, 30_000) == 0, "no broker confirmed the record"
    finally:
        library.rd_kafka_destroy(client)
