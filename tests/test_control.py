"""The control topic without a broker: its records, the group as they show it, what is written when."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import orjson
import pytest
from confluent_kafka import KafkaError
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from streamloop.cli.group import drawn
from streamloop.control.operators import Operators
from streamloop.control.records import (
    LONGEST_RECORD,
    LONGEST_STATUS,
    MemberRecord,
    OperatorHold,
    Scope,
    hold_value,
    read_hold,
    read_status,
    status_key,
    status_value,
)
from streamloop.control.reporter import HEARTBEAT, LEAST_STATUS, Reporter
from streamloop.control.state import FORGOTTEN_AFTER, GONE_AFTER, MOST_MEMBERS, ControlState, Snapshot
from streamloop.control.trim import bounded, totals_of
from streamloop.control.view import HIDDEN, GroupView, view_of
from streamloop.errors import ConfigurationError
from streamloop.settings import Settings
from streamloop.status import ConsumerStatus, IntakeStatus, LoopStatus, PartitionStatus


class Clock:
    """Both clocks, under the test's command."""

    def __init__(self) -> None:
        self.now = 1_000.0

    def __call__(self) -> float:
        return self.now

    def wall(self) -> float:
        return 1_700_000_000.0 + self.now


def part(number: int, *, topic: str = "orders", lag: int | None = 0, **held: str) -> PartitionStatus:
    return PartitionStatus(topic, number, "charge", 1, 5, 5, 0, 0, 0, 0, 0, held, None, 5, lag, 1.0)


def status(*parts: PartitionStatus, member: str = "a", **more: Any) -> LoopStatus:
    intakes = tuple(
        IntakeStatus(name, "billing", "consumer", topics, 0, 0, 10, 10, 0, 0, 0.1)
        for name, topics in (("source", ("orders",)), ("retry", ("orders.retry",)))
    )
    consumer = ConsumerStatus("charge", ("orders",), "key", 10, 0, 0, 0.0, {"acked": 3}, {"E": 1})
    return LoopStatus("billing", member, "running", 5.0, intakes, (consumer,), parts, {}, **more)


def record(member: str, *parts: PartitionStatus, **more: Any) -> MemberRecord:
    made = MemberRecord(member, "i", "1", "host", 1, 0.0, 0.0, status(*parts, member=member), **more)
    return replace(made, topics=totals_of(made.status))


def state_of(clock: Clock) -> ControlState:
    return ControlState(clock=clock, wall=clock.wall)


def told(state: ControlState, made: MemberRecord, *, ago: float = 0.0, offset: int = 0) -> None:
    stamp = round((state._wall() - ago) * 1000)
    state.take(status_key(made.member), status_value(made), stamp, offset)


def view(state: ControlState, clock: Clock) -> GroupView:
    return view_of(state, group="billing", topic="billing.control", wall=clock.wall())


# --------------------------------------------------------------------------------------------- records


@pytest.mark.parametrize("scope", [Scope(), Scope("orders"), Scope("orders", 0), Scope("all", 12)])
def test_a_scope_and_its_key_say_the_same(scope: Scope) -> None:
    assert Scope.of_key(scope.key) == scope
    if scope.topic is not None:
        assert Scope.parse(str(scope)) == scope


@pytest.mark.parametrize(
    "text", ["", "a b", "orders/", "orders/x", "orders/-1", "orders/01", "a/1/2", "/1", "ü"]
)
def test_what_names_no_topic_or_partition_is_told(text: str) -> None:
    with pytest.raises(ConfigurationError, match="orders/3"):
        Scope.parse(text)
    assert Scope.of_key(b"operator/" + text.encode()) is None


def test_a_member_and_a_hold_are_read_as_they_were_written() -> None:
    made = record("a", part(0, operator="x"), part(1, lag=None), applied=7, topic_id="t")
    assert read_status(status_value(made)) == made
    hold = OperatorHold(Scope("orders", 3), "alice", 12.5, "why")
    assert read_hold(hold.scope, hold_value(hold)) == hold


def test_a_status_of_an_older_or_newer_member_is_read_as_far_as_it_is_the_same() -> None:
    shape = orjson.loads(status_value(record("a", part(0))))
    shape["record"]["status"]["new_field"] = [1]
    for late in ("paused", "control"):
        del shape["record"]["status"][late]
    read = read_status(orjson.dumps(shape))
    assert read is not None
    assert read.status.partitions == (part(0),)


@given(st.lists(st.tuples(st.one_of(st.none(), st.binary(max_size=40)), st.one_of(st.none(), st.binary()))))
def test_nothing_that_stands_in_the_topic_can_raise(records: list[tuple[bytes | None, bytes | None]]) -> None:
    clock = Clock()
    state = state_of(clock)
    for offset, (key, value) in enumerate(records):
        for prefix in (b"", b"status/", b"operator/"):
            for begin in (b"", b'{"v":1,', b'{"v":1,"kind":"operator",', b'{"v":1,"kind":"status","record":'):
                state.take(None if key is None else prefix + key, value and begin + value, -1, offset)
    orjson.dumps(view(state, clock))


