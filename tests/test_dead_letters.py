"""One dead letter: understood whoever wrote it, byte for byte, and never an exception however hostile."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamloop.dlq.letter import DeadLetter, letter_of
from streamloop.engine.retry import ErrorRules, classify, fingerprint_of
from streamloop.kafka import headers as hd
from tests.dead_letters import CONNECT, KAFKA, SPRING, STAMP_MS, TRACE, TRACEPARENT, message, own, own_headers


def test_a_letter_of_streamloop_says_all_that_its_headers_say() -> None:
    letter = own()
    assert letter.written_by == "streamloop"
    assert letter.original == hd.Coordinates("orders", 3, 1042, STAMP_MS - 60_000)
    assert letter.group == "billing"
    assert (letter.error_class, letter.error_message) == ("shop.errors.Declined", "card 7 was declined")
    assert letter.fingerprint == "00aa11bb22cc33dd"
    assert letter.attempts == 6
    assert letter.first_failed_at == letter.failed_at == STAMP_MS / 1000
    assert (letter.replay_id, letter.replay_count) == (None, 0)
    assert letter.trace_id == TRACE
    assert letter.place == "orders.billing.dlq/0/17"
    assert letter.headers == own_headers()


def test_a_letter_that_was_replayed_says_so() -> None:
    letter = letter_of(message([*own_headers(), (hd.REPLAY_ID, b"r-1"), (hd.REPLAY_COUNT, b"2")]))
    assert (letter.replay_id, letter.replay_count) == ("r-1", 2)


def test_a_letter_of_spring_has_binary_numbers_and_the_cause_as_its_class() -> None:
    letter = letter_of(message(SPRING))
    assert letter.written_by == "spring"
    assert letter.original == hd.Coordinates("shop", 3, 77, STAMP_MS - 5_000)
    assert letter.group == "shop-group"
    assert letter.error_class == "java.lang.IllegalStateException"
    assert letter.error_message == "Listener failed; no stock"
    assert letter.attempts == 4
    assert letter.fingerprint == fingerprint_of(letter.error_class, letter.error_message)


def test_where_spring_appended_each_topic_the_first_is_the_original() -> None:
    again: hd.RawHeaders = [
        ("kafka_dlt-original-topic", b"shop-retry"),
        ("kafka_dlt-original-partition", b"\0\0\0\0"),
        ("kafka_dlt-original-offset", b"\0" * 8),
    ]
    assert letter_of(message(SPRING + again)).original == hd.Coordinates("shop", 3, 77, STAMP_MS - 5_000)


@pytest.mark.parametrize(("raw", "number"), [(b"1234", 1234), (b"12345678", 12345678), (b"7", 7)])
def test_digits_are_text_even_where_a_binary_number_would_have_their_length(raw: bytes, number: int) -> None:
    headers = [(name, raw if name == "kafka_dlt-original-offset" else value) for name, value in SPRING]
    original = letter_of(message(headers)).original
    assert original is not None
    assert original.offset == number


def test_a_letter_of_connect() -> None:
    letter = letter_of(message(CONNECT))
    assert letter.written_by == "connect"
    assert letter.original == hd.Coordinates("source", 0, 3, None)
    assert letter.group == "connect-warehouse"
    assert letter.error_class == "org.apache.kafka.connect.errors.DataException"
    assert letter.error_message == "no schema"


def test_a_letter_of_kafkas_own_dead_letter_queues() -> None:
    letter = letter_of(message(KAFKA))
    assert letter.written_by == "kafka"
    assert letter.original == hd.Coordinates("jobs", 2, 41, None)
    assert (letter.group, letter.attempts) == ("workers", 5)
    assert (letter.error_class, letter.error_message) == ("", "rejected")


def test_a_letter_of_streamloop_is_no_letter_of_kafka_though_it_has_those_headers_too() -> None:
    headers = own_headers()
    assert hd.DLQ_TOPIC in dict(headers)
    assert letter_of(message(headers)).written_by == "streamloop"


def test_a_letter_without_any_header_is_one_too() -> None:
    letter = letter_of(message([], None, None, stamp_ms=None))
    assert letter.written_by == "unknown"
    assert letter.original is None
    assert (letter.key, letter.value, letter.headers) == (None, None, [])
    assert letter.timestamp_ms is None
    assert letter.died_at is None
    assert letter.fingerprint == letter_of(message()).fingerprint


def test_the_fingerprint_of_others_is_the_same_for_alike_messages() -> None:
    def spring(text: bytes) -> DeadLetter:
        return letter_of(
            message([(name, text if name == "kafka_dlt-exception-message" else raw) for name, raw in SPRING])
        )

    assert spring(b"order 17 has no stock").fingerprint == spring(b"order 18 has no stock").fingerprint
    assert spring(b"order 17 has no stock").fingerprint != spring(b"no route to host").fingerprint


def test_a_fingerprint_in_the_headers_that_is_none_is_not_taken() -> None:
    for hostile in (b"\x1b[2J", b"", b"x" * 65, "\u0661".encode() * 16, b"a b"):
        headers = [(name, hostile if name == hd.ERROR_FINGERPRINT else raw) for name, raw in own_headers()]
        letter = letter_of(message(headers))
        assert letter.fingerprint == fingerprint_of("shop.errors.Declined", "card 7 was declined")


def test_fingerprints_of_texts_are_like_those_of_exceptions() -> None:
    failure = classify(ValueError("order 17"), ErrorRules())
    assert len(fingerprint_of(failure.error_class, failure.message)) == len(failure.fingerprint)


@pytest.mark.parametrize(
    "raw",
    [
        b"00-" + b"0" * 32 + b"-00f067aa0ba902b7-01",
        TRACEPARENT.upper(),
        TRACEPARENT[:-1],
        b"\xff" * 55,
        b"",
        None,
    ],
)
def test_what_is_no_trace_id_is_none(raw: bytes | None) -> None:
    assert letter_of(message([("traceparent", raw)])).trace_id is None


def test_died_at_is_what_the_headers_say_else_the_timestamp() -> None:
    assert own(now_ms=STAMP_MS - 1_000).died_at == (STAMP_MS - 1_000) / 1000
    assert letter_of(message(CONNECT)).died_at == STAMP_MS / 1000


NAMES = st.sampled_from(
    [
        *(name for name, _ in [*own_headers(), *SPRING, *CONNECT, *KAFKA]),
        hd.REPLAY_COUNT,
        hd.REPLAY_ID,
        "retry_topic-attempts",
        "kafka_dlt-",
        "streamloop-",
    ]
)
VALUES = st.one_of(
    st.none(),
    st.binary(max_size=80),
    st.integers(-(2**70), 2**70).map(lambda number: str(number).encode()),
    st.text(max_size=30).map(lambda text: text.encode("utf-8", "surrogatepass")),
    st.datetimes().map(lambda moment: moment.isoformat().encode() + b"Z"),
    st.binary(min_size=8, max_size=8),
)


@given(
    st.lists(st.tuples(st.one_of(NAMES, st.text(max_size=20)), VALUES), max_size=30),
    st.one_of(st.none(), st.binary(max_size=20)),
)
def test_no_header_makes_reading_a_letter_fail(headers: hd.RawHeaders, value: bytes | None) -> None:
    headers = [(name.encode("utf-8", "ignore").decode(), raw) for name, raw in headers]
    letter = letter_of(message(headers, value))
    assert letter.headers == headers
    assert letter.value == value
    assert letter.fingerprint
    assert letter.attempts is None or letter.attempts >= 0
    assert letter.trace_id is None or len(letter.trace_id) == 32
    if letter.original is not None:
        assert letter.original.topic
        assert 0 <= letter.original.partition < 2**31
        assert 0 <= letter.original.offset < 2**63
    for each in dataclasses.fields(letter):
        found = getattr(letter, each.name)
        if isinstance(found, str):
            found.encode("utf-8")  # no lone surrogates: it can be printed and sent
