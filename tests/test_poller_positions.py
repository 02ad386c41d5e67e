"""The poller with a fake Consumer and a fake clock: where partitions start, and where they go on."""

from typing import Any

import pytest

from streamloop.engine import events as ev
from streamloop.engine.events import Reason
from streamloop.engine.metadata import Identity, encode
from streamloop.kafka.poller import PollerOptions, ResetTopic
from streamloop.kafka.positions import PositionError, StartPolicy
from streamloop.kafka.topics import Untold
from tests.fake_consumer import P0, P1, Bench, FakeMessage, commit


def policy(start: Any = "earliest", out_of_range: Any = "earliest") -> PollerOptions:
    return PollerOptions(policy=lambda _topic: StartPolicy(start, out_of_range))


@pytest.fixture
def bench() -> Bench:
    made = Bench()
    made.subscribe()
    return made


# --------------------------------------------------------------------------------------------------- starts


def test_R18_a_start_without_a_committed_offset_is_committed_before_anything_is_fetched() -> None:
    bench = Bench(policy("latest"))
    bench.subscribe()
    bench.lookup.newest[P0] = 7
    bench.consumer.log[P0] = list(range(9))
    bench.consumer.assign_now(P0)
    bench.turn(4)
    assigned = bench.of(ev.Assigned)[0]
    assert (assigned.offset, assigned.committed) == (7, False)
    assert bench.offsets(P0) == []
    bench.tell(commit(P0, assigned.epoch, 7, 1))
    bench.turn(4)
    assert bench.offsets(P0) == [7, 8]
    assert bench.events.index(bench.of(ev.Committed)[0]) < bench.events.index(bench.of(ev.Fetched)[0])


def test_R12_a_partition_that_comes_later_starts_at_its_beginning_whatever_start_says() -> None:
    bench = Bench(policy("latest"))
    bench.subscribe()
    bench.lookup.newest = {P0: 7, P1: 5}
    bench.consumer.assign_now(P0)
    bench.turn(3)
    bench.consumer.assign_now(P1)
    bench.turn(3)
    assert [(event.partition, event.offset) for event in bench.of(ev.Assigned)] == [(P0, 7), (P1, 0)]


def test_a_start_that_was_found_and_not_committed_yet_is_not_found_anew() -> None:
    bench = Bench(policy("latest"))
    bench.subscribe()
    bench.lookup.newest[P0] = 7
    bench.consumer.assign_now(P0)
    bench.turn(3)
    bench.consumer.lose_now(P0)
    bench.lookup.newest[P0] = 99
    bench.consumer.assign_now(P0)
    bench.turn(4)
    assert [event.offset for event in bench.of(ev.Assigned)] == [7, 7]


def test_a_partition_whose_start_is_unknown_is_not_given_to_the_client(bench: Bench) -> None:
    bench.lookup.silent = True
    bench.consumer.broker[P0] = (3, "")
    bench.consumer.assign_now(P0)
    bench.turn(3)
    assert bench.consumer.positions == {}
    assert bench.events == []
    assert bench.poller.status().held == {"t/0": ("assigning",)}
    bench.lookup.speak()
    bench.clock.now += 1
    bench.turn(3)
    assert bench.of(ev.Assigned)[0].offset == 3
    assert bench.consumer.positions == {P0: 3}


def test_a_committed_offset_that_could_not_be_had_is_asked_for_again_with_back_off(bench: Bench) -> None:
    bench.consumer.broker[P0] = (3, "")
    bench.consumer.log[P0] = [3]
    bench.consumer.committed_error = -185
    bench.consumer.assign_now(P0)
    bench.turn(60)
    asked = [timeout for name, timeout in bench.consumer.calls if name == "committed"]
    assert asked[0] == 5.0
    assert 2 <= len(asked) < 15
    assert max(asked[1:]) <= 2.0
    assert bench.of(ev.Assigned) == []
    bench.consumer.committed_error = 0
    bench.clock.now += 15
    bench.turn(3)
    assert bench.of(ev.Assigned)[0].committed
    assert bench.offsets(P0) == [3]


