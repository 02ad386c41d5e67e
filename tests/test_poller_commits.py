"""The poller with a fake Consumer and a fake clock: commits, and partitions that leave."""

from collections.abc import Callable
from typing import Any

import pytest

from streamloop.engine import events as ev
from streamloop.engine.events import Reason, TopicPartition
from tests.fake_consumer import P0, P1, Bench, commit


@pytest.fixture
def bench() -> Bench:
    made = Bench()
    made.subscribe()
    return made


# -------------------------------------------------------------------------------------------- revoked, lost


def answering(bench: Bench, *commands: Callable[[int], Any]) -> None:
    """Answer a Revoking with these, as the engine does: from another thread, while the callback waits."""
    queue = list(commands)

    def on_wait() -> None:
        revoking = bench.of(ev.Revoking)
        if revoking and queue:
            bench.tell(queue.pop(0)(revoking[-1].partitions[0][1]))

    bench.wake.on_wait = on_wait


def test_R7_while_it_leaves_commits_are_taken_until_it_is_quiet_and_the_newest_is_sent(bench: Bench) -> None:
    bench.assigned(P0, 0, range(3))
    answering(
        bench,
        lambda epoch: commit(P0, epoch, 1, 2, "old"),
        lambda epoch: commit(P0, epoch, 2, 3, "new"),
        lambda epoch: ev.Quiet(0, P0, epoch),
    )
    bench.consumer.revoke_now(P0)
    before = bench.clock.now
    bench.turn()
    assert [d for name, d in bench.consumer.calls if name == "commit"] == [{P0: (2, "new")}]
    assert bench.clock.now - before < 1.0
    order = [name for name, _ in bench.consumer.calls]
    assert order.index("commit") < order.index("unassign")
    assert [type(e).__name__ for e in bench.events][-2:] == ["Revoking", "Closed"]
    assert not bench.of(ev.Closed)[0].lost


def test_R7_the_wait_is_bounded_and_what_is_known_by_then_is_committed(bench: Bench) -> None:
    bench.assigned(P0, 0, range(3))
    answering(bench, lambda epoch: commit(P0, epoch, 1, 2))
    bench.consumer.revoke_now(P0)
    before = bench.clock.now
    bench.turn()
    assert 4.9 < bench.clock.now - before < 6
    assert bench.consumer.last("commit") == {P0: (1, "")}
    assert bench.of(ev.Closed)


def test_a_silent_engine_is_not_waited_for(bench: Bench) -> None:
    bench.assigned(P0, 0, range(3))
    bench.stamp = bench.clock.now
    bench.consumer.revoke_now(P0)
    before = bench.clock.now
    bench.turn()
    assert bench.clock.now - before < 2.5


def test_R2_what_was_fetched_and_not_started_is_not_committed(bench: Bench) -> None:
    bench.assigned(P0, 0, range(3))
    answering(bench, lambda epoch: ev.Quiet(0, P0, epoch))
    bench.consumer.revoke_now(P0)
    bench.turn()
    assert bench.consumer.count("commit") == 0


def test_R4_a_revoke_while_a_commit_is_in_flight_sends_only_what_changed_and_does_not_wait_for_it(
    bench: Bench,
) -> None:
    bench.consumer.answers = False
    epoch = bench.assigned(P0, 0, range(3))
    bench.tell(commit(P0, epoch, 1, 2))
    bench.turn()
    answering(bench, lambda epoch: commit(P0, epoch, 2, 3), lambda epoch: ev.Quiet(0, P0, epoch))
    bench.consumer.revoke_now(P0)
    before = bench.clock.now
    bench.turn()
    sent = [detail for name, detail in bench.consumer.calls if name == "commit"]
    assert sent == [{P0: (1, "")}, {P0: (2, "")}]
    assert bench.clock.now - before < 1
    for what in sent:
        bench.consumer.answer(what)
    assert bench.of(ev.Committed) == []


def test_R4_a_revoke_sends_nothing_that_is_in_flight_already(bench: Bench) -> None:
    bench.consumer.answers = False
    epoch = bench.assigned(P0, 0, range(3))
    bench.tell(commit(P0, epoch, 1, 2))
    bench.turn()
    answering(bench, lambda epoch: ev.Quiet(0, P0, epoch))
    bench.consumer.revoke_now(P0)
    bench.turn()
    assert bench.consumer.count("commit") == 1


