"""Dead letters on a terminal: what a person needs, and nothing that a terminal would obey."""

from __future__ import annotations

import io
import json
import re
from dataclasses import dataclass
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from streamloop.cli.dlq_view import after_groups, after_letter, groups_view, letter_view
from streamloop.codecs import codec_for
from streamloop.dlq.groups import Grouper, Groups
from streamloop.dlq.letter import DeadLetter, letter_of
from streamloop.dlq.values import MOST_HEX, MOST_LINES, pretty, show_header, show_value
from tests.dead_letters import CONNECT, KAFKA, SPRING, TRACE, message, own

HARMFUL = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200b-\u200f\u2028-\u202e\u2060-\u2069\ufeff]")
"""What no output may hold; a new line is ours."""


def drawn(view: Any, width: int = 100) -> str:
    out = io.StringIO()
    Console(file=out, width=width, highlight=False, color_system=None).print(view)
    return "\n".join(line.rstrip() for line in out.getvalue().splitlines())


def groups_of(*letters: tuple[DeadLetter, str], most: int = 100, **changes: Any) -> Groups:
    grouper = Grouper(most)
    for letter, state in letters:
        grouper.add(letter, state)
    found = Groups(
        grouper.found(),
        grouper.letters,
        grouper.others,
        0,
        True,
        10,
        0,
        1.25,
        ["orders.billing.dlq"],
        grouper.states,
    )
    for name, value in changes.items():
        setattr(found, name, value)
    return found


# ----------------------------------------------------------------------------------------------------- groups


def test_groups_say_how_many_since_when_which_topic_which_error_and_where_to_look() -> None:
    found = groups_of(*((own(offset), "open") for offset in range(3)), (own(9), "replayed"))
    said = drawn(groups_view(found, limit=10, only_open=True), 80)
    assert "00aa11bb22cc33dd     3     4  2026-11-30 20:20:00  orders" in said
    assert "25 % replayed" in said
    assert "  Declined: card 7 was declined" in said
    assert "  newest orders.billing.dlq/0/2" in said
    assert "4 dead letters in orders.billing.dlq: 3 open, 1 group (read in 1.2 s)" in said


def test_the_next_commands_can_be_copied() -> None:
    found = groups_of((own(), "open"))
    said = drawn(after_groups(found.groups[0], " --group billing"))
    assert "streamloop dlq show orders.billing.dlq/0/17 --group billing" in said
    assert "streamloop dlq replay --fingerprint 00aa11bb22cc33dd --group billing --dry-run" in said


def test_groups_without_open_letters_are_shown_only_with_all() -> None:
    found = groups_of((own(1, fingerprint="aa"), "open"), (own(2, fingerprint="bb"), "purged"))
    said = drawn(groups_view(found, limit=10, only_open=True))
    assert "bb " not in said
    assert "1 group without an open letter: replayed or purged (--all)" in said
    said = drawn(groups_view(found, limit=10, only_open=False))
    assert "100 % purged" in said
    assert "(--all)" not in said


def test_a_part_is_never_shown_as_none_or_all_of_it() -> None:
    many = [(own(at), "replayed") for at in range(999)]
    said = drawn(groups_view(groups_of(*many, (own(1000), "open")), limit=10, only_open=True))
    assert "99 % replayed" in said
    few = [(own(at), "open") for at in range(999)]
    said = drawn(groups_view(groups_of(*few, (own(1000), "replayed")), limit=10, only_open=True))
    assert "1 % replayed" in said


def test_what_is_not_in_the_groups_is_said() -> None:
    letters = [(own(at, fingerprint=f"f{at}"), "open") for at in range(4)]
    found = groups_of(
        *letters,
        most=3,
        complete=False,
        offsets=100,
        offsets_left=40,
        skipped=5,
        notes=["retention \x1b[1mtook"],
    )
    said = drawn(groups_view(found, limit=2, only_open=True, interrupted=True))
    assert "1 more group not shown (--limit)" in said
    assert "1 letter of other fingerprints than the 3 groups that are kept: counted, not grouped" in said
    assert "interrupted: 40 of 100 offsets were not read; all numbers are of what was read" in said
    assert "5 did not match" in said
    assert r"retention \x1b[1mtook" in said


