"""--until-end on a member that gets no partition: it ends at the group's end, and at nothing less."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal

import pytest

from streamloop.kafka.topics import Untold
from streamloop.until_end import NOTHING_FOR, GroupEnd

if TYPE_CHECKING:
    from collections.abc import Iterable

Place = tuple[str, int]


class Broker:
    """What is asked of one, with answers that a test sets. ``asked``: how often it was asked for ends."""

    def __init__(self) -> None:
        self.now = 100.0
        self.partitions: dict[str, int | None] = {"orders": 2}
        self.mine = False
        self.ends: dict[Place, Any] = {("orders", 0): 5, ("orders", 1): 7}
        self.starts: dict[Place, Any] = {("orders", 0): 0, ("orders", 1): 0}
        self.commits: dict[Place, Any] = {("orders", 0): 5, ("orders", 1): 7}
        self.asked = 0
        self.said: list[str] = []
        self.group_end = GroupEnd(
            "billing",
            self,  # type: ignore[arg-type]
            partitions=lambda: self.partitions,
            assigned=lambda: self.mine,
            at_end=self.said.append,
            clock=lambda: self.now,
        )

    def resolve_offsets(
        self, partitions: Iterable[Place], start: Literal["earliest", "latest"], _timeout: float
    ) -> dict[Place, Any]:
        self.asked += start == "latest"
        given = self.ends if start == "latest" else self.starts
        return {place: given[place] for place in partitions}

    def committed(self, group: str, partitions: Iterable[Place], _timeout: float) -> dict[Place, Any]:
        assert group == "billing"
        return {place: self.commits[place] for place in partitions if place in self.commits}

    def looks(self, after: float = NOTHING_FOR) -> bool:
        """One look, after so many seconds."""
        self.now += after
        return self.group_end.look()


def test_until_end_without_a_partition_ends_when_the_group_has_committed_up_to_the_ends() -> None:
    broker = Broker()
    assert not broker.looks()
    assert broker.looks()
    assert broker.said == [
        "bound reached: until_end (no partition was assigned to this member for 5 s, and group billing has "
        "committed up to the ends of orders)"
    ]


def test_until_end_waits_while_the_others_still_have_to_read() -> None:
    broker = Broker()
    broker.commits[("orders", 1)] = 6
    assert not any(broker.looks() for _ in range(5))
    broker.commits[("orders", 1)] = 7
    assert broker.looks()


def test_until_end_means_the_ends_as_they_were_when_the_group_was_first_asked() -> None:
    broker = Broker()
    broker.commits[("orders", 1)] = 6
    assert not any(broker.looks() for _ in range(3))
    broker.ends[("orders", 1)] = 100  # somebody goes on producing
    broker.commits[("orders", 1)] = 9
    assert broker.looks()
    assert broker.asked == 1


def test_until_end_with_a_partition_is_the_engines_matter() -> None:
    broker = Broker()
    assert not broker.looks()
    broker.mine = True
    assert not any(broker.looks() for _ in range(3))
    broker.mine = False
    assert not broker.looks()  # from now on it counts anew
    assert not broker.looks(NOTHING_FOR / 2)
    assert broker.looks()


def test_until_end_a_partition_that_was_always_empty_needs_no_commit() -> None:
    broker = Broker()
    del broker.commits[("orders", 0)]
    assert not any(broker.looks() for _ in range(3))
    broker = Broker()
    del broker.commits[("orders", 0)]
    broker.ends[("orders", 0)] = broker.starts[("orders", 0)] = 3  # all of it was deleted, or never there
    broker.looks()
    assert broker.looks()


@pytest.mark.parametrize("what", ["ends", "starts", "commits", "partitions"])
def test_until_end_what_can_not_be_told_ends_nothing(what: str) -> None:
    broker = Broker()
    if what == "partitions":
        broker.partitions["parcels"] = None
    else:
        getattr(broker, what)[("orders", 0)] = Untold("no broker answered in time")
    if what == "starts":
        del broker.commits[("orders", 0)]
    assert not any(broker.looks() for _ in range(5))
    assert broker.said == []


def test_until_end_a_partition_that_comes_while_the_brokers_are_asked_is_not_left() -> None:
    broker = Broker()
    broker.looks()
    whole = broker.committed

    def and_now_it_is_mine(*arguments: Any) -> dict[Place, Any]:
        broker.mine = True
        return whole(*arguments)

    broker.committed = and_now_it_is_mine  # type: ignore[assignment, method-assign]
    assert not broker.looks()
    assert broker.said == []