@pytest.mark.parametrize(
    "odd",
    [
        {"member": 3},
        {"applied": 10**30},
        {"pid": "x"},
        {"status": None},
        {"status": {"group": "g"}},
        {"at": "soon"},
        {"topics": [{"topic": "t"}]},
    ],
)
def test_a_record_of_another_shape_is_no_member_but_is_named(odd: dict[str, Any]) -> None:
    clock = Clock()
    state = state_of(clock)
    shape = orjson.loads(status_value(record("a", part(0))))
    shape["record"].update(
        {name: float(v) if isinstance(v, int) and v > 99 else v for name, v in odd.items()}
    )
    state.take(b"status/a", orjson.dumps(shape), 0, 0)
    found = view(state, clock)
    assert (found.members, found.unreadable) == ((), ("a",))
    orjson.dumps(found)


def test_a_record_of_one_member_under_the_name_of_another_is_not_believed() -> None:
    clock = Clock()
    state = state_of(clock)
    state.take(status_key("victim"), status_value(record("thief")), 0, 0)
    assert (view(state, clock).members, view(state, clock).unreadable) == ((), ("victim",))


# ------------------------------------------------------------------------------- how large a status is


def test_a_status_is_bounded_keeps_what_needs_attention_and_says_what_was_cut() -> None:
    parts = [part(n, lag=n) for n in range(5_000)]
    parts[17] = part(17, lag=None, breaker="no connection " * 1_000)
    parts[18] = part(18, lag=0, retry_not_due="")
    made, value = bounded(record("a", *parts))
    assert len(value) <= LONGEST_STATUS
    read = read_status(value)
    assert read == made
    shown = read.status.partitions
    assert read.partitions_cut == 5_000 - len(shown)
    assert [each.partition for each in shown[:3]] == [17, 4999, 4998]
    assert len(shown[0].held["breaker"]) == 300
    [totals, retries] = read.topics
    assert (totals.partitions, totals.held, totals.lag_unknown) == (5_000, 2, 1)
    assert totals.lag == sum(range(5_000)) - 17 - 18
    assert (retries.kind, retries.partitions) == ("retry", 0)


def test_a_member_with_thousands_of_topics_still_fits() -> None:
    topics = tuple(f"topic-{n:0200}" for n in range(4_000))
    made = record("a")
    intakes = tuple(replace(each, topics=topics) for each in made.status.intakes)
    made, value = bounded(replace(made, status=replace(made.status, intakes=intakes)))
    assert len(value) <= LONGEST_STATUS
    assert read_status(value) == made


# ----------------------------------------------------------------------------------------- the members


def test_a_member_is_gone_after_45_s_of_silence_by_the_readers_own_clock() -> None:
    clock = Clock()
    state = state_of(clock)
    state.complete = True
    told(state, record("a", part(0)), ago=86_400)  # its clock, or the broker's, is a day behind
    told(state, record("b", part(1)))
    clock.now += GONE_AFTER
    told(state, record("b", part(1)))
    assert [each.gone_since for each in view(state, clock).members] == [None, None]
    clock.now += 1
    found = view(state, clock)
    assert [(each.name, each.gone_since) for each in found.members] == [
        ("a", clock.wall() - GONE_AFTER - 1),
        ("b", None),
    ]
    assert [(each.member, each.status.partition) for each in found.partitions] == [("b", 1)]
    assert found.topics[0].partitions == 1


def test_a_record_that_was_there_before_the_reader_began_is_as_old_as_the_broker_says() -> None:
    clock = Clock()
    state = state_of(clock)
    told(state, record("a"), ago=3_000)
    told(state, record("b"), ago=-500)  # from the future: as old as now
    state.complete = True
    ages = {each.name: (round(each.silent), each.gone_since is None) for each in view(state, clock).members}
    assert ages == {"a": (3_000, False), "b": (0, True)}


def test_a_member_that_an_error_has_ended_is_gone_at_once_and_says_why_to_who_may_see_it() -> None:
    clock = Clock()
    state = state_of(clock)
    told(state, record("a", part(0), ended="stopped at orders/0/5: card 4111"))
    [member] = view(state, clock).members
    assert member.gone_since == clock.wall()
    assert view(state, clock).without_quotes().members[0].record.ended == HIDDEN


