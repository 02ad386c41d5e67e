"""The two listeners: what the probes say when, who may see and act, and what a bad request gets."""

from __future__ import annotations

import json
import logging
import socket
import threading
from typing import TYPE_CHECKING, Any

import pytest
from pydantic import SecretStr

from streamloop.errors import ConfigurationError
from streamloop.ops.guard import LATE_AT_ONCE, Guard
from streamloop.ops.listener import Listener
from streamloop.ops.web import LONGEST_BODY, Answer, Application, RefusedError, Request, answer_json
from streamloop.settings import Settings
from tests.realkafka.waiting import wait_until
from tests.running_loop import ACT, READ, RunningLoop, ask

if TYPE_CHECKING:
    from collections.abc import Iterator


async def nothing(_value: bytes) -> None: ...


@pytest.fixture(scope="module")
def running() -> Iterator[RunningLoop]:
    """A loop with both tokens, for requests that leave it as it was."""
    with RunningLoop(
        nothing, control_act_token=ACT, control_read_token=READ, control_hosts="loops.internal"
    ) as loop:
        wait_until(lambda: loop.ops("/ready").status == 200, 20, "readiness")
        wait_until(lambda: loop.control("/status").json["state"] == "running", 30, "a status")
        yield loop


def bearer(token: str) -> dict[str, str]:
    return {"Authorization": f"Bearer {token}"}


def failing(loop: RunningLoop) -> Any:
    """The answer of /live, when it is a failure."""
    answer = loop.ops("/live")
    return answer if answer.status == 503 else None


# ------------------------------------------------------------------------------------------------- probes


def test_probes_of_a_loop_that_runs_are_good_and_say_how_old_what_is(running: RunningLoop) -> None:
    for path in ("/startup", "/ready", "/live"):
        answer = running.ops(path)
        assert (answer.status, answer.json["status"], answer.json["reasons"]) == (200, "ok", [])
        assert answer.headers["content-type"].startswith("application/json")
    live = running.ops("/live").json
    assert live["poll_turn_age"]["source"] >= 0
    assert live["event_loop_age"] >= 0


def test_H5_without_a_broker_it_has_started_lives_and_is_not_ready() -> None:
    with RunningLoop(nothing, brokers="127.0.0.1:1") as loop:
        assert loop.ops("/startup").status == 200
        assert loop.ops("/live").status == 200
        ready = loop.ops("/ready")
        assert (ready.status, ready.json["reasons"]) == (503, ["waiting for the broker"])
        assert loop.ops("/metrics").status == 200
        assert loop.control("/status").json["state"] == "waiting for the broker"


def test_it_is_not_ready_while_it_drains_and_lives_on() -> None:
    finish = threading.Event()

    def wait(_value: bytes) -> None:
        finish.wait(30)

    with RunningLoop(wait) as loop:
        loop.send(b"1")
        wait_until(lambda: loop.metric("loop_running_handlers") == 1, 20, "the handler")
        assert loop.ops("/ready").status == 200
        loop.loop.stop()
        wait_until(lambda: loop.ops("/ready").status == 503, 30, "the drain")
        assert loop.ops("/ready").json["reasons"] == ["draining"]
        assert loop.ops("/live").status == 200
        finish.set()


def test_ready_stays_when_no_partition_is_assigned_or_the_broker_goes_away() -> None:
    with RunningLoop(nothing) as loop:
        wait_until(lambda: loop.ops("/ready").status == 200, 20, "readiness")
        loop._mock.take_down()
        wait_until(lambda: loop.metric("loop_errors_total", type="_ALL_BROKERS_DOWN") > 0, 30, "the outage")
        assert loop.ops("/ready").status == 200
        assert loop.ops("/live").status == 200
        loop._mock.bring_up()


def test_H8_a_handler_that_blocks_the_event_loop_is_named_by_live_within_its_bound() -> None:
    release = threading.Event()

    async def charge(_value: bytes) -> None:
        release.wait(60)  # as time.sleep would

    with RunningLoop(charge) as loop:
        wait_until(lambda: loop.ops("/ready").status == 200, 20, "readiness")
        loop.send(b"1")
        live = wait_until(lambda: failing(loop), 30, "the failure")
        assert live.json["reasons"] == ["the event loop is blocked by handler charge"]
        # What was collected before is still there, and says how old it is.
        page = loop.ops("/metrics").body.decode()
        age = next(line for line in page.splitlines() if line.startswith("loop_heartbeat_age_seconds"))
        assert float(age.split()[-1]) >= 2
        assert loop.control("/status").status == 200
        release.set()
        wait_until(lambda: loop.ops("/live").status == 200, 30, "its recovery")


