"""P1 to P6: what a replay takes, what it leaves, where it goes and what it says."""

from __future__ import annotations

import re
import threading
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer

from streamloop import Message, StreamLoop
from streamloop.dlq import DeadLetters, Edit, Filter, InProgressError, ReplayPlan, RunProgress, Target
from streamloop.dlq import replay as course
from streamloop.kafka import headers as hd
from tests.broker.loops.inprocess import QUICK, Running
from tests.realkafka.client import Record
from tests.realkafka.waiting import wait_until
from tests.replay.shop import Shop, text

if TYPE_CHECKING:
    from pathlib import Path

    from tests.realkafka import KafkaCluster, Members

NOW = ReplayPlan(canary=0, settle=0)
TRACE = b"00-" + b"a" * 32 + b"-" + b"b" * 16 + b"-01"


def place(shop: Shop, at: tuple[int, int]) -> str:
    return f"{shop.dead}/{at[0]}/{at[1]}"


def test_P1_a_filter_chooses_and_a_dry_run_changes_nothing(kafka: KafkaCluster) -> None:
    shop = Shop(kafka)
    placed = shop.die(6)
    shop.die(3, first=6, error="app.CardError")
    found = shop.letters.preview(Filter(errors=("CardError",)))
    assert (found.matched, found.would_go, dict(found.targets)) == (3, 3, {shop.replay: 3})
    assert found.waiting.startswith(f"No member of {shop.group}.retry is there")
    assert not kafka.topic_exists(shop.ledger)
    assert shop.copies() == {}
    for where, numbers in (
        (Filter.parse(error=["app.CardError"]), [6, 7, 8]),
        (Filter.parse(key=["k3"]), [3]),
        (Filter.parse(original=[f"{shop.source}/0:2-4"]), [2, 4]),
        (Filter.parse(at=[place(shop, placed[5])]), [5]),
        (Filter.parse(header=["streamloop-original-offset=1"]), [1]),
        (Filter.parse(until="1750000000001"), [0]),
    ):
        summary = shop.letters.replay(where, NOW, by="ada")
        assert summary.replayed == len(numbers), where.describe()
        back = [each for each in shop.back() if text(each, hd.REPLAY_ID) == summary.run]
        assert sorted(int(text(each, hd.ORIGINAL_OFFSET)) for each in back) == numbers
    shop.assert_once(9)
    runs = shop.letters.runs()
    assert [run.by for run in runs] == ["ada"] * 6
    assert runs[-1].described == "error app.CardError"
    assert Filter.from_json(runs[-1].filter) == Filter.parse(error=["app.CardError"])
    assert all((run.state, run.counts["refused"]) == ("finished", 0) for run in runs)


def test_P3_P4_each_letter_goes_back_once_and_as_it_was(kafka: KafkaCluster) -> None:
    shop = Shop(kafka)
    past = hd.Routing(shop.source, 1, 7, 77, shop.group, replay_count=2, replay_id="earlier")
    given: list[Record] = [
        shop.letter(
            0, headers=[("h", b"1"), ("h", b"2"), ("null", None), ("raw", b"\xff"), ("traceparent", TRACE)]
        ),
        shop.letter(1, value=None, replayed=past),
        shop.letter(2, key=b"\x00\xff", value=b"\x00{"),
        shop.letter(3, value=b"x" * 1_500_000),
    ]
    shop.bury(given)
    summary = shop.letters.replay(plan=NOW)
    assert (summary.state, summary.replayed, summary.exit_code) == ("finished", 4, 0), summary
    again = shop.letters.replay(plan=NOW)
    assert (again.replayed, dict(again.skipped)) == (0, {"replayed before": 4})
    back = {int(text(each, hd.ORIGINAL_OFFSET)): each for each in shop.back()}
    for number, letter in zip((0, 7, 2, 3), given, strict=True):
        record = back[number]
        assert (record.key, record.value, record.partition) == (letter.key, letter.value, number % 2)
        users = [each for each in record.headers if not each[0].startswith("streamloop-")]
        assert users == hd.user_headers(list(letter.headers))
        assert text(record, hd.ORIGINAL_TOPIC) == shop.source
        assert text(record, hd.REPLAY_ID) == summary.run
        for gone in (hd.ATTEMPT, hd.FIRST_FAILED_AT, hd.ERROR_CLASS, hd.DLQ_TOPIC):
            assert record.header(gone) is None
    assert text(back[0], hd.REPLAY_COUNT) == "1"
    assert text(back[7], hd.REPLAY_COUNT) == "3"
    assert text(back[0], hd.REPLAYED_FROM) == f"{shop.dead}/0/0"
    once_more = shop.letters.replay(Filter.parse(key=["k0"]), ReplayPlan(canary=0, settle=0, again=True))
    assert once_more.replayed == 1
    assert sorted(text(each, hd.REPLAY_COUNT) for each in shop.back() if each.key == b"k0") == ["1", "2"]