def test_a_partition_that_two_members_name_belongs_to_the_one_heard_last_and_totals_are_summed() -> None:
    clock = Clock()
    state = state_of(clock)
    state.complete = True
    told(state, record("b", part(0, lag=5), part(1, lag=7, gap="")))
    clock.now += 3
    told(state, record("a", part(0, lag=1), part(2, topic="orders.retry", lag=4)))
    found = view(state, clock)
    table = [(each.member, each.status.topic, each.status.partition) for each in found.partitions]
    assert table == [("b", "orders", 1), ("a", "orders.retry", 2), ("a", "orders", 0)]
    assert (found.lag, found.waiting_retry) == (13, 4)


def test_what_may_quote_an_error_is_hidden_from_who_may_not_see_it() -> None:
    clock = Clock()
    state = state_of(clock)
    told(state, record("a", part(0, breaker="card 4111", gap="mine")))
    shown = orjson.dumps(view(state, clock).without_quotes()).decode()
    assert "4111" not in shown
    assert "mine" in shown


def test_members_that_are_gone_for_an_hour_are_forgotten_by_the_first_that_is_alive() -> None:
    clock = Clock()
    state = state_of(clock)
    state.complete = True
    told(state, record("a-old"))
    clock.now += FORGOTTEN_AFTER - 1
    for name in ("b", "c"):
        told(state, record(name))
    assert state.forgotten("b") == []
    clock.now += 2
    assert state.forgotten("b") == ["a-old"]
    assert state.forgotten("c") == []
    assert state.forgotten("somebody") == []
    state.take(status_key("a-old"), None, 0, 9)
    assert state.forgotten("b") == []


def test_however_many_members_there_seem_to_be_memory_is_bounded_and_the_newest_stay() -> None:
    clock = Clock()
    state = state_of(clock)
    state.complete = True
    for number in range(MOST_MEMBERS + 50):
        clock.now += 1
        told(state, record(f"m{number}"))
    assert len(state.members) == MOST_MEMBERS
    assert f"m{MOST_MEMBERS + 49}" in state.members
    big = b'{"v":1,' + b"x" * (LONGEST_RECORD - 7)
    for number in range(100):
        clock.now += 1
        state.take(b"status/big%d" % number, big, 0, number)
    assert sum(len(each.value) for each in state.members.values()) <= 32 * 1024 * 1024 == 2**25
    state.take(b"status/larger", big + b"x", 0, 0)
    assert "larger" not in state.members


# --------------------------------------------------------------------------------- what operators hold


def test_a_pause_and_its_end_and_what_this_version_does_not_know() -> None:
    state = state_of(Clock())
    hold = OperatorHold(Scope("orders"), "alice", 1.0, "audit")
    assert state.take(hold.scope.key, hold_value(hold), 0, 4) == "orders paused by alice: audit"
    assert state.snapshot == Snapshot({hold.scope: hold}, 4)
    assert state.take(hold.scope.key, hold_value(hold), 0, 5) == ""  # again: nothing new
    state.take(hold.scope.key, b'{"v":2,"kind":"operator","held":false}', 0, 6)
    assert state.snapshot.holds == {hold.scope: hold}  # what it means is not known: what is held stays held
    said = state.take(hold.scope.key, None, 0, 7, [("other", None), ("streamloop-by", b"bob")])
    assert said == "orders resumed by bob (was paused by alice)"
    assert state.snapshot == Snapshot({}, 7)


def test_a_partition_is_held_by_each_scope_that_covers_it_and_by_this_members_own_pause() -> None:
    operators = Operators(lambda: 0.0)
    assert operators.why("orders", 1) == ""
    holds = {
        scope: OperatorHold(scope, "alice", 0.0, "audit")
        for scope in (Scope(), Scope("orders", 1), Scope("other"))
    }
    operators.take(Snapshot(holds, 3))
    operators.hold(Scope("orders"), "loop.pause()")
    why = operators.why("orders", 1)
    assert why.split("; ") == [
        "everything was paused by alice at 1970-01-01 00:00:00Z: audit",
        "orders/1 was paused by alice at 1970-01-01 00:00:00Z: audit",
        "orders was paused at this member by loop.pause() at 1970-01-01 00:00:00Z",
    ]
    assert "orders/1 " not in operators.why("orders", 2)
    operators.release(Scope("orders", 1))  # another scope than the one that is held here
    assert operators.own == {Scope("orders")}
    operators.release(Scope())
    assert operators.own == frozenset()
    assert len(operators.status()) == 3  # the group's are not this member's to release


# ---------------------------------------------------------------------------- when a status is written


class Reports:
    """A reporter whose loop does what the test says."""

    def __init__(self) -> None:
        self.clock = Clock()
        self.applied = Snapshot({})
        self.doing = status(part(0))
        settings = Settings.load({"group": "billing", "member": "a"}).settings
        self.reporter = Reporter(
            settings,
            "i",
            status=lambda: self.doing,
            applied=lambda: self.applied,
            clock=self.clock,
            wall=self.clock.wall,
        )

    def after(self, seconds: float, error: Any = None) -> bytes | None:
        """What is written when so much time has passed; it is confirmed, or fails with this error."""
        self.clock.now += seconds
        value = self.reporter.due(self.clock.now, "topic-id")
        if value is not None:
            self.reporter.sent(error)
        return value

    def changes(self) -> None:
        [one] = self.doing.partitions
        self.doing = replace(self.doing, partitions=(replace(one, committable=one.committable + 1),))