def test_a_handler_that_does_not_come_back_after_its_time_out_is_named_with_its_message() -> None:
    release = threading.Event()

    def charge(_value: bytes) -> None:
        release.wait(60)

    with RunningLoop(charge, options={"timeout": 0.1, "kill_after": 0.2}, drain_timeout=1) as loop:
        loop.send(b"1")
        live = wait_until(lambda: failing(loop), 20, "the failure")
        [reason] = live.json["reasons"]
        assert reason.startswith("handler charge did not come back after its time-out of orders/0/0")
        # The run ends of it a moment later.
        ready = wait_until(lambda: (said := loop.ops("/ready")).status == 503 and said, 20, "not ready")
        assert ready
        assert "kill_after" in ready.json["reasons"][0]
        release.set()
        loop._thread.join(30)
        assert loop.result is not None
        assert loop.result.exit_code == 70


# ----------------------------------------------------------------------------------------------- requests


def test_what_is_not_there_and_what_is_not_taken_get_clear_errors(running: RunningLoop) -> None:
    missing = running.ops("/metrix")
    assert (missing.status, missing.json["error"]) == (
        404,
        "there is nothing here: the paths are /live, /metrics, /ready, /startup",
    )
    wrong = running.ops("/metrics", method="POST", body=b"x")
    assert (wrong.status, wrong.headers["allow"]) == (405, "GET, HEAD")
    assert running.control("/pause", headers=bearer(ACT)).status == 405
    assert running.ops("/").json == {"paths": ["/live", "/metrics", "/ready", "/startup"]}
    head = running.ops("/metrics", method="HEAD")
    assert (head.status, head.body) == (200, b"")


def raw(url: str, request: bytes) -> bytes:
    """What is answered to these bytes until the connection ends."""
    host, port = url.removeprefix("http://").split(":")
    with socket.create_connection((host, int(port)), timeout=10) as connection:
        connection.sendall(request)
        answer = b""
        while chunk := connection.recv(65_536):
            answer += chunk
    return answer


@pytest.mark.parametrize(
    ("request_bytes", "status"),
    [
        (b"GARBAGE\r\n\r\n", b"400"),
        (b"GET /metrics HTTP/1.0\r\nContent-Length: many\r\n\r\n", b"400"),
        (b"GET /metrics HTTP/1.0\r\nX: " + b"x" * 20_000 + b"\r\n\r\n", b"431"),
        (b"POST /metrics HTTP/1.0\r\nContent-Length: 13000\r\n\r\n" + b"x" * 13_000, b"413"),
        (b"POST /metrics HTTP/1.0\r\nContent-Length: 90000000\r\n\r\n", b"413"),
        (b"GET /startup HTTP/1.0\r\n\r\n", b"200"),
    ],
)
def test_malformed_and_large_requests_are_refused_and_the_listener_lives_on(
    running: RunningLoop, request_bytes: bytes, status: bytes
) -> None:
    url = running.run.operations.urls["ops_address"]
    assert raw(url, request_bytes).split()[1] == status
    assert running.ops("/startup").status == 200


def test_silent_connections_take_no_thread(running: RunningLoop) -> None:
    host, port = running.run.operations.urls["ops_address"].removeprefix("http://").split(":")
    silent = [socket.create_connection((host, int(port)), timeout=10) for _ in range(20)]
    try:
        for connection in silent:
            connection.sendall(b"GET /metrics HTTP/1.1\r\n")
        assert running.ops("/live").status == 200
    finally:
        for connection in silent:
            connection.close()


# ------------------------------------------------------------------------------------------------ control


def test_the_status_is_there_without_a_token_and_has_no_error_texts(running: RunningLoop) -> None:
    status = running.control("/status").json
    assert status["group"] == "billing"
    assert status["error_texts_shown"] is False
    assert status["probes"]["live"] is True
    assert {"partitions", "consumers", "intakes", "held_seconds", "version", "at"} <= status.keys()
    assert running.control("/status", headers=bearer(READ)).json["error_texts_shown"] is True


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:80", "localhost.evil.example", "127.0.0.1.nip.io"]
)
def test_a_page_that_calls_it_by_a_name_of_its_own_is_refused(running: RunningLoop, host: str) -> None:
    refused = running.control("/status", headers={"Host": host})
    assert refused.status == 403
    assert "control_hosts" in refused.json["error"]


