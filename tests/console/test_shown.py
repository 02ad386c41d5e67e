"""What others wrote is shown bounded, and with nothing in it that acts or misleads."""

from __future__ import annotations

import json
import re

from hypothesis import given
from hypothesis import strategies as st

from streamloop.ops.console.shown import (
    LONGEST_HEX,
    LONGEST_VALUE,
    MOST_HEADERS,
    shown_bytes,
    shown_headers,
    shown_text,
)

ACTS = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff\ud800-\udfff]"
)


@given(st.binary(max_size=400) | st.text(max_size=400).map(lambda t: t.encode("utf-8", "surrogatepass")))
def test_no_value_is_shown_with_characters_that_act(content: bytes) -> None:
    shown = shown_bytes(content)
    assert ACTS.search(shown["text"]) is None
    assert ACTS.search(shown.get("raw", "")) is None
    json.dumps(shown).encode()
    assert shown["size"] == len(content)


@given(st.text(max_size=100) | st.text(alphabet="\u202e\x1b\r\ud800a", max_size=20))
def test_no_line_is_shown_with_characters_that_act(text: str) -> None:
    shown = shown_text(text)
    assert ACTS.search(shown) is None
    assert "\n" not in shown


def test_json_is_indented_and_kept_as_it_is() -> None:
    shown = shown_bytes(b'{"a":[1,2],"big":123456789012345678901234567890}')
    assert shown["kind"] == "json"
    assert '"big": 123456789012345678901234567890' in shown["text"]
    assert shown["raw"] == '{"a":[1,2],"big":123456789012345678901234567890}'


def test_json_that_is_nested_without_end_is_text() -> None:
    assert shown_bytes(b"[" * 30_000)["kind"] == "text"


def test_a_large_value_is_cut_at_a_character_and_says_so() -> None:
    shown = shown_bytes(("é" * 600_000).encode())
    assert shown["kind"] == "text"
    assert shown["size"] == 1_200_000
    assert shown["shown"] == LONGEST_VALUE
    assert len(shown["text"].encode()) <= LONGEST_VALUE
    odd = shown_bytes(b"x" + "é".encode() * 600_000)
    assert odd["kind"] == "text"


def test_bytes_are_shown_in_hexadecimal() -> None:
    shown = shown_bytes(bytes(range(256)) * 100)
    assert shown["kind"] == "hex"
    assert shown["shown"] == LONGEST_HEX
    assert shown["text"].startswith("000000  00 01 02")


def test_null_and_empty_are_told_apart() -> None:
    assert shown_bytes(None)["kind"] == "null"
    assert shown_bytes(b"")["kind"] == "empty"


def test_headers_stay_in_order_with_their_duplicates_and_are_bounded() -> None:
    headers: list[tuple[str, bytes | None]] = [("a", b"1"), ("a", None), ("\x1b[31m", b"\xff\x00")]
    shown = shown_headers(headers)
    assert [each["name"] for each in shown] == ["a", "a", "\\x1b[31m"]
    assert [each["value"]["kind"] for each in shown] == ["text", "null", "bytes"]
    many = shown_headers([("h", b"v")] * (MOST_HEADERS + 5))
    assert len(many) == MOST_HEADERS + 1
    assert many[-1]["value"]["text"] == "and 5 more headers"
