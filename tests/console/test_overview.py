"""The overview: every member once, totals of all, and no error text for who may not see it."""

from __future__ import annotations

import json
import time
from types import SimpleNamespace
from typing import Any

from streamloop.control.operators import Operators
from streamloop.control.records import MemberRecord, Scope
from streamloop.control.trim import totals_of
from streamloop.control.view import GroupView, MemberView
from streamloop.ops.console.overview import MOST_PARTITIONS, Overview
from streamloop.status import ControlStatus, IntakeStatus, LoopStatus, PartitionStatus

SECRET = "card 4111 was refused \u202e\x1b[31m"


def part(topic: str, partition: int, lag: int | None = 0, **held: str) -> PartitionStatus:
    return PartitionStatus(topic, partition, "charge", 1, 5, 5, 0, 2, 20, 1, 0, held, None, 10, lag, 3.0)


def intake(name: str, *topics: str) -> IntakeStatus:
    return IntakeStatus(name, "billing", "consumer", topics, 2, 20, 10, 100, 2, 20, 0.1)


def status(
    member: str, *parts: PartitionStatus, open_dead_letters: dict[str, int] | None = None
) -> LoopStatus:
    return LoopStatus(
        "billing",
        member,
        "running",
        9.0,
        (intake("source", "orders"), intake("retry", "orders.retry")),
        (),
        parts,
        {},
        open_dead_letters=open_dead_letters or {},
    )


def record(of: LoopStatus, *, gone: float | None = None, silent: float = 1.0, ended: str = "") -> MemberView:
    made = MemberRecord(of.member, "i", "1.0", "host-b", 7, 0.0, 0.0, of, totals_of(of), ended=ended)
    return MemberView(made, silent, gone, applied_all=False)


class Control:
    def __init__(self, *members: MemberView, on: bool = True, complete: bool = True) -> None:
        self.on = on
        self._view = GroupView("billing", "billing.control", 0.0, complete, members)

    def view(self) -> GroupView:
        return self._view


def overview(own: LoopStatus | None, control: Control | None, *, may_read: bool = True) -> dict[str, Any]:
    operators = Operators(time.time)
    operators.hold(Scope("orders", 1), "Ada", "prices")
    run: Any = SimpleNamespace(
        settings=SimpleNamespace(member="a"),
        control=control,
        control_status=ControlStatus("billing.control", "off", "it may not be created"),
        operators=operators,
        topics=("orders", "orders.retry"),
        sources=frozenset({"orders"}),
    )
    observer: Any = SimpleNamespace(
        status=own, probes=lambda: SimpleNamespace(phase="running", why_not_live=())
    )
    shown = Overview(run, observer).of(may_read=may_read)
    json.dumps(shown)
    return shown


def test_all_members_are_shown_and_their_totals_are_of_those_that_are_there() -> None:
    own = status("a", part("orders", 0, 4), part("orders.retry", 0, 7, retry_not_due="soon"))
    other = record(
        status("b", part("orders", 1, 6), part("orders", 2, None), open_dead_letters={"orders": 9})
    )
    left = record(status("c", part("orders", 3, 1_000)), gone=1.0, silent=100.0)
    stale_self = record(status("a", part("orders", 7, 500)))  # what the topic says of this member is older
    shown = overview(own, Control(other, left, stale_self))
    assert shown["source"] == "group"
    assert [(each["member"], each["this"], each["gone"]) for each in shown["members"]] == [
        ("a", True, None),
        ("b", False, None),
        ("c", False, 1.0),
    ]
    totals = shown["totals"]
    assert (totals["members"], totals["gone"], totals["partitions"]) == (2, 1, 3)
    assert (totals["lag"], totals["lag_unknown"], totals["retries_waiting"]) == (10, 1, 7)
    assert totals["dead_letters"] == 9
    assert sorted((e["topic"], e["partition"]) for e in shown["partitions"]) == [
        ("orders", 0),
        ("orders", 1),
        ("orders", 2),
        ("orders.retry", 0),
    ]


def test_of_two_members_that_name_a_partition_the_one_heard_last_has_it() -> None:
    before = record(status("b", part("orders", 0, 1)), silent=20.0)
    after = record(status("c", part("orders", 0, 2)), silent=2.0)
    shown = overview(status("a"), Control(before, after))
    assert [(each["member"], each["lag"]) for each in shown["partitions"]] == [("c", 2)]


def test_error_texts_are_for_readers_only_and_harmless() -> None:
    own = status("a", part("orders", 0, breaker=SECRET))
    other = record(status("b", part("orders", 1, dead_letter_rate=SECRET)), ended=SECRET)
    assert "4111" not in json.dumps(overview(own, Control(other), may_read=False))
    shown = overview(own, Control(other), may_read=True)
    text = json.dumps(shown, ensure_ascii=False)
    assert "card 4111 was refused" in text
    assert "\u202e" not in text


def test_without_a_control_topic_it_shows_this_member_and_says_why() -> None:
    for control in (None, Control(on=False), Control(complete=False)):
        shown = overview(status("a", part("orders", 0)), control)
        assert shown["source"] == "member"
        assert shown["source_detail"].startswith("this member only, since")
        assert [each["member"] for each in shown["members"]] == ["a"]
    assert "it may not be created" in shown["source_detail"]


def test_what_is_not_known_is_not_0() -> None:
    shown = overview(status("a", part("orders", 0, None)), None)
    assert (shown["totals"]["lag"], shown["totals"]["dead_letters"]) == (None, None)
    starting = overview(None, None)
    assert starting["members"][0]["uptime"] is None
    assert starting["totals"]["lag"] is None


def test_what_needs_attention_stands_first_and_the_rest_is_counted() -> None:
    many = [part("orders", n, n) for n in range(1, MOST_PARTITIONS + 50)]
    own = status(
        "a", *many, part("orders", 5_000, 0, publish_blocked="away"), part("orders", 6_000, 0, assigning="")
    )
    shown = overview(own, None)
    assert shown["partitions"][0]["partition"] == 5_000
    assert shown["partitions"][1]["partition"] == 6_000 or shown["partitions"][1]["lag"] > 0
    assert len(shown["partitions"]) == MOST_PARTITIONS
    assert shown["partitions_left_out"] == 51
    assert shown["totals"]["lag"] == sum(each.lag or 0 for each in many)


def test_holds_say_who_since_when_why_and_where() -> None:
    [hold] = overview(status("a"), None)["holds"]
    assert (hold["scope"], hold["topic"], hold["partition"]) == ("member", "orders", 1)
    assert (hold["who"], hold["reason"]) == ("Ada", "prices")