@pytest.mark.parametrize(
    "host", ["localhost:1", "127.0.0.1", "[::1]:9465", "loops.internal", "LOOPS.internal.:1"]
)
def test_it_may_be_called_by_address_localhost_and_the_names_that_are_set(
    running: RunningLoop, host: str
) -> None:
    assert running.control("/status", headers={"Host": host}).status == 200


def test_a_request_without_a_host_is_refused(running: RunningLoop) -> None:
    url = running.run.operations.urls["control_address"]
    assert raw(url, b"GET /status HTTP/1.0\r\n\r\n").split()[1] == b"400"


def test_pause_and_resume_need_the_act_token_and_hold_what_they_name() -> None:
    with RunningLoop(nothing, control_act_token=ACT, control_read_token=READ) as loop:
        wait_until(lambda: loop.run.control is not None and loop.run.control.on, 20, "the control topic")
        wait_until(lambda: loop.metric("loop_assigned_partitions", topic="orders") == 2, 20, "the assignment")
        without = loop.control("/pause", method="POST")
        assert (without.status, without.headers["www-authenticate"]) == (401, "Bearer")
        assert loop.control("/pause", method="POST", headers=bearer(READ)).status == 403
        headers = {**bearer(ACT), "Content-Type": "application/json"}
        body = json.dumps({"topic": "orders", "partition": 1}).encode()
        paused = loop.control("/pause", method="POST", headers=headers, body=body)
        assert (paused.status, paused.json["scope"]) == (200, "group")
        [hold] = paused.json["paused"]
        assert (hold["topic"], hold["partition"], hold["by"]) == ("orders", 1, "127.0.0.1")
        wait_until(
            lambda: loop.metric("loop_held_seconds", partition="1", reason="operator") > 0, 10, "the hold"
        )
        assert loop.metric("loop_held_partitions", reason="operator") == 1
        resumed = loop.control("/resume", method="POST", headers=bearer(ACT))
        assert resumed.json == {"scope": "group", "paused": []}
        wait_until(lambda: loop.metric("loop_held_partitions", reason="operator") == 0, 30, "its end")


def test_a_pause_names_who_and_why_reaches_as_far_as_it_says_and_is_shown() -> None:
    with RunningLoop(nothing, control_act_token=ACT, control_read_token=READ) as loop:
        wait_until(lambda: loop.run.control is not None and loop.run.control.on, 20, "the control topic")
        headers = {**bearer(ACT), "Content-Type": "application/json"}

        def post(path: str, **body: Any) -> Any:
            return loop.control(path, method="POST", headers=headers, body=json.dumps(body).encode()).json

        mine = post("/pause", scope="member", topic="orders", partition=0)
        assert (mine["scope"], [each["scope"] for each in mine["paused"]]) == ("member", ["member"])
        everybody = post("/pause", reason="INC-42", by="ann")
        assert everybody["scope"] == "group"
        [hold] = [each for each in everybody["paused"] if each["scope"] == "group"]
        assert (hold["by"], hold["reason"], hold["topic"]) == ("ann (127.0.0.1)", "INC-42", None)
        wait_until(lambda: loop.metric("loop_held_partitions", reason="operator") >= 2, 30, "the hold")
        wait_until(lambda: loop.control("/group").json["members"], 30, "the member's status")
        group = loop.control("/group").json
        assert group["control"] == {"topic": "billing.control", "state": "on", "detail": ""}
        assert [each["record"]["member"] for each in group["members"]] == ["member-1"]
        assert [(each["by"], each["reason"]) for each in group["holds"]] == [("ann (127.0.0.1)", "INC-42")]
        assert post("/resume", scope="member", topic="orders", partition=0)["scope"] == "member"
        left = post("/resume")
        assert left == {"scope": "group", "paused": []}
        wait_until(lambda: loop.metric("loop_held_partitions", reason="operator") == 0, 30, "its end")


def test_without_a_control_topic_a_pause_is_this_members_and_one_for_the_group_is_refused() -> None:
    with RunningLoop(nothing, control_act_token=ACT, control_topic="off") as loop:
        wait_until(lambda: loop.metric("loop_assigned_partitions", topic="orders") == 2, 20, "the assignment")
        headers = {**bearer(ACT), "Content-Type": "application/json"}
        refused = loop.control("/pause", method="POST", headers=headers, body=b'{"scope": "group"}')
        assert refused.status == 503
        assert "control_topic (keyword control_topic) is off" in refused.json["error"]
        assert loop.control("/group").status == 404
        paused = loop.control("/pause", method="POST", headers=headers)
        assert paused.json["scope"] == "member"
        wait_until(lambda: loop.metric("loop_held_partitions", reason="operator") >= 2, 30, "the hold")
        shown = wait_until(lambda: loop.control("/status").json.get("control"), 30, "a status")
        assert (shown["state"], shown["topic"]) == ("off", "billing.control")