def test_P2_what_dies_again_meanwhile_is_not_replayed_by_the_same_run(kafka: KafkaCluster) -> None:
    shop = Shop(kafka, retry=False)
    shop.die(30)
    loop: StreamLoop[Any] = StreamLoop(**shop.options, in_place_attempts=1, **QUICK)

    @loop.consumer(shop.source)
    async def charge(value: dict[str, int]) -> None:
        raise ConnectionError("still broken")

    with Running(loop) as running:
        plan = ReplayPlan(canary=0, rate=10, threshold=1, settle=20)
        summary = shop.letters.replay(plan=plan)
        running.until(lambda: running.counts()["dead_lettered"] == 30, what="30 dead again")
    assert (summary.matched, summary.replayed) == (30, 30)
    assert (summary.outcomes.dead, summary.outcomes.unknown) == (30, 0)
    shop.assert_once(30)
    new = list(shop.letters.letters(only_open=True))
    assert len(new) == 30
    assert {letter.replay_id for letter in new} == {summary.run}


def test_P5_only_the_group_that_failed_sees_it_and_other_targets_say_who_else_would(
    kafka: KafkaCluster,
) -> None:
    shop = Shop(kafka, partitions=1)
    shop.die(4)
    kafka.commit("other-team", shop.source, {0: (0, "")})
    assert shop.letters.preview().readers == {}
    to_source = ReplayPlan(target=Target.SOURCE, limit=1, canary=0, settle=0)
    assert shop.letters.preview(plan=to_source).readers == {shop.source: ["other-team"]}
    before = kafka.end_offsets(shop.source)
    shop.letters.replay(plan=ReplayPlan(limit=1, canary=0, settle=0))
    assert kafka.end_offsets(shop.source) == before
    assert shop.letters.replay(plan=to_source).replayed == 1
    [record] = shop.back(shop.source)
    assert text(record, hd.REPLAYED_FROM) == f"{shop.dead}/0/1"
    to_retry = ReplayPlan(target=Target.RETRY, limit=1, canary=0, settle=0)
    assert shop.letters.replay(plan=to_retry).replayed == 1
    [waits] = shop.back(shop.retry_topic)
    assert int(text(waits, hd.NOT_BEFORE)) - int(text(waits, hd.REPLAYED_AT)) == 1000
    elsewhere = kafka.create_topic(1, prefix="elsewhere")
    anywhere = ReplayPlan(target=Target.TOPIC, to_topic=elsewhere, canary=0, settle=0)
    summary = shop.letters.replay(plan=anywhere)
    assert (summary.replayed, summary.settles) == (1, False)
    assert shop.letters.preview().would_go == 0


def test_P6_a_canary_that_dies_again_stops_the_replay(kafka: KafkaCluster) -> None:
    shop = Shop(kafka, retry=False)
    shop.die(60)
    loop: StreamLoop[Any] = StreamLoop(**shop.options, in_place_attempts=1, **QUICK)

    @loop.consumer(shop.source)
    async def charge(value: dict[str, int]) -> None:
        raise ConnectionError("still broken")

    with Running(loop):
        summary = shop.letters.replay(plan=ReplayPlan(settle=30))
    assert (summary.state, summary.replayed, summary.exit_code) == ("stopped", 10, 1)
    # It stops as soon as it is clear that more than 10 % of the ten have failed again.
    assert re.match(r"\d+ of the first 10 failed again \(\d+ are dead\), more than 10%", summary.note)
    assert 2 <= summary.outcomes.dead <= 10
    shop.assert_once(10)
    [run] = shop.letters.runs()
    assert (run.state, run.outcomes["dead"], run.note) == ("stopped", summary.outcomes.dead, summary.note)