def test_an_id_that_nobody_tells_is_unknown_after_a_while(bench: Bench) -> None:
    bench.lookup.ids["t"] = Untold("denied")
    bench.consumer.broker[P0] = (3, "")
    bench.consumer.assign_now(P0)
    bench.turn()
    assert bench.events == []
    for _ in range(8):
        bench.clock.now += 9
        bench.turn()
    assert bench.of(ev.Assigned)[0].topic_id == "unknown"


def test_start_stop_ends_the_poller_with_a_sentence() -> None:
    bench = Bench(policy("stop"))
    original = bench.poller._make_consumer

    def make(protocol: Any, callbacks: Any) -> Any:
        consumer = original(protocol, callbacks)
        consumer.assign_now(P0)
        return consumer

    bench.poller._make_consumer = make
    bench.run()
    assert isinstance(bench.exits[0], PositionError)
    assert "t/0" in str(bench.exits[0])
    assert bench.consumer.closed


def test_an_exception_in_a_callback_is_not_raised_there_and_ends_the_poller(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(bench.poller._starts, "look_up", broken)
    bench.consumer.assign_now(P0)
    with pytest.raises(ZeroDivisionError):
        bench.turn()
    assert bench.consumer.count("consume") >= 1  # the client's own call had returned


# --------------------------------------------------------------------------------------------- out of range


def test_R10_an_offset_below_the_log_skips_ahead_and_keeps_what_was_received(
    bench: Bench, caplog: pytest.LogCaptureFixture
) -> None:
    bench.assigned(P0, 5, range(5, 8))
    bench.consumer.log[P0] = list(range(60, 63))
    bench.lookup.oldest[P0], bench.lookup.newest[P0] = 60, 63
    bench.turn(6)
    assert bench.offsets(P0) == [5, 6, 7, 60, 61, 62]
    assert bench.of(ev.Closed) == []
    assert bench.poller.stats.out_of_range == {"skip ahead": 1}
    assert "the position 8 of t/0 is not in its log, which has 60 to 63" in caplog.text
    assert "52 offsets are skipped" in caplog.text


@pytest.mark.parametrize(("word", "start"), [("earliest", 60), ("latest", 63)])
def test_R10_an_offset_above_the_log_starts_a_new_epoch_at_the_policys_number(word: str, start: int) -> None:
    bench = Bench(policy(out_of_range=word))
    bench.subscribe()
    bench.lookup.oldest[P0], bench.lookup.newest[P0] = 60, 63
    bench.assigned(P0, 500, range(60, 63))
    bench.turn(5)
    first, second = bench.of(ev.Assigned)
    assert (second.offset, second.committed) == (start, False)
    assert bench.of(ev.Closed) == [ev.Closed([(P0, first.epoch)], lost=True)]
    assert bench.offsets(P0) == []  # not before the number is committed
    bench.tell(commit(P0, second.epoch, start, 1))
    bench.turn(3)
    assert bench.offsets(P0) == list(range(start, 63))


def test_R10_stop_names_the_gap() -> None:
    bench = Bench(policy(out_of_range="stop"))
    bench.subscribe()
    bench.lookup.oldest[P0], bench.lookup.newest[P0] = 60, 63
    bench.assigned(P0, 5, range(60, 63))
    with pytest.raises(PositionError, match="position 5 of t/0"):
        bench.turn(5)


def test_what_comes_while_its_place_is_being_found_is_fetched_again_from_there(bench: Bench) -> None:
    epoch = bench.assigned(P0, 0, range(3))
    bench.lookup.newest[P0] = 3
    bench.lookup.silent = True
    bench.consumer.queue.append(FakeMessage("t", 0, 3, error=-140))
    bench.turn(2)
    bench.consumer.queue.append(FakeMessage("t", 0, 3))
    bench.turn(2)
    assert bench.offsets(P0) == [0, 1, 2]
    bench.consumer.log[P0] = list(range(4))
    bench.lookup.speak()
    bench.turn(6)
    assert bench.offsets(P0) == [0, 1, 2, 3]
    assert bench.of(ev.Assigned)[-1].epoch == epoch


def test_an_out_of_range_error_about_an_earlier_position_changes_nothing(bench: Bench) -> None:
    bench.assigned(P0, 0, range(3))
    bench.lookup.newest[P0] = 3
    bench.consumer.queue.append(FakeMessage("t", 0, 200, error=-140))
    bench.turn(5)
    bench.consumer.log[P0] = list(range(5))
    bench.turn(3)
    assert bench.offsets(P0) == list(range(5))
    assert bench.of(ev.Closed) == []
    assert bench.poller.stats.out_of_range == {}


# ------------------------------------------------------------------------------------------ recreated, gone


def test_R13_a_recreated_topic_is_noticed_by_its_id_and_starts_at_its_beginning(bench: Bench) -> None:
    epoch = bench.assigned(P0, 100, range(100, 103))
    bench.consumer.lose_now(P0)
    bench.lookup.ids["t"] = "id-2"
    bench.consumer.log[P0] = [0, 1]
    bench.consumer.broker[P0] = (103, "")  # a commit of the old topic that the broker took for the new one
    bench.consumer.assign_now(P0)
    bench.turn(4)
    newest = bench.of(ev.Assigned)[-1]
    assert newest.epoch > epoch
    assert (newest.offset, newest.committed, newest.topic_id) == (0, False, "id-2")


def test_R13_a_commit_of_an_earlier_topic_of_the_name_is_not_where_this_one_starts(bench: Bench) -> None:
    bench.lookup.ids["t"] = "id-2"
    bench.consumer.log[P0] = [0, 500]
    before = Identity(bench.lookup.cluster_id, "id-1")
    bench.consumer.broker[P0] = (103, encode(before, 103, -1, []))
    bench.consumer.assign_now(P0)
    bench.turn(4)
    [begun] = bench.of(ev.Assigned)
    assert (begun.offset, begun.committed, begun.topic_id) == (0, False, "id-2")


def test_R13_R14_an_offset_beside_metadata_of_another_cluster_is_where_it_starts(bench: Bench) -> None:
    bench.consumer.log[P0] = [0, 500]
    elsewhere = Identity("another-cluster", "another-id")
    bench.consumer.broker[P0] = (103, encode(elsewhere, 103, -1, []))
    bench.consumer.assign_now(P0)
    bench.turn(4)
    [begun] = bench.of(ev.Assigned)
    assert (begun.offset, begun.committed) == (103, True)


def test_R13_told_of_it_the_epoch_ends_what_was_dirty_is_dropped_and_it_starts_anew(bench: Bench) -> None:
    epoch = bench.assigned(P0, 100, range(100, 103))
    bench.lookup.ids["t"] = "id-2"
    bench.consumer.log[P0] = [0, 1]
    bench.tell(commit(P0, epoch, 103, 5), ResetTopic("t", "id-2"))
    bench.turn(4)
    assert bench.of(ev.Closed) == [ev.Closed([(P0, epoch)], lost=True)]
    assert bench.consumer.count("commit") == 0
    newest = bench.of(ev.Assigned)[-1]
    assert (newest.offset, newest.committed, newest.topic_id) == (0, False, "id-2")
    bench.tell(ResetTopic("t", "id-2"))
    bench.turn()
    assert len(bench.of(ev.Closed)) == 1


def test_R13_an_out_of_range_error_of_a_recreated_topic_starts_it_anew_whatever_the_policy() -> None:
    bench = Bench(policy(out_of_range="latest"))
    bench.subscribe()
    bench.assigned(P0, 100, range(100, 103))
    bench.lookup.ids["t"] = "id-2"
    bench.lookup.newest[P0] = 2
    bench.consumer.log[P0] = [0, 1]
    bench.turn(10)
    newest = bench.of(ev.Assigned)[-1]
    assert (newest.offset, newest.topic_id) == (0, "id-2")


def test_R13_the_last_commit_of_a_partition_that_leaves_is_not_sent_to_a_recreated_topic(
    bench: Bench,
) -> None:
    epoch = bench.assigned(P0, 100)
    bench.lookup.ids["t"] = "id-2"

    def answer(event: ev.Event) -> None:
        if isinstance(event, ev.Revoking):
            bench.tell(commit(P0, epoch, 103, 5), ev.Quiet(0, P0, epoch))

    bench.on_event = answer
    bench.consumer.revoke_now(P0)
    bench.turn()
    assert bench.consumer.count("commit") == 0
    assert bench.of(ev.Closed)


def test_R13_the_callback_waits_a_little_for_the_id_when_it_has_something_to_commit(bench: Bench) -> None:
    epoch = bench.assigned(P0, 100)
    bench.lookup.ids["t"] = "id-2"
    bench.lookup.silent = bench.lookup.answers_waits = True
    bench.on_event = lambda event: (
        bench.tell(commit(P0, epoch, 103, 5), ev.Quiet(0, P0, epoch))
        if isinstance(event, ev.Revoking)
        else None
    )
    bench.consumer.revoke_now(P0)
    bench.turn()
    assert bench.consumer.count("commit") == 0


def test_a_topic_that_is_gone_is_held_once_and_goes_on_when_it_is_back(bench: Bench) -> None:
    bench.assigned(P0, 0, [0])
    bench.lookup.ids["t"] = None
    for _ in range(2):
        bench.consumer.queue.append(FakeMessage("t", 0, None, error=3, text="gone"))
        bench.turn()
    bench.turn(10)
    assert [(e.reason, e.held) for e in bench.of(ev.HoldChanged)] == [(Reason.TOPIC_GONE, True)]
    assert bench.consumer.paused == {P0}
    bench.lookup.ids["t"] = "id-1"
    bench.consumer.log[P0] = [0, 1]
    bench.clock.now += 15
    bench.turn(4)
    assert bench.of(ev.HoldChanged)[-1].held is False
    assert bench.offsets(P0) == [0, 1]


# ---------------------------------------------------------------------------------------------------- seeks


def test_everything_after_sought_starts_at_the_offset_that_was_sought(bench: Bench) -> None:
    epoch = bench.assigned(P0, 0, range(10))
    bench.tell(ev.Seek(0, P0, epoch, 4, 77))
    bench.turn(2)
    sought = bench.of(ev.Sought)
    assert sought == [ev.Sought(P0, epoch, 77)]
    after = [e for e in bench.events[bench.events.index(sought[0]) :] if isinstance(e, ev.Fetched)]
    assert after[0].records[0].offset == 4


def test_a_seek_that_librdkafka_refuses_is_done_by_assigning_again(bench: Bench) -> None:
    epoch = bench.assigned(P0, 0, range(10))
    bench.consumer.seek_fails = True
    bench.tell(ev.Seek(0, P0, epoch, 4, 77))
    bench.turn(2)
    assert bench.of(ev.Sought) == [ev.Sought(P0, epoch, 77)]
    assert bench.consumer.last("assign") == [("t", 0, 4)]


def test_a_seek_of_an_ended_epoch_moves_nothing(bench: Bench) -> None:
    epoch = bench.assigned(P0, 0, range(10))
    bench.tell(ev.Seek(0, P0, epoch + 1, 4, 77))
    bench.turn()
    assert bench.of(ev.Sought) == []
    assert bench.consumer.count("seek") == 0