@pytest.mark.parametrize(
    ("body", "kind", "status", "says"),
    [
        (b"{", "application/json", 400, "no JSON"),
        (b"[]", "application/json", 400, "JSON object with topic, partition"),
        (b'{"topic": "orders"}', "text/plain", 415, "application/json"),
        (b'{"topic": 1}', "application/json", 400, "topic is no str"),
        (b'{"topic": "orders", "partition": true}', "application/json", 400, "partition is no int"),
        (b'{"topic": "orders", "partition": -1}', "application/json", 400, "0 or more"),
        (b'{"partition": 1}', "application/json", 400, "needs its topic"),
        (b'{"topic": "other"}', "application/json", 400, "it reads orders"),
        (b'{"topics": "orders"}', "application/json", 400, "'topics' is unknown"),
        (b'{"scope": "world"}', "application/json", 400, "scope is group or member"),
        (b" " * (LONGEST_BODY + 1), "application/json", 413, "larger"),
    ],
)
def test_a_bad_body_says_what_is_wrong_with_it_and_pauses_nothing(
    running: RunningLoop, body: bytes, kind: str, status: int, says: str
) -> None:
    headers = {**bearer(ACT), "Content-Type": kind}
    refused = running.control("/pause", method="POST", headers=headers, body=body)
    assert refused.status == status
    assert says in refused.json["error"]
    assert running.run.operators.status() == ()


def test_without_an_act_token_nobody_acts_and_without_a_read_token_nobody_sees() -> None:
    guard = Guard(None, None, ())
    with pytest.raises(RefusedError) as refused:
        guard.require_act(request_with(authorization="Bearer anything"))
    assert refused.value.status == 403
    assert "control_act_token" in refused.value.sentence
    assert guard.may_read(request_with()) is False


def request_with(**headers: str) -> Request:
    return Request("GET", "/status", headers, b"", "192.0.2.1")


def test_a_wrong_token_is_answered_late_logged_without_it_and_few_at_a_time(
    caplog: pytest.LogCaptureFixture,
) -> None:
    waiting = threading.Semaphore(0)
    go_on = threading.Event()
    slept: list[float] = []

    def sleep(seconds: float) -> None:
        slept.append(seconds)
        waiting.release()
        go_on.wait(30)

    guard = Guard(SecretStr(READ), SecretStr(ACT), (), sleep=sleep)
    answers: list[int] = []

    def attempt() -> None:
        try:
            guard.require_act(request_with(authorization="Bearer guessed-secret"))
        except RefusedError as error:
            answers.append(error.status)

    threads = [threading.Thread(target=attempt) for _ in range(LATE_AT_ONCE)]
    with caplog.at_level(logging.WARNING):
        for thread in threads:
            thread.start()
        for _ in threads:
            assert waiting.acquire(timeout=10)
        attempt()
        assert answers == [429]
        guard.require_act(request_with(authorization=f"Bearer {ACT}"))
        go_on.set()
        for thread in threads:
            thread.join(10)
    assert answers == [429, *[401] * LATE_AT_ONCE]
    assert slept == [1.0] * LATE_AT_ONCE
    assert "192.0.2.1" in caplog.text
    assert "guessed-secret" not in caplog.text


@pytest.mark.parametrize("header", ["Basic YTpi", "Bearer", "Bearer  ", "token"])
def test_another_kind_of_authorization_is_refused_with_how_to_send_it(header: str) -> None:
    guard = Guard(SecretStr(READ), None, ())
    with pytest.raises(RefusedError, match="Authorization: Bearer") as refused:
        guard.may_read(request_with(authorization=header))
    assert refused.value.status == 401


def test_error_texts_that_may_quote_a_payload_need_the_read_token() -> None:
    secret = "card 4111-1111"

    async def fail(_value: bytes) -> None:
        raise ValueError(secret)

    options = {"in_place_attempts": 1, "dead_letter_max_per_minute": 1}
    with RunningLoop(fail, options=options, control_read_token=READ) as loop:
        loop.send(b"1", b"2")

        def held() -> bool:
            status = loop.control("/status", headers=bearer(READ))
            return secret in status.body.decode()

        wait_until(held, 20, "the hold")
        hidden = loop.control("/status").body.decode()
        assert "dead_letter_rate" in hidden
        assert secret not in hidden
        assert secret not in loop.ops("/live").body.decode() + loop.ops("/metrics").body.decode()


# ---------------------------------------------------------------------------------------------- listening


