"""Exports: byte-exact, whole or not there at all, and nothing in them that a terminal would obey."""

from __future__ import annotations

import base64
import json
import stat
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamloop.dlq.exporting import ExportError, end_line, head_line, letter_json, line, written_atomically
from streamloop.dlq.filters import Filter
from streamloop.dlq.letter import letter_of
from streamloop.errors import ConfigurationError
from tests.dead_letters import STAMP_MS, message, own

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

Bytes = st.none() | st.binary(max_size=60)


def exported(letter: Any, **more: Any) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(line(letter_json(letter, topic_id="T1", cluster_id="C1", **more)))
    return found


def decoded(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text, validate=True)


@given(Bytes, Bytes, st.lists(st.tuples(st.text(max_size=9), Bytes), max_size=6))
def test_key_value_and_headers_are_byte_exact(
    key: bytes | None, value: bytes | None, headers: list[tuple[str, bytes | None]]
) -> None:
    found = exported(letter_of(message(headers, value, key)))
    assert decoded(found["key_base64"]) == key
    assert decoded(found["value_base64"]) == value
    assert [(each["name"], decoded(each["value_base64"])) for each in found["headers"]] == headers
    if "value" in found:
        assert found["value"].encode() == value


def test_a_record_bears_the_identity_that_the_ledger_knows_it_by() -> None:
    found = exported(own(), state="replayed")
    assert found["kind"] == "record"
    assert found["id"] == {
        "cluster_id": "C1",
        "topic_id": "T1",
        "topic": "orders.billing.dlq",
        "partition": 0,
        "offset": 17,
    }
    assert found["state"] == "replayed"
    assert found["timestamp_ms"] == STAMP_MS
    assert found["original"]["offset"] == 1042
    assert found["first_failed_at"] == "2026-11-30T20:20:00.000Z"
    assert "state" not in exported(own())


def test_the_first_line_says_what_it_is_and_the_last_one_how_many_there_are() -> None:
    where = Filter.parse(error=["Declined"])
    head = head_line(
        cluster_id="C1", topic_ids={"a.dlq": "T1"}, group="billing", where=where, now=STAMP_MS / 1000
    )
    assert json.loads(line(head)) == {
        "kind": "dead-letters",
        "version": 1,
        "exported_at": "2026-11-30T20:20:00.000Z",
        "cluster_id": "C1",
        "topics": {"a.dlq": {"topic_id": "T1"}},
        "group": "billing",
        "filter": {"errors": ["Declined"]},
    }
    assert end_line(3) == {"kind": "end", "records": 3, "complete": True}


@given(st.text(max_size=40))
def test_no_line_holds_what_a_terminal_would_obey(text: str) -> None:
    value = (text + "\x9b\u202e\x7f\u2028").encode("utf-8", "ignore")
    raw = line(letter_json(letter_of(message([], value)), topic_id="T", cluster_id="C"))
    shown = raw.decode("utf-8")
    assert shown.endswith("\n")
    assert shown.count("\n") == 1
    assert not any(character in shown for character in "\x1b\x9b\u202e\x7f\u2028\x07")
    assert json.loads(shown)["value"].encode() == value


def write(
    path: Path, content: bytes, *, force: bool = False, then: Callable[[], object] = lambda: None
) -> None:
    with written_atomically(path, force=force) as out:
        out.write(content)
        assert not path.exists() or path.read_bytes() != content
        then()


def fails() -> None:
    raise RuntimeError


def test_a_file_is_there_only_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "letters.jsonl"
    with pytest.raises(RuntimeError):
        write(path, b"half", then=fails)
    assert list(tmp_path.iterdir()) == []
    write(path, b"whole")
    assert path.read_bytes() == b"whole"
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_is_replaced_only_with_force(tmp_path: Path) -> None:
    path = tmp_path / "letters.jsonl"
    path.write_bytes(b"evidence")
    begun: list[None] = []
    with pytest.raises(ConfigurationError, match="exists: name another file, or give --force"):
        write(path, b"new", then=lambda: begun.append(None))
    assert begun == []
    with pytest.raises(RuntimeError):
        write(path, b"half", force=True, then=fails)
    assert path.read_bytes() == b"evidence"
    write(path, b"new", force=True)
    assert path.read_bytes() == b"new"
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_that_came_into_being_meanwhile_is_not_replaced(tmp_path: Path) -> None:
    path = tmp_path / "letters.jsonl"
    with pytest.raises(ConfigurationError, match="exists by now"):
        write(path, b"ours", then=lambda: path.write_bytes(b"theirs"))
    assert path.read_bytes() == b"theirs"
    assert list(tmp_path.iterdir()) == [path]


def test_where_no_file_can_be_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="is a folder"):
        write(tmp_path, b"", force=True)
    with pytest.raises(ExportError, match="can't be written: No such file or directory"):
        write(tmp_path / "no" / "such", b"")
    link = tmp_path / "link"
    link.symlink_to("nowhere")
    with pytest.raises(ConfigurationError, match="exists"):
        write(link, b"")