def test_without_a_group_nothing_is_said_to_be_open() -> None:
    said = drawn(groups_view(groups_of((own(), "open")), limit=9, only_open=True, ledger_known=False))
    assert "whether they were replayed is not known without --group" in said
    assert " 1 open" not in said


def test_no_letters_is_no_table() -> None:
    assert drawn(groups_view(groups_of(), limit=9, only_open=True)) == (
        "0 dead letters in orders.billing.dlq (read in 1.2 s)"
    )


# ------------------------------------------------------------------------------------------------- one letter


def test_one_letter_whole() -> None:
    letter = own(value=b'{"id": 7, "amount": 12.50}')
    said = drawn(letter_view(letter, state="open", jaeger="http://jaeger:16686/"))
    for part in (
        "orders.billing.dlq/0/17 is dead: Declined: card 7 was declined",
        "orders/3/1042   (written 2026-11-30 20:19:00.000Z)",
        "first 2026-11-30 20:20:00.000Z, last 2026-11-30 20:20:00.000Z after 6 attempts",
        "shop.errors.Declined",
        f"trace        {TRACE}",
        f"             http://jaeger:16686/trace/{TRACE}",
        "26 B, JSON",
        '    "amount": 12.50',
        "streamloop-error-fingerprint    00aa11bb22cc33dd",
        "__dlq.errors.delivery.count     6",
    ):
        assert part in said
    again = drawn(after_letter(letter, " --group billing"))
    assert "streamloop trace orders/3/1042 --group billing" in again
    assert "streamloop dlq replay --at orders.billing.dlq/0/17 --group billing --dry-run" in again


def test_a_letter_without_an_original_is_to_be_sent_to_a_topic() -> None:
    letter = letter_of(message([]))
    said = drawn(letter_view(letter))
    assert "another program, without any header that says why" in said
    assert "no headers" in said
    assert "--at orders.billing.dlq/0/17 --to-topic TOPIC --dry-run" in drawn(after_letter(letter, ""))


@pytest.mark.parametrize(
    ("headers", "parts"),
    [
        (
            SPRING,
            ["by Spring Kafka", "shop/3/77", "3 (hex:00000003)", "77 (hex:000000000000004d)", "    at a.B.c"],
        ),
        (CONNECT, ["by Kafka Connect", "source/0/3", "connect-warehouse", "DataException: no schema"]),
        (KAFKA, ["by Kafka's own dead-letter queue", "jobs/2/41", "after 5 attempts", "rejected"]),
    ],
)
def test_letters_of_other_programs(headers: Any, parts: list[str]) -> None:
    said = drawn(letter_view(letter_of(message(headers))))
    for part in parts:
        assert part in said


def test_hostile_texts_never_reach_the_terminal() -> None:
    evil = "\x1b]0;x\x07\x1b[2J\u202e[bold]\r\x9b31m"
    headers = [
        *own(error_class=evil, error_message=evil, group=evil, original=(evil, 0, 0)).headers,
        (evil, evil.encode()),
        ("null", None),
        ("bytes", b"\xff\xfe"),
    ]
    for value in (
        evil.encode(),
        json.dumps({"a": evil}, ensure_ascii=False).encode(),
        b"\xff" + evil.encode(),
    ):
        letter = letter_of(message(headers, value, evil.encode()))
        for view in (letter_view(letter), after_letter(letter, ""), letter_view(letter, full=True)):
            said = drawn(view, 300)
            assert HARMFUL.search(said) is None
        grouped = groups_of((letter, "open"), (letter, evil), topics=[evil], notes=[evil])
        for view in (groups_view(grouped, limit=9, only_open=False), after_groups(grouped.groups[0], "")):
            assert HARMFUL.search(drawn(view, 300)) is None
    said = drawn(letter_view(letter_of(message(headers))), 300)
    assert "[bold]" in said  # no markup either
    assert "hex:fffe" in said
    assert re.search(r"null\s+null", said)


