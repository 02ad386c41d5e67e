"""The API behind the page: what is begun, followed, stopped and asked for, and what a bad question gets."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import pytest

from streamloop.ops import operations
from tests.console.conftest import Browser, nothing
from tests.console.desk import REFUSED, FakeDesk
from tests.realkafka.waiting import wait_until
from tests.running_loop import ACT, READ, RunningLoop

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def held(desk: FakeDesk) -> Iterator[FakeDesk]:
    """The desk does not come to an end until it is let go."""
    desk.hold.clear()
    desk.stopped.clear()
    yield desk
    desk.hold.set()


def begun(answer: Any) -> str:
    assert answer.status == 200, answer.body
    job: str = answer.json["job"]
    return job


def test_a_search_is_begun_followed_and_shown(signed_in: Browser, desk: FakeDesk) -> None:
    where = {"errors": ["PaymentRefused"]}
    job = signed_in.ended(begun(signed_in.post("groups", {"where": where})))
    assert job["state"] == "done"
    assert REFUSED in [each["fingerprint"] for each in job["result"]["groups"]]
    assert desk.asked[-1] == ("groups", where)


def test_a_replay_goes_by_the_name_of_who_is_signed_in_with_filter_and_plan(
    signed_in: Browser, desk: FakeDesk
) -> None:
    where, plan = {"fingerprints": [REFUSED]}, {"rate": 5, "canary": 10}
    job = signed_in.ended(begun(signed_in.post("replay", {"where": where, "plan": plan})))
    assert job["state"] == "done"
    assert desk.asked[-1] == ("replay", (where, plan, "Ada"))
    assert signed_in.get("runs").json["here"]["id"] == job["id"]


def test_a_replay_is_stopped_by_who_may_act_only(signed_in: Browser, held: FakeDesk) -> None:
    job = begun(signed_in.post("replay", {"where": {}, "plan": {}}))
    wait_until(lambda: signed_in.get(f"job?id={job}").json["progress"], 30, "progress")
    reader = Browser(signed_in.loop)
    reader.sign_in("Grace", act="")
    assert reader.post("stop", {"id": job}).status == 403
    assert reader.get(f"job?id={job}").json["state"] == "running"
    second = signed_in.post("replay", {"where": {}, "plan": {}})
    assert (second.status, "Ada" in second.json["error"]) == (409, True)
    assert signed_in.post("stop", {"id": job}).status == 200
    ended = signed_in.ended(job)
    assert (ended["state"], ended["stopped_because"]) == ("stopped", "stopped by Ada")


def test_who_may_only_act_sees_that_a_replay_goes_on_and_no_result(
    signed_in: Browser, desk: FakeDesk
) -> None:
    job = signed_in.ended(begun(signed_in.post("replay", {"where": {}, "plan": {}})))["id"]
    actor = Browser(signed_in.loop)
    actor.sign_in("Grace", read="")
    shown = actor.get(f"job?id={job}").json
    assert (shown["state"], shown["result"]) == ("done", None)
    search = signed_in.ended(begun(signed_in.post("groups", {"where": {}})))["id"]
    assert actor.get(f"job?id={search}").status == 403


def test_an_error_of_the_desk_is_shown_as_a_sentence(signed_in: Browser, desk: FakeDesk) -> None:
    desk.fails = "No broker answers: it is tried again when you are."
    try:
        job = signed_in.ended(begun(signed_in.post("groups", {"where": {}})))
    finally:
        desk.fails = ""
    assert (job["state"], job["error"]) == ("failed", "No broker answers: it is tried again when you are.")


def test_a_letter_is_shown_with_all_of_it(signed_in: Browser) -> None:
    letter = signed_in.get("letter?topic=orders.billing.dlq&partition=0&offset=17").json
    assert letter["value"]["kind"] == "json"
    assert [each["name"] for each in letter["headers"]][:2] == ["tenant", "tenant"]
    assert signed_in.get("letter?topic=orders.billing.dlq&partition=0&offset=1000").status == 502


@pytest.mark.parametrize(
    ("query", "status"),
    [
        ("", 400),
        ("topic=a&partition=-1&offset=0", 400),
        ("topic=a&partition=0&offset=x", 400),
        ("topic=a&partition=0&offset=99999999999999999999", 400),
        ("topic=a&partition=0&offset=\u0663", 400),
        ("topic=%ff&partition=0&offset=0", 400),
        ("&".join("a=1" for _ in range(50)), 400),
    ],
)
def test_a_place_that_is_none_is_refused(signed_in: Browser, query: str, status: int) -> None:
    from urllib.parse import quote

    assert signed_in.get(f"letter?{quote(query, safe='=&%')}").status == status


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("groups", {"where": []}),
        ("groups", {"strange": {}}),
        ("letters", {"where": {}, "limit": 0}),
        ("letters", {"where": {}, "limit": 501}),
        ("replay", {"where": {}, "plan": 3}),
        ("pause", {"partition": 0}),
        ("pause", {"topic": "another"}),
        ("pause", {"topic": "orders", "partition": -1}),
        ("stop", {"id": 7}),
    ],
)
def test_a_bad_body_is_refused_with_what_is_wrong(signed_in: Browser, path: str, body: Any) -> None:
    answer = signed_in.post(path, body)
    assert answer.status == 400
    assert answer.json["error"]


def test_what_has_not_changed_is_not_sent_again(signed_in: Browser) -> None:
    first = signed_in.get("session")
    tag = first.headers["etag"]
    again = signed_in.get("session", If_None_Match=tag)
    assert (again.status, again.body) == (304, b"")
    other = Browser(signed_in.loop).get("session", If_None_Match=tag)
    assert other.status == 200


def test_one_slow_question_at_a_time_and_the_rest_goes_on(
    signed_in: Browser, desk: FakeDesk, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, go = threading.Event(), threading.Event()

    def slow(*_place: object) -> dict[str, Any]:
        asked.set()
        go.wait(20)
        return {}

    monkeypatch.setattr(desk, "letter", slow)
    path = "letter?topic=a&partition=0&offset=0"
    first = threading.Thread(target=lambda: signed_in.get(path))
    first.start()
    try:
        assert asked.wait(10)
        second = signed_in.get(path)
        assert (second.status, second.headers["retry-after"]) == (503, "1")
        assert signed_in.get("overview").status == 200
    finally:
        go.set()
        first.join(10)
    assert signed_in.get(path).status == 200


def test_pause_and_resume_show_who_and_why(signed_in: Browser) -> None:
    paused = signed_in.post("pause", {"topic": "orders", "partition": 1, "reason": "the bank is down"})
    assert paused.json == {"done": True, "scope": "member"}
    hold = signed_in.get("overview").json["holds"][0]
    assert (hold["topic"], hold["partition"], hold["reason"]) == ("orders", 1, "the bank is down")
    assert hold["who"].startswith("Ada")
    partition = wait_until(lambda: _held(signed_in), 30, "the hold")
    assert (partition["topic"], partition["partition"]) == ("orders", 1)
    assert signed_in.post("resume", {"topic": "orders", "partition": 1}).status == 200
    assert signed_in.get("overview").json["holds"] == []


def _held(browser: Browser) -> Any:
    parts = browser.get("overview").json["partitions"]
    return next((each for each in parts if "operator" in each["held"]), None)


def test_the_overview_needs_no_token_and_says_whom_it_shows(browser: Browser) -> None:
    def both() -> Any:
        found = browser.get("overview").json
        return found if found["totals"]["partitions"] == 2 else None

    seen = wait_until(both, 30, "partitions")
    assert (seen["source"], seen["texts_shown"]) == ("member", False)
    assert "this member only" in seen["source_detail"]
    assert [each["member"] for each in seen["members"]] == ["member-1"]
    assert {(e["topic"], e["retry"]) for e in seen["partitions"]} >= {("orders", False)}


def test_a_replay_that_runs_when_the_member_drains_is_stopped_and_waited_for(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    desk = FakeDesk()
    desk.hold.clear()
    monkeypatch.setattr(operations, "desk_of", lambda _run: (desk, ""))
    finish = threading.Event()

    def handle(_value: bytes) -> None:
        finish.wait(30)

    with RunningLoop(
        handle, console=True, control_act_token=ACT, control_read_token=READ, control_topic="off"
    ) as loop:
        loop.send(b"1")
        wait_until(lambda: loop.metric("loop_running_handlers") == 1, 20, "the handler")
        browser = Browser(loop)
        browser.sign_in()
        job = begun(browser.post("replay", {"where": {}, "plan": {}}))
        wait_until(lambda: browser.get(f"job?id={job}").json["progress"], 30, "progress")
        loop.loop.stop()
        assert desk.stopped.wait(10)  # while the handler still runs
        assert browser.post("replay", {"where": {}, "plan": {}}).status == 503
        finish.set()
        loop.stop()
        assert loop.result is not None
        assert loop.result.exit_code == 0


def test_without_a_dead_letter_topic_it_says_why_there_is_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(operations, "desk_of", lambda _run: (None, "dead_letter is off for every handler"))
    with RunningLoop(nothing, console=True, control_read_token=READ, control_topic="off") as loop:
        browser = Browser(loop)
        browser.sign_in(act="")
        session = browser.get("session").json
        assert (session["dead_letters"], session["why_no_dead_letters"]) == (
            False,
            "dead_letter is off for every handler",
        )
        assert browser.post("groups", {"where": {}}).status == 404
        assert browser.get("runs").status == 404
