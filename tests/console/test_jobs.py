"""What takes long: bounded in number and time, stopped when nobody waits for it or the member ends."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from streamloop.errors import StreamLoopError
from streamloop.ops.console.jobs import FORGOTTEN, KEPT, LOOK, LOOKS_AT_ONCE, REPLAY, Job, Jobs
from streamloop.ops.web import RefusedError
from tests.realkafka.waiting import wait_until

if TYPE_CHECKING:
    from streamloop.ops.console.jobs import Progress


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


class Waiting:
    """Work that goes on until it is told to stop, or let go."""

    def __init__(self) -> None:
        self.go = threading.Event()
        self.turns = 0

    def __call__(self, progress: Progress, stop: threading.Event) -> Any:
        while not stop.is_set() and not self.go.wait(0.005):
            self.turns += 1
            progress({"done": self.turns})
        return "whole" if not stop.is_set() else "a part"


def ended(job: Job) -> Job:
    wait_until(lambda: job.state != "running", 30, "the end")
    return job


def test_a_job_shows_its_progress_and_its_result() -> None:
    jobs, work = Jobs(), Waiting()
    job = jobs.start(LOOK, "a search", work, by="Ada")
    wait_until(lambda: jobs.get(job.id).progress, 30, "progress")
    work.go.set()
    assert ended(job).state == "done"
    shown = jobs.get(job.id).shown()
    assert (shown["result"], shown["by"], shown["error"]) == ("whole", "Ada", "")


def test_a_stopped_job_has_a_partial_result_and_says_who_stopped_it() -> None:
    jobs = Jobs()
    job = jobs.start(LOOK, "a search", Waiting(), by="Ada")
    jobs.stop(job.id, "stopped by Grace")
    shown = ended(job).shown()
    assert (shown["state"], shown["result"], shown["stopped_because"]) == (
        "stopped",
        "a part",
        "stopped by Grace",
    )


def test_an_error_of_ours_is_a_sentence_and_another_is_not_shown(caplog: pytest.LogCaptureFixture) -> None:
    def ours(_progress: Progress, _stop: threading.Event) -> None:
        raise StreamLoopError("orders.billing.dlq is not there: check its name.")

    def another(_progress: Progress, _stop: threading.Event) -> None:
        raise KeyError("secret payload")

    jobs = Jobs()
    assert (
        ended(jobs.start(LOOK, "a", ours, by="")).error == "orders.billing.dlq is not there: check its name."
    )
    assert "secret" not in ended(jobs.start(LOOK, "b", another, by="")).error
    assert "b has failed" in caplog.text


def test_one_replay_at_a_time_and_a_second_is_told_who_makes_the_first() -> None:
    jobs, work = Jobs(), Waiting()
    first = jobs.start(REPLAY, "a replay", work, by="Ada")
    with pytest.raises(RefusedError, match="a replay by Ada runs") as refused:
        jobs.start(REPLAY, "a replay", Waiting(), by="Grace")
    assert refused.value.status == 409
    work.go.set()
    ended(first)
    second = jobs.start(REPLAY, "a replay", Waiting(), by="Grace")
    assert jobs.replaying() is second
    assert jobs.close(10)


def test_more_searches_than_there_is_room_for_are_refused_while_their_pages_wait() -> None:
    clock = Clock()
    jobs = Jobs(clock=clock)
    running = [jobs.start(LOOK, "a search", Waiting(), by="") for _ in range(LOOKS_AT_ONCE)]
    with pytest.raises(RefusedError, match="searches run on this member") as refused:
        jobs.start(LOOK, "one more", Waiting(), by="")
    assert refused.value.status == 429
    clock.now += FORGOTTEN / 5  # the page of the first one was closed; the second is asked for
    jobs.get(running[1].id)
    jobs.start(LOOK, "one more", Waiting(), by="")
    assert ended(running[0]).state == "stopped"
    assert running[1].state == "running"
    assert jobs.close(10)


def test_a_search_that_nobody_asks_for_ends_by_itself_and_a_replay_goes_on() -> None:
    clock = Clock()
    jobs, work = Jobs(clock=clock), Waiting()
    search = jobs.start(LOOK, "a search", Waiting(), by="")
    replay = jobs.start(REPLAY, "a replay", work, by="")
    clock.now += FORGOTTEN + 1
    assert ended(search).stopped_because == "nobody asked for it any more"
    turns = work.turns
    wait_until(lambda: work.turns > turns + 3, 30, "more turns")
    assert replay.state == "running"
    assert jobs.close(10)


def test_ended_jobs_are_kept_within_a_bound() -> None:
    jobs = Jobs()
    all_ids = [ended(jobs.start(LOOK, "a", lambda _p, _s: 1, by="")).id for _ in range(KEPT + 5)]
    assert jobs.get(all_ids[-1]).result == 1
    with pytest.raises(RefusedError, match="not known here"):
        jobs.get(all_ids[0])
    assert len(jobs._jobs) <= KEPT + 1


def test_a_drain_stops_everything_begins_nothing_and_is_waited_for_within_a_bound(
    caplog: pytest.LogCaptureFixture,
) -> None:
    jobs = Jobs()
    replay = jobs.start(REPLAY, "a replay", Waiting(), by="Ada")
    jobs.drain("this member is about to end")
    with pytest.raises(RefusedError, match="ask another member") as refused:
        jobs.start(LOOK, "a search", Waiting(), by="")
    assert refused.value.status == 503
    assert jobs.close(10)
    assert (replay.state, replay.stopped_because) == ("stopped", "this member is about to end")

    stuck, never = Jobs(), threading.Event()
    stuck.start(REPLAY, "a replay", lambda _p, _s: never.wait(20), by="Ada")
    assert not stuck.close(0.05)
    assert "a replay by Ada has not ended" in caplog.text
    never.set()
