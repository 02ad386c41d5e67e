"""What a file, a header or a run's record may hold that breaks who reads it: refused in a sentence."""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING, Any

import pytest

from streamloop.cli.dlq_edit import edit_of
from streamloop.dlq import importing
from streamloop.dlq.importing import read_export
from streamloop.dlq.ledger import LedgerView, entry_key
from streamloop.dlq.plan import ReplayPlan
from streamloop.dlq.reading import ReadError
from streamloop.dlq.runs import RUNNING, RunRecord
from streamloop.dlq.session import facts_of
from streamloop.dlq.settle import Settling, place_of
from streamloop.dlq.writer import MOST_BYTES, Placed, writer_config
from streamloop.errors import ConfigurationError
from streamloop.kafka.topic_admin import TopicAdmin
from streamloop.kafka.topics import Commands, TopicFacts, Untold
from streamloop.message import _headers
from streamloop.settings import Settings
from tests.test_dlq_replay import letter

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SETTINGS = Settings.load({"brokers": ["nobody:1"], "group": "billing"}, env={}).settings
ID = "AAAAAAAAAAAAAAAAAAAAAQ"
HALF = "\ud800"


def exported(identity: Mapping[str, Any] | None = None, **more: Any) -> io.BytesIO:
    """An export of one letter, as somebody may have written it."""
    where = {"cluster_id": "c", "topic_id": ID, "topic": "orders.billing.dlq", "partition": 0, "offset": 5}
    record = {
        "kind": "record",
        "id": {**where, **(identity or {})},
        "key_base64": None,
        "value_base64": "dg==",
        "headers": [],
        **more,
    }
    lines = [{"kind": "dead-letters", "version": 1}, record, {"kind": "end", "records": 1}]
    return io.BytesIO(b"".join(json.dumps(line).encode() + b"\n" for line in lines))


class TestImport:
    @pytest.mark.parametrize("topic_id", [ID, "__-_AbC_-0123456789-_w", "unknown"])
    def test_what_it_takes_has_a_key_that_the_ledger_knows_again(self, topic_id: str) -> None:
        identity = {"topic_id": topic_id, "partition": 2**31 - 1, "offset": 2**63 - 1}
        (found,) = read_export(exported(identity), "file")
        view = LedgerView("billing.replays")
        key = entry_key(found.topic_id, found.topic, found.partition, found.offset)
        view.take(key, b'{"state":"imported"}')
        state = view.state_at(found.topic_id, found.topic, found.partition, found.offset)
        assert (view.strange, state) == (0, "imported")

    @pytest.mark.parametrize(
        "identity",
        [
            {"partition": 10**10},
            {"partition": True},
            {"offset": 2**63},
            {"offset": -1},
            {"offset": 1.5},
            {"topic_id": ""},
            {"topic_id": "a\nb"},
            {"topic_id": "run/x"},
            {"topic_id": HALF},
            {"topic": HALF},
            {"topic": "a/b"},
            {"topic": ""},
        ],
    )
    def test_p3_an_identity_that_would_come_back_twice_is_refused(self, identity: dict[str, Any]) -> None:
        with pytest.raises(ConfigurationError, match="line 2"):
            list(read_export(exported(identity), "file"))

    @pytest.mark.parametrize("name", [HALF, "a\0b"])
    def test_a_header_name_that_would_end_the_process_is_refused(self, name: str) -> None:
        headers = [{"name": name, "value_base64": "dg=="}]
        with pytest.raises(ConfigurationError, match="header"):
            list(read_export(exported(headers=headers), "file"))

    @pytest.mark.parametrize("line", [b"[" * 100_000, b'{"kind":' + b"9" * 5_000 + b"}", b"NaN", b"\xff\xfe"])
    def test_json_that_is_none_is_a_sentence(self, line: bytes) -> None:
        with pytest.raises(ConfigurationError):
            list(read_export(io.BytesIO(line + b"\n"), "file"))

    def test_a_line_without_an_end_is_not_read_into_memory(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(importing, "LONGEST_LINE", 1 << 20)

        class Endless(io.BytesIO):
            asked = 0

            def readline(self, size: int | None = -1, /) -> bytes:
                assert size is not None
                assert 0 < size <= (1 << 20) + 1
                return b"x" * size

        with pytest.raises(ConfigurationError, match="longer than 1 MiB"):
            list(read_export(Endless(), "file"))


@pytest.mark.parametrize("name", [HALF, "a\0b"])
def test_no_header_name_that_the_client_can_not_write_reaches_it(name: str) -> None:
    line = json.dumps({"name": name, "value": "x"}).encode()
    with pytest.raises(ConfigurationError, match="can't be read"):
        edit_of(letter(), line + b"\n=== value: text\nv\n")
    with pytest.raises(ValueError, match="header name"):
        _headers({name: b"x"})


class TestRuns:
    @pytest.mark.parametrize("moment", [float("nan"), float("inf"), 1e300, 10**400, -1])
    @pytest.mark.parametrize("name", ["started_at", "heartbeat_at"])
    def test_a_record_without_a_time_is_none(self, name: str, moment: float) -> None:
        record = RunRecord.new("replay", "ada").to_json() | {name: moment}
        assert RunRecord.from_json(record) is None

    def test_what_else_is_strange_in_a_record_breaks_nobody(self) -> None:
        strange = {
            "scan_from": {"a": {"x": 1, "0": "y", "1": 7, "9" * 5000: 1}, "b": 3},
            "topics": [1, "t"],
            "counts": {"replayed": "many", "skipped": 2},
            "ended_at": float("nan"),
            "options": {"limit": 10**300},
            "filter": json.loads('{"a":' * 500 + "1" + "}" * 500),
        }
        found = RunRecord.from_json(RunRecord.new("replay", "ada").to_json() | strange)
        assert found is not None
        assert (found.state, found.ended_at, found.topics) == (RUNNING, None, ["t"])
        assert (found.options, found.filter) == ({}, {})
        assert (found.scan_from, found.counts) == ({"a": {"1": 7}}, {"skipped": 2})
        assert "ada" in found.whose
        Settling(SETTINGS, "r", group="g", admin=Admin()).go_on_from(found.scan_from, ())  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["limit", "rate", "settle"])