def test_R1_commands_other_than_commits_wait_for_the_end_of_the_callback(bench: Bench) -> None:
    epoch = bench.assigned(P0, 0, range(3))
    bench.assigned(P1, 0, range(3))
    second = bench.of(ev.Assigned)[-1].epoch
    answering(
        bench,
        lambda _: ev.Seek(0, P1, second, 1, 9),
        lambda _: ev.Seek(0, P0, epoch, 1, 8),
        lambda epoch: ev.Quiet(0, P0, epoch),
    )
    bench.consumer.revoke_now(P0)
    bench.turn(2)
    closed, sought = bench.of(ev.Closed)[0], bench.of(ev.Sought)
    assert sought == [ev.Sought(P1, second, 9)]
    assert bench.events.index(closed) < bench.events.index(sought[0])


def test_R6_lost_commits_nothing_and_waits_for_nothing(bench: Bench) -> None:
    epoch = bench.assigned(P0, 0, range(3))
    bench.tell(commit(P0, epoch, 3, 5))
    bench.poller._carry_out()
    bench.consumer.lose_now(P0)
    before = bench.clock.now
    bench.poller._look_into_stall()
    bench.turn(3)
    assert bench.of(ev.Closed) == [ev.Closed([(P0, epoch)], lost=True)]
    assert bench.consumer.count("commit") == 0
    assert bench.consumer.last("unassign") == [("t", 0)]
    assert bench.clock.now - before < 1
    bench.tell(commit(P0, epoch, 3, 6))
    bench.turn(2)
    assert bench.consumer.count("commit") == 0


def test_partitions_that_leave_before_their_start_was_known_are_given_back_without_a_word(
    bench: Bench,
) -> None:
    bench.lookup.silent = True
    bench.consumer.assign_now(P0)
    bench.turn()
    bench.consumer.revoke_now(P0)
    bench.turn()
    assert bench.events == []
    assert bench.consumer.last("unassign") == []


# -------------------------------------------------------------------------------------------------- commits


def test_commits_are_coalesced_and_one_is_in_flight(bench: Bench) -> None:
    epoch = bench.assigned(P0, 0)
    bench.consumer.answers = False
    bench.tell(commit(P0, epoch, 1, 2), commit(P0, epoch, 2, 3))
    bench.turn()
    bench.tell(commit(P0, epoch, 3, 4), commit(P0, epoch, 4, 5))
    bench.turn(3)
    assert [d for name, d in bench.consumer.calls if name == "commit"] == [{P0: (2, "")}]
    bench.consumer.answers = True
    bench.consumer.answer({P0: (2, "")})
    bench.turn(2)
    assert bench.consumer.last("commit") == {P0: (4, "")}
    assert [(e.offset, e.version) for e in bench.of(ev.Committed)] == [(2, 3), (4, 5)]


def test_while_a_commit_is_in_flight_no_other_partitions_goes_out_either(bench: Bench) -> None:
    first, second = two(bench)
    bench.consumer.answers = False
    bench.tell(commit(P0, first, 1, 1))
    bench.turn()
    bench.tell(commit(P1, second, 1, 1))
    bench.turn(3)
    assert bench.consumer.count("commit") == 1
    bench.consumer.answer({P0: (1, "")})
    bench.turn()
    assert bench.consumer.last("commit") == {P1: (1, "")}


def test_R3_a_commit_of_another_epoch_is_dropped_at_the_last_step(bench: Bench) -> None:
    old = bench.assigned(P0, 0)
    bench.consumer.lose_now(P0)
    bench.turn()
    new = bench.assigned(P0, 0)
    bench.tell(commit(P0, old, 9, 9))
    bench.turn(2)
    assert bench.consumer.count("commit") == 0
    assert bench.poller.stats.commits["stale"] == 1
    bench.tell(commit(P0, new, 1, 1))
    bench.turn(2)
    assert bench.consumer.last("commit") == {P0: (1, "")}


def two(bench: Bench) -> tuple[int, int]:
    return bench.assigned(P0, 0), bench.assigned(P1, 0)