def test_a_port_in_use_is_a_configuration_error_that_names_the_setting() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        for setting in ("ops_address", "control_address"):
            with pytest.raises(ConfigurationError) as error:
                Listener(setting, f"127.0.0.1:{port}", Application({}), "keyword")
            assert f"{setting} (keyword) is 127.0.0.1:{port}, and that port is in use" in str(error.value)


def test_a_port_in_use_ends_a_run_before_anything_starts_and_leaves_no_listener() -> None:
    from streamloop import StreamLoop

    with socket.create_server(("127.0.0.1", 0)) as taken, socket.create_server(("127.0.0.1", 0)) as free:
        port, other = taken.getsockname()[1], free.getsockname()[1]
        free.close()
        loop = StreamLoop(
            "billing",
            brokers="127.0.0.1:1",
            ops_address=f"127.0.0.1:{other}",
            control_address=f"127.0.0.1:{port}",
        )
        loop.consumer("orders")(nothing)
        with pytest.raises(ConfigurationError, match="control_address"):
            loop.run(handle_signals=False)
        with socket.create_server(("127.0.0.1", other)):
            pass  # nobody listens there any more


@pytest.mark.parametrize(
    ("address", "says"),
    [("192.0.2.1:9464", "no address of this machine"), ("no.such.host.invalid:9464", "is unknown here")],
)
def test_an_address_that_is_not_ours_is_told(address: str, says: str) -> None:
    with pytest.raises(ConfigurationError, match=says):
        Listener("ops_address", address, Application({}), "keyword")


def test_it_listens_where_it_is_told_to_and_nowhere_else() -> None:
    listener = Listener(
        "ops_address", "127.0.0.2:0", Application({"/x": {"GET": lambda _r: Answer(200)}}), ""
    )
    listener.start()
    try:
        assert ask(f"{listener.url}/x").status == 200
        with pytest.raises(OSError, match="refused"):
            socket.create_connection(("127.0.0.1", listener.port), timeout=5)
    finally:
        listener.close()
    with pytest.raises(OSError, match="refused"):
        socket.create_connection(("127.0.0.2", listener.port), timeout=5)


def test_it_listens_on_an_ipv6_address() -> None:
    try:
        listener = Listener("ops_address", "[::1]:0", Application({}), "")
    except ConfigurationError as error:
        pytest.skip(str(error))
    listener.start()
    try:
        assert listener.url == f"http://[::1]:{listener.port}"
        assert ask(listener.url).json == {"paths": []}
    finally:
        listener.close()


def test_nothing_listens_and_nothing_is_collected_when_no_setting_asks_for_it() -> None:
    with RunningLoop(nothing) as loop:
        assert len(loop.run.operations.urls) == 2
    settings = Settings.load({"group": "billing", "brokers": "127.0.0.1:1"}).settings
    assert (settings.ops_address, settings.control_address) == (None, None)


@pytest.mark.parametrize(
    "address", ["9464", ":9464", "localhost", "http://localhost:9464", "[::1:9464", "a:70000"]
)
def test_an_address_without_host_and_port_is_refused_by_the_settings(address: str) -> None:
    with pytest.raises(ConfigurationError, match=r"ops_address.*host:port"):
        Settings.load({"group": "billing", "ops_address": address})


def test_a_short_token_is_refused_and_no_error_shows_it() -> None:
    with pytest.raises(ConfigurationError) as error:
        Settings.load({"group": "billing", "control_act_token": "guess-me"})
    assert "control_act_token" in str(error.value)
    assert "guess-me" not in str(error.value)


def test_tokens_come_from_files(tmp_path: Any) -> None:
    file = tmp_path / "token"
    file.write_text(f"{ACT}\n")
    settings = Settings.load({"group": "billing", "control_act_token_file": str(file)}).settings
    assert settings.control_act_token is not None
    assert settings.control_act_token.get_secret_value() == ACT
    assert ACT not in repr(settings)


def test_an_error_of_ours_is_a_500_without_details(caplog: pytest.LogCaptureFixture) -> None:
    def broken(_request: Request) -> Answer:
        raise RuntimeError("inner secret")

    listener = Listener("ops_address", "127.0.0.1:0", Application({"/x": {"GET": broken}}), "")
    listener.start()
    try:
        answer = ask(f"{listener.url}/x")
        assert (answer.status, answer.json) == (500, {"error": "internal error: see the log"})
    finally:
        listener.close()
    assert "inner secret" in caplog.text


def test_an_answer_is_json_with_an_end_of_line() -> None:
    assert answer_json({"a": 1}).body == b'{"a":1}\n'