def test_P6_it_stops_when_they_begin_to_come_back_after_the_canary(
    kafka: KafkaCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(course, "WATCH_EVERY", 0.0)
    shop = Shop(kafka, partitions=1, retry=False)
    shop.die(400)
    loop: StreamLoop[Any] = StreamLoop(**shop.options, in_place_attempts=1, **QUICK)

    @loop.consumer(shop.source)
    async def charge(value: dict[str, int]) -> None:
        if value["id"] >= 5:
            raise ConnectionError("broken from here on")

    with Running(loop):
        summary = shop.letters.replay(plan=ReplayPlan(canary=5, rate=20, settle=30))
    assert summary.state == "stopped"
    assert 10 <= summary.replayed < 400
    assert "failed again" in summary.note
    shop.assert_once(summary.replayed)


def test_P6_it_keeps_to_its_rate_and_waits_between_transactions(kafka: KafkaCluster) -> None:
    shop = Shop(kafka, partitions=1)
    shop.die(9)
    summary = shop.letters.replay(plan=ReplayPlan(rate=5, canary=0, settle=0))
    assert summary.replayed == 9
    assert summary.seconds >= 1.0  # nine at five a second: the last transaction waits a second at least
    assert shop.letters.preview().would_go == 0


def test_outcomes_are_told_and_later_by_status(kafka: KafkaCluster) -> None:
    shop = Shop(kafka)
    shop.die(20)
    loop: StreamLoop[Any] = StreamLoop(**shop.options, in_place_attempts=1, **QUICK)

    @loop.consumer(shop.source)
    async def charge(value: dict[str, int], message: Message) -> None:
        if value["id"] == 3:
            raise ConnectionError("never")
        if value["id"] == 4 and message.attempt == 1:
            raise ConnectionError("once")

    nobody = shop.letters.replay(plan=NOW)
    assert nobody.outcomes.unknown == 20
    with Running(loop) as running:
        running.until(lambda: running.counts()["dead_lettered"] == 1, what="one to be dead again")
        running.until(lambda: kafka.lag(f"{shop.group}.retry", shop.replay) == 0, what="all of it committed")
    found = shop.letters.status(nobody.run[:18])
    assert found.outcomes is not None
    assert found.outcomes.to_json() == {"acked": 18, "failed_again": 1, "dead": 1, "unknown": 0}
    assert (found.record.run, found.alive) == (nobody.run, False)


# ------------------------------------------------------------------------------------------------ two at once


def test_P7_a_second_replay_is_refused_with_who_where_and_since_when(
    kafka: KafkaCluster, members: Members, tmp_path: Path
) -> None:
    from tests.replay.test_interrupted import start, summary_of

    shop = Shop(kafka)
    shop.die(20)
    first = start(members, shop, tmp_path, point="committed", times=3, by="ada")
    first.wait_for_line("^AT committed")
    with pytest.raises(InProgressError, match=r"Not started: ada on \S+ \(pid \d+, replay \S+, since 20"):
        shop.letters.replay(plan=NOW)
    # Looking disturbs it as little as being refused.
    assert shop.letters.preview().busy.startswith("ada on ")
    assert shop.letters.groups().letters == 20
    assert shop.letters.get(shop.dead, 0, 0).topic == shop.dead
    assert [run.state for run in shop.letters.runs()] == ["running"]
    (tmp_path / "gate").touch()
    assert summary_of(first)["state"] == "finished"
    shop.assert_once(20)


def test_P7_two_without_courtesy_double_nothing(kafka: KafkaCluster, members: Members) -> None:
    from tests.replay.test_interrupted import start

    shop = Shop(kafka)
    count = 200
    shop.die(count)
    both = [start(members, shop, courteous=False, most=3, by=f"person {n}") for n in range(3)]
    for each in both:
        each.wait(60)
    shop.letters.replay(plan=ReplayPlan(canary=0, settle=0, takeover=True))
    shop.assert_once(count)


def test_P7_sigterm_ends_after_the_transaction_in_hand_and_the_next_run_goes_on(
    kafka: KafkaCluster, members: Members
) -> None:
    from tests.replay.test_interrupted import start, summary_of

    shop = Shop(kafka)
    shop.die(60)
    member = start(members, shop, plan={"rate": 10}, point="before progress", times=2, gate="/")
    member.wait_for_line("^AT before progress")
    member.terminate()
    told = summary_of(member)
    assert member.wait() == 1
    assert told["state"] == "stopped"
    assert 0 < told["replayed"] < 60
    shop.assert_once(told["replayed"])
    assert shop.letters.replay(plan=NOW).replayed == 60 - told["replayed"]
    shop.assert_once(60)


def test_P7_the_broker_goes_and_comes_back(kafka: KafkaCluster) -> None:
    shop = Shop(kafka)
    shop.die(80)
    seen = threading.Event()
    outcome: list[Any] = []

    def tell(progress: RunProgress) -> None:
        if progress.replayed:
            seen.set()

    def replay() -> None:
        plan = ReplayPlan(rate=20, canary=0, settle=0)
        outcome.append(shop.letters.replay(plan=plan, progress=tell))

    thread = threading.Thread(target=replay, daemon=True)
    thread.start()
    assert seen.wait(30)
    kafka.nodes[0].kill()
    kafka.nodes[0].start()
    thread.join(100)
    [summary] = outcome
    # It waits for the broker; whether it goes on or says what it did depends on how long that takes.
    assert summary.state in ("finished", "failed"), summary
    before = len(shop.copies())
    assert summary.replayed <= before <= summary.replayed + summary.unsure
    shop.letters.replay(plan=ReplayPlan(canary=0, settle=0, takeover=True))
    shop.assert_once(80)
    assert [run.state for run in shop.letters.runs()][-1] in ("finished", "failed", "interrupted")


# ------------------------------------------------------------------------------------------- what is special


def test_a_dead_letter_topic_made_anew_owes_nothing_to_the_old_ledger(kafka: KafkaCluster) -> None:
    shop = Shop(kafka, partitions=1)
    shop.die(5)
    assert shop.letters.replay(plan=NOW).replayed == 5
    kafka.delete_topic(shop.dead)
    kafka.create_topic(1, name=shop.dead)
    shop.die(5, first=100)
    assert len(list(shop.letters.letters(only_open=True))) == 5
    assert shop.letters.replay(plan=NOW).replayed == 5
    assert len(shop.back()) == 10


def test_letters_of_other_programs_go_to_a_topic_that_is_named(kafka: KafkaCluster) -> None:
    shop = Shop(kafka, partitions=1)
    strange = [
        Record(b"bare"),
        Record(
            b"kafka",
            b"k",
            ((hd.DLQ_TOPIC, shop.source.encode()), (hd.DLQ_PARTITION, b"0"), (hd.DLQ_OFFSET, b"9")),
        ),
        shop.letter(1),
    ]
    kafka.produce(shop.dead, strange)
    other = DeadLetters(shop.settings.model_copy(update={"group": "someone-else"}), topics=[shop.dead])
    found = other.preview()
    assert (found.matched, found.would_go) == (3, 0)
    summary = shop.letters.replay(plan=NOW)
    assert summary.replayed == 2
    assert list(summary.skipped) == ["nobody says where it first failed (--to-topic names where it is to go)"]
    elsewhere = kafka.create_topic(2, prefix="elsewhere")
    summary = shop.letters.replay(
        plan=ReplayPlan(target=Target.TOPIC, to_topic=elsewhere, canary=0, settle=0)
    )
    assert summary.replayed == 1
    [record] = shop.back(elsewhere)
    assert (record.key, record.value) == (None, b"bare")
    assert record.header(hd.ORIGINAL_TOPIC) is None
    assert [text(r, hd.ORIGINAL_OFFSET) for r in shop.back()] == ["9", "1"]


def test_what_the_target_does_not_take_is_refused_alone_and_stays_open(kafka: KafkaCluster) -> None:
    shop = Shop(kafka, partitions=1)
    numbers = list(range(20))
    kafka.produce(
        shop.dead, [shop.letter(n, value=b"x" * 30_000 if n in (7, 13) else b"{}") for n in numbers]
    )
    kafka.set_topic_config(shop.replay, max_message_bytes="20000")
    wait_until(lambda: kafka.topic_config(shop.replay)["max.message.bytes"] == "20000", 30, "the limit")
    summary = shop.letters.replay(plan=NOW)
    assert (summary.state, summary.replayed, summary.refused_count) == ("finished", 18, 2)
    assert [each[0] for each in summary.refused] == [f"{shop.dead}/0/7", f"{shop.dead}/0/13"]
    shop.assert_once(18)
    kafka.set_topic_config(shop.replay, max_message_bytes="2000000")
    wait_until(lambda: kafka.topic_config(shop.replay)["max.message.bytes"] == "2000000", 30, "the limit")
    assert shop.letters.replay(plan=NOW).replayed == 2
    shop.assert_once(20)


def test_what_the_broker_refuses_within_a_transaction_is_found_by_halving(kafka: KafkaCluster) -> None:
    shop = Shop(kafka, partitions=1)
    compacted = kafka.create_topic(1, prefix="compacted", config={"cleanup.policy": "compact"})
    records = [shop.letter(n) for n in range(16)]
    records[11] = Record(b"no key", None, records[11].headers, 0)
    kafka.produce(shop.dead, records)
    plan = ReplayPlan(target=Target.TOPIC, to_topic=compacted, canary=0, settle=0)
    summary = shop.letters.replay(plan=plan)
    assert (summary.state, summary.replayed, summary.refused_count) == ("finished", 15, 1)
    assert summary.refused[0][0] == f"{shop.dead}/0/11"
    assert [letter.offset for letter in shop.letters.letters(only_open=True)] == [11]


def test_what_expires_meanwhile_is_said_and_not_waited_for(kafka: KafkaCluster) -> None:
    shop = Shop(kafka, partitions=1)
    shop.die(30)
    gone = threading.Event()

    def delete(point: str) -> None:
        if point == "ledger read":
            return
        if point == "before progress" and not gone.is_set():
            gone.set()
            kafka.delete_records(shop.dead, {0: 20})

    replay = course.Replay(
        shop.settings, [shop.dead], Filter.parse(at=[f"{shop.dead}/0:0-29"]), NOW, by="ada", at=delete
    )
    kafka.delete_records(shop.dead, {0: 5})
    summary = replay.run()
    assert summary.state == "finished"
    assert summary.replayed + summary.expired == 25
    other = shop.letters.preview(Filter.parse(at=[f"{shop.dead}/0:2-29"]))
    assert other.expired_notes


def test_an_edited_letter_goes_changed_and_the_ledger_keeps_what_it_was(kafka: KafkaCluster) -> None:
    shop = Shop(kafka, partitions=1)
    kafka.produce(shop.dead, [shop.letter(0, value=b"\x00bad", headers=[("h", b"\xff")])])
    where = Filter.parse(at=[f"{shop.dead}/0/0"])
    plan = ReplayPlan(canary=0, settle=0, edit=Edit(b'{"id": 0}', [("h", b"good")]))
    assert shop.letters.replay(where, plan).replayed == 1
    [record] = shop.back()
    assert (record.key, record.value, record.header("h")) == (b"k0", b'{"id": 0}', b"good")
    [entry] = shop.entries().values()
    assert entry["edited"] == {"value": "AGJhZA==", "headers": [["h", "/w=="]]}
    assert shop.letters.get(shop.dead, 0, 0).value == b"\x00bad"


def test_an_open_transaction_of_another_program_is_not_waited_for(kafka: KafkaCluster) -> None:
    shop = Shop(kafka, partitions=1)
    shop.die(3)
    producer = Producer(kafka.producer_config(**{"transactional.id": f"{shop.group}-other"}))
    producer.init_transactions(30)
    producer.begin_transaction()
    producer.produce(shop.dead, b"not yet")
    producer.flush(30)
    try:
        summary = shop.letters.replay(plan=NOW)
        assert (summary.replayed, summary.hidden > 0) == (3, True)
    finally:
        producer.abort_transaction(30)