# ----------------------------------------------------------------------------------------------------- values


def test_json_is_broken_into_lines_and_nothing_else() -> None:
    text = (
        '{"big":123456789012345678901234567890,"f":1.10,"twice":1,"twice":2,"e":[],"o":{},'
        '"n":[[1],{"a":"},{"}]}'
    )
    shown = show_value(text.encode())
    assert shown.kind == "JSON"
    assert shown.lines == (
        "{",
        '  "big": 123456789012345678901234567890,',
        '  "f": 1.10,',
        '  "twice": 1,',
        '  "twice": 2,',
        '  "e": [],',
        '  "o": {},',
        '  "n": [',
        "    [",
        "      1",
        "    ],",
        "    {",
        '      "a": "},{"',
        "    }",
        "  ]",
        "}",
    )


JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
)


@given(JSON)
def test_json_in_lines_is_the_same_json(value: Any) -> None:
    compact = json.dumps(value)
    lines = list(pretty(compact))
    assert json.loads("\n".join(lines)) == json.loads(compact)
    if isinstance(value, dict | list) and "{" not in str(value) and '"' not in compact:
        assert "\n".join(lines) == json.dumps(value, indent=2)


@given(st.binary(max_size=2_000), st.booleans())
def test_whatever_the_value_its_lines_are_harmless(value: bytes, full: bool) -> None:
    shown = show_value(value, full=full)
    assert shown.kind
    for line in (*shown.lines, shown.kind, shown.cut):
        assert HARMFUL.search(line) is None
        assert "\n" not in line
    assert HARMFUL.search(show_header("kafka_x", value)) is None


def test_values_that_are_none_or_no_text() -> None:
    assert show_value(None).kind == "null: a tombstone"
    assert show_value(b"").kind == "empty"
    assert show_value(b"plain\ntext").lines == ("plain", "text")
    shown = show_value(b"\x80abc")
    assert (shown.kind, shown.lines) == (
        "binary",
        ("00000000  80 61 62 63                                      .abc",),
    )
    assert show_value(b"\0\0\0\0\x2a\x80").kind == "binary; perhaps of schema 42 in a schema registry"


def test_long_values_are_cut_and_say_so_unless_all_is_asked_for() -> None:
    lines = b"\n".join(b"%d" % number for number in range(1_000))
    assert len(show_value(lines).lines) == MOST_LINES
    assert show_value(lines).cut == "800 more lines: --full shows them"
    assert len(show_value(lines, full=True).lines) == 1_000
    assert show_value(b"x" * 10_000).cut == "6,000 more characters in long lines: --full shows them"
    binary = b"\xff" * 10_000
    assert len(show_value(binary).lines) == MOST_HEX // 16
    assert show_value(binary).cut == "9,488 more bytes: --full shows them, --raw writes all"
    assert show_value(binary, full=True).cut == ""
    assert "more lines" in show_header("stack", lines)


@dataclass
class Order:
    id: int
    tags: list[bytes]


def test_the_loops_codec_decodes_where_it_can() -> None:
    decode = codec_for(Order).decode
    shown = show_value(b'{"id":7,"tags":["a"]}', decode)
    assert shown.kind == "Order, decoded by the loop's codec"
    assert orjson.loads("".join(shown.lines))["id"] == 7
    refused = show_value(b'{"id":"\x1b[2J"}', decode)
    assert refused.kind.startswith("text, which the loop's codec refuses: can't be decoded as")
    assert HARMFUL.search(refused.kind) is None
    assert show_value(b'{"id":1}', codec_for(bytes).decode).kind == "JSON"


class Broken:
    def __repr__(self) -> str:
        raise RuntimeError


def test_what_a_codec_makes_may_be_unprintable() -> None:
    assert show_value(b"x", lambda _value: Broken()).kind == "text"
