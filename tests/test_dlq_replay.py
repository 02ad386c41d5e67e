"""Where a dead letter goes, what goes there, and what a person's edit makes of it: without a broker."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from streamloop.cli.dlq_edit import document_of, edit_of
from streamloop.cli.dlq_replay import _count_or_share, _rate, _share
from streamloop.cli.dlq_replay_view import preview_lines, status_lines, summary_lines
from streamloop.dlq.api import RunStatus
from streamloop.dlq.letter import DeadLetter
from streamloop.dlq.plan import Preview, ReplayPlan, ReplaySummary, RunProgress
from streamloop.dlq.runs import RunRecord
from streamloop.dlq.settle import Outcomes, Settling
from streamloop.dlq.targets import Destination, Edit, Skip, Target, Targets, record_for
from streamloop.dlq.traced import ReplayTraces
from streamloop.dlq.writer import Placed, Publish
from streamloop.errors import ConfigurationError
from streamloop.kafka import headers as hd
from streamloop.kafka.topics import TopicFacts
from streamloop.settings import Settings
from tests.tracing import attribute, context_of, parent_id, trace_id, traceparent, use_provider

SETTINGS = Settings.load(
    {"brokers": ["nobody:1"], "group": "billing", "retry_topics": ["30s"]}, env={}
).settings
HOSTILE = "\x1b]0;gone\x07\u202e"


def letter(**more: Any) -> DeadLetter:
    given: dict[str, Any] = {
        "topic": "orders.billing.dlq",
        "partition": 1,
        "offset": 17,
        "timestamp_ms": 5,
        "leader_epoch": None,
        "key": b"k",
        "value": b"v",
        "headers": [],
        "written_by": "streamloop",
        "original": hd.Coordinates("orders", 5, 42, 4),
        "group": "billing",
        "error_class": "E",
        "error_message": "m",
        "fingerprint": "f",
        "attempts": 3,
        "first_failed_at": None,
        "failed_at": None,
        "replay_id": None,
        "replay_count": 0,
        "trace_id": None,
    }
    return DeadLetter(**{**given, **more})


class Admin:
    """Knows some topics."""

    def __init__(self, *names: str) -> None:
        self.names = names
        self.asked: list[str] = []

    def describe(self, names: list[str], _timeout: float) -> dict[str, TopicFacts | None]:
        self.asked += names
        return {
            name: TopicFacts(name, "id", 4, max_message_bytes=1000) if name in self.names else None
            for name in names
        }


def targets(*names: str, target: Target = Target.REPLAY, **more: Any) -> Targets:
    admin: Any = Admin(*names)
    return Targets(SETTINGS, admin, target, **more)


class TestTargets:
    def test_each_source_has_its_replay_topic_and_is_asked_for_once(self) -> None:
        found = targets("orders.billing.replay")
        assert found.of(letter()) == Destination("orders.billing.replay", 4, 1000)
        assert found.of(letter(offset=18)) == Destination("orders.billing.replay", 4, 1000)
        assert found.admin.asked == ["orders.billing.replay"]  # type: ignore[attr-defined]
        assert found.of(letter(original=hd.Coordinates("other", 0, 0, None))) is Skip.NO_TARGET

    @pytest.mark.parametrize(
        ("target", "more", "wanted"),
        [
            (Target.RETRY, {}, Destination("orders.billing.retry.30s", 4, 1000, 30.0)),
            (Target.SOURCE, {}, Destination("orders", 4, 1000)),
            (Target.TOPIC, {"to_topic": "any"}, Destination("any", 4, 1000)),
        ],
    )
    def test_other_targets(self, target: Target, more: dict[str, str], wanted: Destination) -> None:
        names = ("orders", "orders.billing.retry.30s", "any")
        assert targets(*names, target=target, **more).of(letter()) == wanted

    def test_what_does_not_go_and_why(self) -> None:
        found = targets("orders.billing.replay")
        assert found.of(letter(original=None)) is Skip.NO_ORIGINAL
        assert found.of(letter(group="another")) is Skip.OTHER_GROUP
        assert found.of(letter(group=None)) is Skip.OTHER_GROUP  # of streamloop's letters the group is known
        strange = letter(group=None, written_by="spring")
        assert isinstance(found.of(strange), Destination)
        assert found.of(letter(original=hd.Coordinates(HOSTILE, 0, 0, None))) is Skip.NO_TARGET
        no_retry = targets(target=Target.RETRY)
        no_retry.settings = SETTINGS.model_copy(update={"retry_topics": ()})
        no_retry.sources = {"orders": SETTINGS.for_consumer("x").model_copy(update={"retry_topics": ()})}
        assert no_retry.of(letter()) is Skip.NO_RETRY
        anywhere = targets("any", target=Target.TOPIC, to_topic="any")
        assert isinstance(anywhere.of(letter(original=None, group="another")), Destination)

    def test_a_topic_s_name_belongs_to_that_target_alone(self) -> None:
        for target, name in ((Target.TOPIC, None), (Target.REPLAY, "any")):
            with pytest.raises(ConfigurationError):
                targets(target=target, to_topic=name)


class TestRecord:
    def made(self, dead: DeadLetter, destination: Destination | None = None, **more: Any) -> Publish | Skip:
        to = destination or Destination("t", 4, None)
        return record_for(dead, to, group="billing", run="r1", count=2, now_ms=1_000, **more)

    @given(
        st.binary(max_size=20) | st.none(),
        st.binary(max_size=20) | st.none(),
        st.lists(st.tuples(st.sampled_from(["h", "x", "traceparent"]), st.binary(max_size=8) | st.none())),
    )
    def test_P4_key_value_and_headers_are_the_letter_s_own(
        self, key: bytes | None, value: bytes | None, headers: hd.RawHeaders
    ) -> None:
        ours: hd.RawHeaders = [("streamloop-attempt", b"9"), ("__dlq.errors.topic", b"t")]
        found = self.made(letter(key=key, value=value, headers=[*headers, *ours]))
        assert isinstance(found, Publish)
        assert (found.key, found.value, found.partition) == (key, value, 1)
        assert hd.user_headers(found.headers) == headers
        named = dict(found.headers)
        assert named[hd.REPLAYED_FROM] == b"orders.billing.dlq/1/17"
        assert (named[hd.REPLAY_ID], named[hd.REPLAY_COUNT], named[hd.REPLAYED_AT]) == (b"r1", b"2", b"1000")
        assert hd.ATTEMPT not in named
        routing = hd.read_routing(found.headers, group="billing")
        assert routing is not None
        assert (routing.original, routing.attempt) == (("orders", 5, 42, 4), 0)

    def test_a_retry_topic_s_record_waits(self) -> None:
        found = self.made(letter(), Destination("t", 4, None, 30.0))
        assert isinstance(found, Publish)
        assert dict(found.headers)[hd.NOT_BEFORE] == b"31000"

    def test_sizes_are_looked_at_before_anything_is_sent(self) -> None:
        assert self.made(letter(value=b"x" * 1000), Destination("t", 4, 1000)) is Skip.TOO_LARGE

    def test_an_edit_goes_to_the_record_that_was_edited_and_to_no_other_in_its_place(self) -> None:
        edited = Edit(b"mended", None, letter(value=b"broken"))
        made = self.made(letter(value=b"broken"), edit=edited)
        assert isinstance(made, Publish)
        assert made.value == b"mended"
        assert self.made(letter(value=b"another order"), edit=edited) is Skip.OTHER_RECORD
        assert self.made(letter(value=b"broken", key=b"another"), edit=edited) is Skip.OTHER_RECORD
        assert isinstance(self.made(letter(value=b"x" * 100), Destination("t", 4, 1000)), Publish)

    def test_without_an_original_the_key_places_it(self) -> None:
        found = self.made(letter(original=None))
        assert isinstance(found, Publish)
        assert found.partition == -1
        assert hd.ORIGINAL_TOPIC not in dict(found.headers)


class TestEdit:
    @given(
        st.binary(max_size=60) | st.text(max_size=40).map(str.encode) | st.none(),
        st.lists(st.tuples(st.text(min_size=1, max_size=5), st.binary(max_size=8) | st.none()), max_size=3),
    )
    def test_what_is_not_touched_stays_byte_for_byte(
        self, value: bytes | None, headers: hd.RawHeaders
    ) -> None:
        dead = letter(value=value, headers=headers)
        document = document_of(dead)
        assert edit_of(dead, document) is None
        more = document.replace(b"=== value: ", b'{"name": "added", "value": "1"}\n=== value: ', 1)
        assert edit_of(dead, more) == Edit(value, [*hd.user_headers(headers), ("added", b"1")])

    def test_a_value_is_changed(self) -> None:
        dead = letter(value=b'{"amount": -5}', headers=[("h", b"\xff"), ("streamloop-attempt", b"3")])
        document = document_of(dead)
        assert b"streamloop-attempt" not in document
        assert edit_of(dead, document.replace(b"-5", b"5")) == Edit(b'{"amount": 5}', [("h", b"\xff")])
        null = document.replace(b"=== value: text", b"=== value: null")
        assert edit_of(dead, null) == Edit(None, [("h", b"\xff")])
        assert edit_of(dead, None) is None

    @pytest.mark.parametrize(
        ("old", "new", "said"),
        [
            (b"=== value: ", b"", "The line === value: .. is missing"),
            (b"text", b"words", "of the kind b'words'"),
            (b"text", b"base64", "no base64"),
            (b'"name": "h"', b'"nome": "h"', "can't be read"),
            (b'"name": "h"', b'"name": "streamloop-attempt"', "streamloop's own"),
        ],
    )
    def test_a_mistake_is_a_sentence(self, old: bytes, new: bytes, said: str) -> None:
        dead = letter(value=b"{", headers=[("h", b"x")])
        head, mark, rest = document_of(dead).rpartition(b"\n=== value: ")
        body = (mark + rest).replace(old, new, 1) if old in mark + rest else mark + rest
        document = head.replace(old, new, 1) + body if old not in mark + rest else head + body
        with pytest.raises(ConfigurationError, match=said):
            edit_of(dead, document)


class TestPlan:
    @pytest.mark.parametrize(
        "wrong", [{"limit": 0}, {"rate": 0}, {"canary": -1}, {"settle": float("inf")}, {"threshold": -0.1}]
    )
    def test_numbers_that_mean_nothing_are_refused(self, wrong: dict[str, Any]) -> None:
        with pytest.raises(ConfigurationError, match=next(iter(wrong))):
            ReplayPlan(**wrong)

    def test_what_is_recorded_is_what_differs_from_the_defaults(self) -> None:
        assert ReplayPlan().to_json() == {}
        assert ReplayPlan(limit=3, edit=Edit(b"")).to_json() == {"limit": 3, "edited": True}

    def test_options(self) -> None:
        assert (_rate("50/s"), _rate("0.5"), _rate(None)) == (50, 0.5, None)
        assert (_count_or_share("--canary", "10"), _count_or_share("--canary", "1%")) == (10, 0.01)
        assert _share("--threshold", "25%") == 0.25
        with pytest.raises(ConfigurationError, match="--rate 'fast' is none"):
            _rate("fast")
        with pytest.raises(ConfigurationError, match="--threshold '200%' is none"):
            _share("--threshold", "200%")
        with pytest.raises(ConfigurationError, match="--canary 'x' is none"):
            _count_or_share("--canary", "x")


def test_everything_a_page_needs_is_json() -> None:
    progress = RunProgress("r1", "replaying", 3, 2, 5, 9, Outcomes(acked=2), 1.5)
    found = json.loads(json.dumps(progress.to_json()))
    assert (found["phase"], found["offsets_total"], found["outcomes"]["acked"]) == ("replaying", 9, 2)
    summary = ReplaySummary("r1", refused=[("dlq/0/1", "too large")])
    summary.skipped["purged"] += 2
    found = json.loads(json.dumps(summary.to_json()))
    assert (found["refused"], found["skipped"]) == ([["dlq/0/1", "too large"]], {"purged": 2})
    preview = Preview("all dead letters", "there")
    preview.targets["t"] += 1
    assert json.loads(json.dumps(preview.to_json()))["targets"] == {"t": 1}
    status = RunStatus(RunRecord.new("replay", "ada"), True, Outcomes(dead=1))
    assert json.loads(json.dumps(status.to_json()))["outcomes"]["dead"] == 1


class TestOutcomes:
    def test_the_share_is_of_those_that_are_known(self) -> None:
        assert Outcomes(unknown=5).share_bad == 0
        assert Outcomes(acked=6, failed_again=1, dead=1, unknown=100).share_bad == 0.25


def test_nothing_that_a_terminal_obeys_is_shown() -> None:
    summary = ReplaySummary("r1", "stopped", HOSTILE, HOSTILE, HOSTILE, 1, 1, refused=[(HOSTILE, HOSTILE)])
    summary.expired_notes = [HOSTILE]
    found = Preview(HOSTILE, HOSTILE, readers={HOSTILE: [HOSTILE]}, samples=[HOSTILE], busy=HOSTILE)
    run = RunRecord.new("replay", HOSTILE, described=HOSTILE, note=HOSTILE, topics=[HOSTILE], target=HOSTILE)
    lines = [
        *summary_lines(summary),
        *preview_lines(found),
        *status_lines(RunStatus(run, True, Outcomes()), 0),
    ]
    for line in lines:
        assert line.isprintable(), line


def test_a_preview_says_what_would_go_where_in_one_line() -> None:
    first = next(preview_lines(Preview("error CardDeclined", "the replay topic")))
    assert first.startswith("Would replay 0 of 0 (error CardDeclined), ")
    assert first.endswith(", to the replay topic:")


def test_a_summary_says_where_to_look_next() -> None:
    again = ReplaySummary("r1", "finished", matched=3, replayed=3, outcomes=Outcomes(dead=3))
    assert any("dlq ls --replayed" in line for line in summary_lines(again))
    good = ReplaySummary("r1", "finished", matched=3, replayed=3, outcomes=Outcomes(acked=3))
    assert not any("dlq ls" in line for line in summary_lines(good))
    nothing = ReplaySummary("r1", "finished")
    assert any(line.startswith("No dead letter matched") for line in summary_lines(nothing))
    taken_over = ReplaySummary("r1", "taken over")
    assert not any(line.startswith("No dead letter matched") for line in summary_lines(taken_over))


class TestTraces:
    def test_T1_the_send_back_is_a_span_of_the_messages_trace(self, monkeypatch: pytest.MonkeyPatch) -> None:
        spans = use_provider(monkeypatch)
        traces = ReplayTraces(SETTINGS)
        headers, context = spans.produced()
        given = Publish("orders.billing.replay", 1, b"k", b"v", [("h", b"\xff"), *headers])
        number, publish = traces.begin(given)
        assert publish.headers[0] == ("h", b"\xff")
        traces.placed(number, Placed("orders.billing.replay", 1, 7))
        span = spans.one("send orders.billing.replay")
        assert (trace_id(span), parent_id(span)) == (context.trace_id, context.span_id)
        assert [value for name, value in publish.headers if name == "traceparent"] == [
            traceparent(context_of(span)).encode()
        ]
        assert attribute(span, "messaging.kafka.offset") == 7

    def test_an_unsampled_message_and_one_without_a_trace_are_left_as_they_are(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        spans = use_provider(monkeypatch)
        traces = ReplayTraces(SETTINGS)
        nonsense: hd.RawHeaders = [("traceparent", b"nonsense")]
        for headers in (spans.produced(sampled=False)[0], nonsense, []):
            given = Publish("t", 1, None, None, headers)
            assert traces.begin(given) == (0, given)
            traces.gave_up(0)
        assert spans.all() == []


class Routed:
    """A record in a retry or dead-letter topic."""

    def __init__(self, topic: str, *headers: tuple[str, bytes | None]) -> None:
        self._topic = topic
        self._headers = list(headers)

    def topic(self) -> str:
        return self._topic

    def headers(self) -> hd.RawHeaders:
        return self._headers


class TestSettling:
    def settling(self, count: int = 6) -> Settling:
        """So many letters of orders.billing.dlq/0 that were replayed to replay/1, offsets from 100 on."""
        none: Any = None
        found = Settling(SETTINGS, "r1", group="billing.retry", admin=none)
        found.go_on_from({"retry": {"0": 0}, "dlq": {"0": 0}}, ["dlq"])
        for offset in range(count):
            found.sent("dlq", 0, offset, Placed("replay", 1, 100 + offset))
        return found

    def seen(self, found: Settling, topic: str, offset: int, run: bytes = b"r1") -> None:
        found._seen(Routed(topic, (hd.REPLAY_ID, run), (hd.REPLAYED_FROM, b"dlq/0/%d" % offset)))

    def test_acked_failed_again_dead_and_not_known_yet(self) -> None:
        found = self.settling()
        found._committed["replay", 1] = (103, ((105, 106),))  # past 100 to 102, and 105 by the metadata
        self.seen(found, "retry", 1)
        self.seen(found, "retry", 2)
        self.seen(found, "dlq", 2)
        self.seen(found, "retry", 3)  # routed, and its acknowledgement is not committed yet
        assert found._outcomes() == Outcomes(acked=2, failed_again=2, dead=1, unknown=1)
        assert (found.bad, found.dead) == (3, 1)

    def test_records_of_other_runs_and_of_nobody_count_for_nothing(self) -> None:
        found = self.settling()
        self.seen(found, "dlq", 1, run=b"another")
        self.seen(found, "dlq", 77)
        for place in (
            None,
            b"",
            b"dlq",
            b"dlq/0",
            b"dlq/x/1",
            b"dlq/0/" + b"9" * 40,
            b"\xff/0/1",
            b"dlq/0/-1",
        ):
            found._seen(Routed("dlq", (hd.REPLAY_ID, b"r1"), (hd.REPLAYED_FROM, place)))
        found._seen(Routed("dlq"))
        assert found._outcomes() == Outcomes(unknown=6)

    def test_letters_of_several_topics_and_out_of_order_are_told_apart(self) -> None:
        found = self.settling(3)
        found.sent("dlq", 0, 1_000, Placed("replay", 0, 5))
        found.sent("dlq", 0, 500, Placed("replay", 0, 6))
        found.sent("other", 0, 1, Placed("replay", 0, 7))
        self.seen(found, "dlq", 500)
        found._committed["replay", 0] = (8, ())
        assert found._outcomes() == Outcomes(acked=2, failed_again=0, dead=1, unknown=3)
