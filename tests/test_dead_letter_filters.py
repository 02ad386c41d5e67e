"""Filters of dead letters: what they choose, how they are written, and how they go to JSON and back."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamloop.dlq.filters import ALL, Filter, HeaderIs, Places, moment_of, show_bytes, show_key
from streamloop.dlq.letter import letter_of
from streamloop.errors import ConfigurationError
from tests.dead_letters import CONNECT, SPRING, STAMP_MS, message, own

NOW = STAMP_MS / 1000


def chooses(letter: Any, **options: Any) -> bool:
    return Filter.parse(now=NOW, **options).matches(letter)


def test_p1_no_condition_means_all() -> None:
    assert ALL.is_all
    assert Filter.parse() == ALL
    assert ALL.matches(own())
    assert ALL.matches(letter_of(message([], None, None, stamp_ms=None)))
    assert ALL.describe() == "all dead letters"
    assert ALL.to_json() == {}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"error": ["shop.errors.Declined"]}, True),
        ({"error": ["Declined"]}, True),
        ({"error": ["errors.Declined"]}, False),
        ({"error": ["Other", "Declined"]}, True),
        ({"fingerprint": ["00aa11bb22cc33dd"]}, True),
        ({"fingerprint": ["00aa"]}, True),
        ({"fingerprint": ["11bb"]}, False),
        ({"key": ["key"]}, True),
        ({"key": ["hex:6b6579"]}, True),
        ({"key": ["null:"]}, False),
        ({"key": ["ke"]}, False),
        ({"original": ["orders"]}, True),
        ({"original": ["orders/3"]}, True),
        ({"original": ["orders/4"]}, False),
        ({"original": ["orders/3/1042"]}, True),
        ({"original": ["orders/3:1000-1041"]}, False),
        ({"original": ["orders/3:-1042"]}, True),
        ({"original": ["orders/3:1042-"]}, True),
        ({"original": ["payments", "orders"]}, True),
        ({"at": ["orders.billing.dlq"]}, True),
        ({"at": ["orders.billing.dlq/0:10-20"]}, True),
        ({"at": ["orders.billing.dlq/0:18-20"]}, False),
        ({"at": ["orders.billing.dlq/0/17"]}, True),
        ({"at": ["orders.billing.dlq/1/17"]}, False),
        ({"since": "0s"}, True),
        ({"until": "0s"}, False),
        ({"since": "1h", "until": "2026-11-30T20:20:01Z"}, True),
        ({"until": "1h"}, False),
        ({"header": ["traceparent"]}, True),
        ({"header": ["nothing"]}, False),
        ({"header": ["streamloop-attempt=6"]}, True),
        ({"header": ["streamloop-attempt=7"]}, False),
        ({"header": ["streamloop-attempt=6", "nothing"]}, False),
        ({"original_group": ["billing"]}, True),
        ({"original_group": ["other"]}, False),
        ({"value": ["alu"]}, True),
        ({"value": ["hex:616c75"]}, True),
        ({"value": ["nothing"]}, False),
        ({"replayed": False}, True),
        ({"replayed": True}, False),
        ({"error": ["Declined"], "key": ["other"]}, False),
    ],
)
def test_p1_each_condition_chooses(options: dict[str, Any], expected: bool) -> None:
    assert chooses(own(), **options) is expected
    again = Filter.from_json(json.loads(json.dumps(Filter.parse(now=NOW, **options).to_json())))
    assert again == Filter.parse(now=NOW, **options)
    assert Filter.parse(now=NOW, **options).describe() != "all dead letters"


def test_p1_letters_of_other_programs_are_chosen_by_what_their_headers_say() -> None:
    assert chooses(letter_of(message(SPRING)), error=["IllegalStateException"], original=["shop/3/77"])
    assert chooses(letter_of(message(CONNECT)), original_group=["connect-warehouse"], since="0s")
    assert not chooses(letter_of(message()), original=["orders"])


def test_a_record_without_a_key_or_a_value_is_chosen_by_that() -> None:
    nothing = letter_of(message([], None, None))
    assert chooses(nothing, key=["null:"])
    assert not chooses(nothing, key=["hex:"])
    assert chooses(letter_of(message([], b"", b"")), key=["hex:"])
    assert not chooses(nothing, value=["x"])


def test_a_header_that_is_there_twice_matches_with_either_value_and_null_is_no_value() -> None:
    letter = letter_of(message([("same", b"1"), ("same", b"2"), ("null", None)]))
    assert chooses(letter, header=["same=1"])
    assert chooses(letter, header=["same=2"])
    assert chooses(letter, header=["null"])
    assert not chooses(letter, header=["null="])


def test_who_died_when_nobody_knows_matches_no_time() -> None:
    letter = letter_of(message([], stamp_ms=None))
    assert not chooses(letter, since="7d")
    assert not chooses(letter, until="0s")


def test_died_again_after_a_replay() -> None:
    again = letter_of(message([("streamloop-replay-count", b"1")]))
    assert chooses(again, replayed=True)
    assert not chooses(again, replayed=False)


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"at": ["orders/x/1"]}, "--at 'orders/x/1' names no place: give TOPIC"),
        ({"at": ["or ders"]}, "names no place"),
        ({"at": ["orders:1-2"]}, "names no place"),
        ({"at": ["orders/1:"]}, "names no place"),
        ({"at": ["orders/1:-"]}, "names no place"),
        ({"at": ["orders/1/2:3-4"]}, "names no place"),
        ({"at": ["orders/99999999999"]}, "names no place"),
        ({"original": ["orders/1:9-3"]}, "--original 'orders/1:9-3' ends before it begins"),
        ({"key": ["hex:abc"]}, "--key 'hex:abc' is not hexadecimal"),
        ({"value": [""]}, "--value is empty"),
        ({"fingerprint": ["a b"]}, "--fingerprint 'a b' is none"),
        ({"fingerprint": [""]}, "is none"),
        ({"header": ["=x"]}, "--header needs NAME"),
        ({"since": "yesterday"}, "--since 'yesterday' is no time: give an RFC 3339 time with a zone"),
        ({"since": "2026-01-31T08:00:00"}, "the time has no zone"),
        ({"until": "123"}, "--until '123' is no time"),
        ({"since": "1h", "until": "2h"}, "--until is not after --since"),
    ],
)
def test_a_mistake_is_a_sentence_that_names_the_option(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigurationError) as caught:
        Filter.parse(now=NOW, **options)
    assert said in str(caught.value)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("2h", NOW - 7200),
        ("1h30m", NOW - 5400),
        ("2026-11-30T20:20:00Z", NOW),
        ("2026-11-30T21:20:00+01:00", NOW),
        (str(STAMP_MS), NOW),
    ],
)
def test_times(text: str, seconds: float) -> None:
    assert moment_of(text, NOW, "--since") == seconds


@pytest.mark.parametrize(
    "text", ["orders", "orders/3", "orders/3/17", "orders/3:17-42", "orders/3:17-", "a.b_c-d/0/0"]
)
def test_places_are_written_as_they_are_read(text: str) -> None:
    assert str(Places.parse(text)) == text


def test_the_description_names_every_condition() -> None:
    where = Filter.parse(
        error=["Declined"],
        fingerprint=["00aa"],
        key=["null:", "hex:ff"],
        original=["orders/3"],
        at=["orders.billing.dlq/0/17"],
        since="2026-11-30T20:00:00Z",
        until="2026-11-30T21:00:00Z",
        header=["a", "b=c"],
        original_group=["billing"],
        value=["x"],
        replayed=False,
    )
    assert where.describe() == (
        "error Declined, fingerprint 00aa.., key null: or hex:ff, original orders/3, dead letter "
        "orders.billing.dlq/0/17, died at or after 2026-11-30T20:00:00.000Z, died before "
        "2026-11-30T21:00:00.000Z, header a, header b=c, group billing, value contains x, "
        "never replayed before"
    )
    assert not where.is_all
    assert Filter.from_json(where.to_json()) == where


@pytest.mark.parametrize(
    "found",
    [
        {"strange": 1},
        {"errors": "Declined"},
        {"errors": [1]},
        {"since": "now"},
        {"since": True},
        {"since": 1e300},
        {"headers": [["a"]]},
        {"headers": 5},
        {"at": ["or ders"]},
        {"keys": ["hex:x"]},
        {"replayed": "yes"},
        {"fingerprints": [""]},
    ],
)
def test_json_that_is_no_filter_is_refused(found: dict[str, Any]) -> None:
    with pytest.raises(ConfigurationError):
        Filter.from_json(found)


@given(st.binary(max_size=40))
def test_bytes_that_are_shown_are_read_back(raw: bytes) -> None:
    [key] = Filter.parse(key=[show_key(raw)]).keys
    assert key == raw
    if raw:
        assert Filter.parse(value=[show_bytes(raw)]).values == (raw,)
    assert show_bytes(raw).isprintable()


PLACES = st.builds(
    Places,
    st.from_regex(r"[A-Za-z0-9._-]{1,20}", fullmatch=True),
    st.integers(0, 100),
    st.just(0) | st.integers(0, 50),
    st.none() | st.integers(50, 2**62),
)


@given(
    st.builds(
        Filter,
        errors=st.lists(st.text(max_size=9), max_size=2).map(tuple),
        keys=st.lists(st.none() | st.binary(max_size=9), max_size=3).map(tuple),
        originals=st.lists(PLACES, max_size=2).map(tuple),
        at=st.lists(PLACES, max_size=2).map(tuple),
        since=st.none() | st.floats(0, 10**10),
        until=st.none() | st.floats(0, 10**10),
        headers=st.lists(
            st.builds(HeaderIs, st.text(min_size=1, max_size=9), st.none() | st.binary(max_size=9)),
            max_size=2,
        ).map(tuple),
        values=st.lists(st.binary(min_size=1, max_size=9), max_size=2).map(tuple),
        replayed=st.none() | st.booleans(),
    )
)
def test_every_filter_survives_json(where: Filter) -> None:
    assert Filter.from_json(json.loads(json.dumps(where.to_json()))) == where
    assert isinstance(where.describe(), str)
    assert isinstance(where.matches(own()), bool)