def test_a_plan_with_a_number_that_no_page_can_show_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match=name):
        ReplayPlan(**{name: 2**63})  # type: ignore[arg-type]


class Admin:
    """Tells of the first topic and not of the second."""

    def describe(self, names: Any, _timeout: float, **_more: Any) -> dict[str, Any]:
        first, *others = names
        return {first: TopicFacts(first, ID, 1)} | {each: Untold("timed out") for each in others}


def test_a_topic_that_can_not_be_told_is_not_left_out_of_a_run() -> None:
    admin: Any = Admin()
    assert list(facts_of(admin, ["a"])) == ["a"]
    with pytest.raises(ReadError, match="topic b is can't be told: timed out"):
        facts_of(admin, ["a", "b"])


@pytest.mark.parametrize(
    "raw",
    [b"t/" + b"9" * 5000 + b"/1", b"t/1/" + b"9" * 5000, b"t", b"", b"t/-1/2", "t/1/9999999999999999999"],
)
def test_a_header_that_says_no_place_ends_no_replay(raw: bytes | str) -> None:
    assert place_of(raw) is None


def test_a_place_that_the_client_does_not_know_is_not_taken_for_acknowledged() -> None:
    admin: Any = Admin()
    settling = Settling(SETTINGS, "r", group="g", admin=admin)
    settling.sent("dlq", 0, 5, Placed("replay", 0, -1001))
    settling._committed["replay", 0] = (9, ())
    assert settling._outcomes().acked == 0


def test_the_writer_has_room_for_the_largest_record() -> None:
    config = writer_config(SETTINGS, 64 * 1024 * 1024)
    assert config["queue.buffering.max.kbytes"] * 1024 >= 64 * 1024 * 1024 + MOST_BYTES


@pytest.mark.parametrize("name", ["group", "replay_topic_name", "sasl_password", "ssl_ca_location"])
def test_a_setting_that_would_end_the_client_is_refused(name: str) -> None:
    with pytest.raises(ConfigurationError, match=name) as caught:
        Settings.load({"brokers": ["nobody:1"], "group": "billing", name: f"quite{HALF}"}, env={})
    assert name != "sasl_password" or "quite" not in str(caught.value)


def test_a_topic_whose_name_is_no_utf_8_does_not_exist() -> None:
    asked: list[str] = []

    class Known(TopicAdmin):
        def _first_look(self, _deadline: float) -> None: ...

        def _described(self, names: Sequence[str], _deadline: float) -> dict[str, TopicFacts | Untold | None]:
            asked.extend(names)
            return {name: TopicFacts(name, ID, 1) for name in names}

    admin: TopicAdmin = Known({"bootstrap.servers": "127.0.0.1:1"}, Commands("x"))
    admin._has_admin_api = True
    described = admin.describe([HALF, "a", "\udcff"], 5, configs=False)
    assert (asked, described[HALF], described["\udcff"]) == (["a"], None, None)
    assert described["a"] is not None