def test_a_status_is_written_at_once_then_every_5_s_while_it_changes_and_every_15_s_when_not() -> None:
    reports = Reports()
    assert reports.after(0)
    reports.changes()
    assert reports.after(4.9) is None
    assert reports.after(0.2)
    assert reports.after(5.1) is None  # nothing has changed
    assert reports.after(5.1) is None
    reports.doing = replace(reports.doing, uptime=99.0)  # ages alone are no change
    assert reports.after(4.0) is None
    assert reports.after(5.1)


def test_what_an_operator_waits_for_is_written_within_a_second() -> None:
    reports = Reports()
    reports.after(0)
    reports.applied = Snapshot({}, 16, "a former topic")
    assert reports.after(2) is None  # offsets of another topic mean nothing
    reports.applied = Snapshot({}, 17, "topic-id")
    value = reports.after(0.1)
    assert value is not None
    read = read_status(value)
    assert read is not None
    assert (read.applied, read.topic_id, read.member) == (17, "topic-id", "a")


def test_a_status_that_was_not_confirmed_is_written_again_and_smaller_where_it_was_too_large() -> None:
    reports = Reports()
    reports.doing = status(*(part(n) for n in range(2_000)))
    whole = reports.after(0, KafkaError(KafkaError.MSG_SIZE_TOO_LARGE))
    assert whole is not None
    sizes = [len(whole)]
    for _ in range(8):
        value = reports.after(HEARTBEAT, KafkaError(KafkaError.MSG_SIZE_TOO_LARGE))
        assert value is not None
        sizes.append(len(value))
    assert sizes[0] > sizes[1] > sizes[2]
    assert sizes[-1] <= LEAST_STATUS


def test_a_status_under_way_is_waited_for_and_one_that_cannot_be_read_now_is_made_later() -> None:
    reports = Reports()
    assert reports.reporter.due(reports.clock.now, "")
    assert reports.after(60) is None
    reports.reporter.begin()  # the client that sent it is gone

    def grown() -> LoopStatus:
        raise RuntimeError("dictionary changed size during iteration")

    reports.reporter._status = grown
    assert reports.after(1) is None
    reports.reporter._status = lambda: reports.doing
    assert reports.after(0)


# ------------------------------------------------------------------------------------------- streamloop group


def shown(found: GroupView) -> str:
    console = Console(width=200, color_system=None, force_terminal=False, highlight=False)
    with console.capture() as capture:
        console.print(drawn(found, most=2))
    return capture.get()


def test_a_group_is_drawn_with_what_is_paused_who_is_gone_and_what_needs_attention_first() -> None:
    clock = Clock()
    state = state_of(clock)
    state.complete = True
    told(state, record("gone", part(9)))
    clock.now += GONE_AFTER + 1
    told(state, record("a", part(0, lag=3), part(1, lag=5), part(2, operator="paused by ann"), applied=-1))
    told(state, record("dead", ended="stopped at orders/0/5"))
    hold = OperatorHold(Scope("orders", 2), "ann", clock.wall(), "INC-42")
    state.take(hold.scope.key, hold_value(hold), 0, 8)
    text = shown(view(state, clock))
    assert "billing  1 member, 2 gone   3 partitions, 1 held   lag 8" in text
    assert "paused: orders/2, by ann at 2023-11-14" in text
    assert "INC-42" in text
    assert "gone since 2023-11-14" in text
    assert "ended: stopped at orders/0/5" in text
    assert "has not applied all pauses yet" in text
    assert text.index("orders/2 ") < text.index("orders/1 ")
    assert "orders/0 " not in text
    assert "and 1 more partitions" in text


def test_no_text_of_a_member_reaches_the_terminal_as_control_characters_or_markup() -> None:
    clock = Clock()
    state = state_of(clock)
    evil = "\x1b]0;owned\x07[red]x[/red]\u202e\r\n"
    made = record(evil, part(0, topic=evil, gap=evil), ended="")
    told(state, replace(made, version=evil, host=evil, status=replace(made.status, state=evil)))
    state.take(b"operator/*", hold_value(OperatorHold(Scope(), evil, 1e300, evil)), 0, 0)
    state.take(b"status/\x1b[2J", b'{"v":1,', 0, 0)
    text = shown(view(state, clock))
    assert not {"\x1b", "\x07", "\r", "\u202e"} & set(text)
    assert "[red]x[/red]" in text