def test_R17_after_an_error_of_several_each_is_sent_alone_and_the_healthy_ones_go_on(bench: Bench) -> None:
    first, second = two(bench)
    bench.consumer.refused[P0] = 29
    bench.tell(commit(P0, first, 1, 1), commit(P1, second, 1, 1))
    bench.turn(6)
    sent = [set(detail) for name, detail in bench.consumer.calls if name == "commit"]
    assert sent[:3] == [{P0, P1}, {P0}, {P1}]
    assert [(e.partition, e.offset) for e in bench.of(ev.Committed)] == [(P1, 1)]
    held = bench.of(ev.HoldChanged)
    assert [(e.partition, e.reason, e.held) for e in held] == [(P0, Reason.COMMIT_REFUSED, True)]
    bench.tell(commit(P1, second, 2, 2))
    bench.turn(2)
    assert bench.of(ev.Committed)[-1].offset == 2
    del bench.consumer.refused[P0]
    bench.clock.now += 10
    bench.turn(3)
    assert bench.of(ev.HoldChanged)[-1].held is False
    assert bench.consumer.broker[P0] == (1, "")


def test_R17_metadata_that_is_too_large_is_left_out_at_once(bench: Bench) -> None:
    epoch = bench.assigned(P0, 0)
    bench.consumer.refused[P0] = 12
    bench.tell(commit(P0, epoch, 1, 1, "m" * 4095))
    bench.turn()
    del bench.consumer.refused[P0]
    bench.turn(2)
    sent = [detail[P0] for name, detail in bench.consumer.calls if name == "commit"]
    assert sent == [(1, "m" * 4095), (1, "")]
    bench.tell(commit(P0, epoch, 2, 2, "short"))
    bench.turn(2)
    assert bench.consumer.broker[P0] == (2, "short")


@pytest.mark.parametrize("code", [22, 25, 27, 110, 113])
def test_R5_a_commit_that_fails_because_the_group_rebalances_goes_with_the_next_one(
    bench: Bench, code: int
) -> None:
    first, second = two(bench)
    bench.consumer.commit_code = code
    bench.tell(commit(P0, first, 1, 1), commit(P1, second, 1, 1))
    bench.turn(2)
    bench.consumer.lose_now(P0)
    bench.turn()
    bench.consumer.commit_code = 0
    bench.clock.now += 1
    bench.turn(3)
    assert bench.consumer.last("commit") == {P1: (1, "")}
    assert [event.partition for event in bench.of(ev.Committed)] == [P1]


def test_a_commit_without_an_answer_is_sent_again_with_back_off(bench: Bench) -> None:
    epoch = bench.assigned(P0, 0)
    bench.consumer.commit_code = -185
    bench.tell(commit(P0, epoch, 1, 1))
    bench.turn(200)
    assert 3 <= bench.consumer.count("commit") <= 12
    assert bench.of(ev.Committed) == []
    bench.consumer.commit_code = 0
    for _ in range(2):
        bench.clock.now += 9
        bench.turn(2)
    assert bench.of(ev.Committed)[-1].offset == 1


def test_an_answer_that_never_comes_is_given_up(bench: Bench) -> None:
    epoch = bench.assigned(P0, 0)
    bench.consumer.answers = False
    bench.tell(commit(P0, epoch, 1, 1))
    bench.turn()
    bench.consumer.answers = True
    for _ in range(12):
        bench.clock.now += 9
        bench.turn()
    assert bench.of(ev.Committed)[-1].offset == 1


def test_R17_a_topic_that_is_gone_holds_only_its_partitions(bench: Bench) -> None:
    other = TopicPartition("u", 0)
    first, second = bench.assigned(P0, 0), bench.assigned(other, 0)
    bench.consumer.refused[P0] = 3
    bench.lookup.ids["t"] = None
    bench.tell(commit(P0, first, 1, 1), commit(other, second, 1, 1))
    bench.turn(6)
    assert [(e.partition, e.reason) for e in bench.of(ev.HoldChanged)] == [(P0, Reason.TOPIC_GONE)]
    assert bench.consumer.paused == {P0}
    assert bench.consumer.broker[other] == (1, "")
