"""Who may see and who may act on the console, and what a page of another site can't do."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest

from streamloop.ops.guard import LATE
from tests.console.conftest import Browser, nothing
from tests.running_loop import ACT, READ, RunningLoop

if TYPE_CHECKING:
    from tests.console.desk import FakeDesk

READING: list[tuple[str, Any]] = [
    ("groups", {"where": {}}),
    ("letters", {"where": {}}),
    ("preview", {"where": {}}),
    ("run", {"run": "x"}),
]
ACTING: list[tuple[str, Any]] = [
    ("pause", {"topic": "orders"}),
    ("resume", {}),
    ("replay", {"where": {}, "plan": {}}),
]
LOOKING = [
    "letter?topic=orders.billing.dlq&partition=0&offset=17",
    "trace?id=" + "1" * 32,
    "runs",
    "job?id=x",
]


def unchanged(browser: Browser, desk: FakeDesk, before: int) -> bool:
    return not browser.get("overview").json["holds"] and len(desk.asked) == before


# ------------------------------------------------------------------------------------------- without a token


@pytest.mark.parametrize(("path", "body"), [*READING, *ACTING, ("stop", {"id": "x"}), ("logout", {})])
def test_without_a_token_nothing_is_read_and_nothing_is_changed(
    browser: Browser, desk: FakeDesk, path: str, body: Any
) -> None:
    before = len(desk.asked)
    assert browser.post(path, body).status == 401
    assert unchanged(browser, desk, before)


@pytest.mark.parametrize("path", LOOKING)
def test_without_a_token_no_payload_is_seen(browser: Browser, desk: FakeDesk, path: str) -> None:
    before = len(desk.asked)
    answer = browser.get(path)
    assert answer.status == 401
    assert "read token" in answer.json["error"]
    assert len(desk.asked) == before


@pytest.mark.parametrize(("path", "body"), ACTING)
def test_the_read_token_does_not_act(browser: Browser, desk: FakeDesk, path: str, body: Any) -> None:
    browser.sign_in(act="")
    before = len(desk.asked)
    answer = browser.post(path, body)
    assert (answer.status, "act token" in answer.json["error"]) == (403, True)
    assert unchanged(browser, desk, before)


@pytest.mark.parametrize(("path", "body"), READING)
def test_the_act_token_does_not_read(browser: Browser, desk: FakeDesk, path: str, body: Any) -> None:
    browser.sign_in(read="")
    before = len(desk.asked)
    assert browser.post(path, body).status == 403
    assert len(desk.asked) == before
    assert browser.get(LOOKING[0]).status == 403


def test_tokens_that_are_not_set_open_nothing() -> None:
    with RunningLoop(nothing, console=True, control_topic="off") as loop:
        browser = Browser(loop)
        login = browser.post("login", {"who": "Ada", "read_token": READ, "act_token": ""})
        assert login.status == 403
        assert "no control_read_token is set" in login.json["error"]
        assert browser.get("session").json["offered"] == []
        pause = browser.post("pause", {}, Authorization=f"Bearer {ACT}")
        assert pause.status == 401
        assert browser.get("runs").status == 403


# --------------------------------------------------------------------------------------------------- login


def test_a_login_exchanges_tokens_for_a_cookie_and_shows_no_token(browser: Browser) -> None:
    answer = browser.sign_in("Ada  Lovelace")
    assert answer.json["who"] == "Ada Lovelace"
    assert answer.json["rights"] == ["act", "read"]
    assert READ.encode() not in answer.body
    cookie = answer.headers["set-cookie"]
    assert READ not in cookie
    assert "HttpOnly" in cookie
    assert "SameSite=Strict" in cookie
    assert browser.get("session").json["who"] == "Ada Lovelace"


def test_a_second_token_adds_a_right(browser: Browser) -> None:
    browser.sign_in(act="")
    assert browser.get("session").json["rights"] == ["read"]
    browser.sign_in(read="")
    assert browser.get("session").json["rights"] == ["act", "read"]


def test_another_name_does_not_take_over_the_rights_of_the_one_before(browser: Browser) -> None:
    browser.sign_in("Ada", read="")
    browser.sign_in("Grace", act="")
    assert browser.get("session").json["rights"] == ["read"]


@pytest.mark.parametrize("who", ["", "   ", "x" * 81, "a\u202eb", "a\x1bb", "\u200b"])
def test_a_login_needs_a_name_that_can_be_written_down(browser: Browser, who: str) -> None:
    answer = browser.post("login", {"who": who, "read_token": READ})
    assert answer.status == 400
    assert "set-cookie" not in answer.headers


def test_a_wrong_token_is_answered_late_logged_without_it_and_opens_nothing(
    browser: Browser, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    waits: list[float] = []
    guard = _guard(browser)
    monkeypatch.setattr(guard, "_sleep", waits.append)
    with caplog.at_level(logging.WARNING, "streamloop.ops"):
        answer = browser.post("login", {"who": "Ada", "read_token": "a wrong token, a long one"})
    assert answer.status == 401
    assert "set-cookie" not in answer.headers
    assert waits == [LATE]
    assert "wrong token" in caplog.text
    assert "a long one" not in caplog.text


def test_the_read_token_in_the_field_of_the_act_token_opens_nothing(browser: Browser) -> None:
    answer = browser.post("login", {"who": "Ada", "act_token": READ})
    assert answer.status == 403
    assert "set-cookie" not in answer.headers


def _guard(browser: Browser) -> Any:
    console = browser.loop.run.operations._console
    assert console is not None
    return console._api._access.guard


def test_after_the_logout_the_browser_has_no_cookie_any_more(signed_in: Browser) -> None:
    answer = signed_in.post("logout")
    assert answer.status == 200
    assert "Max-Age=0" in answer.headers["set-cookie"]


def test_a_program_sends_its_token_and_needs_no_cookie(browser: Browser, desk: FakeDesk) -> None:
    bearer = {
        "Authorization": f"Bearer {READ}",
        "Origin": None,
        "Sec-Fetch-Site": None,
        "X-Streamloop-Csrf": None,
    }
    job = browser.post("groups", {"where": {}}, **bearer)
    assert job.status == 200
    assert browser.get("runs", Authorization=f"Bearer {READ}").status == 200
    assert browser.post("pause", {}, **bearer).status == 403


# ------------------------------------------------------------------------------------ pages of other sites


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://["},
        {"Origin": "http://127.0.0.1:1"},
        {"Origin": "https://{host}"},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Origin": None, "Sec-Fetch-Site": None},
        {"X-Streamloop-Csrf": None},
        {"X-Streamloop-Csrf": "login"},
        {"X-Streamloop-Csrf": "x" * 43},
        {"X-Streamloop-Csrf": "\u00fc"},
    ],
)
def test_a_cookie_alone_acts_only_for_a_page_of_ours(
    signed_in: Browser, desk: FakeDesk, headers: dict[str, str | None], caplog: pytest.LogCaptureFixture
) -> None:
    host = signed_in.origin.partition("//")[2]
    sent = {name: value and value.replace("{host}", host) for name, value in headers.items()}
    before = len(desk.asked)
    with caplog.at_level(logging.WARNING, "streamloop.ops"):
        for path, body in ACTING:
            assert signed_in.post(path, body, **sent).status == 403
    assert unchanged(signed_in, desk, before)
    assert caplog.text.count("console: refused") == len(ACTING)


@pytest.mark.parametrize(
    "kind", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data", ""]
)
def test_what_a_form_can_send_is_refused(signed_in: Browser, desk: FakeDesk, kind: str) -> None:
    before = len(desk.asked)
    for path, body in [*ACTING, *READING]:
        assert signed_in.post(path, body, Content_Type=kind).status == 415
    assert unchanged(signed_in, desk, before)


def test_a_csrf_header_of_another_session_is_refused(running: RunningLoop, signed_in: Browser) -> None:
    other = Browser(running)
    other.sign_in("Grace")
    assert signed_in.post("resume", {}, X_Streamloop_Csrf=other.csrf).status == 403
    assert signed_in.post("resume", {}).status == 200


@pytest.mark.parametrize(
    "headers",
    [
        {"Origin": "http://evil.example"},
        {"Sec-Fetch-Site": "cross-site"},
        {"X-Streamloop-Csrf": None},
        {"Content_Type": "text/plain"},
    ],
)
def test_a_page_of_another_site_signs_nobody_in(browser: Browser, headers: dict[str, str | None]) -> None:
    answer = browser.post("login", {"who": "Mallory", "read_token": READ}, **headers)
    assert answer.status in (403, 415)
    assert "set-cookie" not in answer.headers


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_a_page_of_another_site_reads_nothing(signed_in: Browser, site: str) -> None:
    for path in ("session", "overview", "runs"):
        assert signed_in.get(path, Sec_Fetch_Site=site).status == 403


@pytest.mark.parametrize(
    "path", ["/console/", "/console/static/main.js", "/console/api/session", "/console/api/runs"]
)
def test_a_host_name_that_is_not_ours_is_refused(running: RunningLoop, path: str) -> None:
    answer = running.control(path, headers={"Host": "evil.example:9465"})
    assert answer.status == 403
    assert "control_hosts" in answer.json["error"]


def test_a_host_name_that_is_set_is_ours_for_the_origin_too(running: RunningLoop) -> None:
    browser = Browser(running)
    host = "loops.internal:9465"
    body = {"who": "Ada", "read_token": READ}
    assert browser.post("login", body, Host=host, Origin=f"http://{host}").status == 200
    assert browser.post("login", body, Host=host, Origin="http://127.0.0.1:9465").status == 403


def test_behind_tls_the_origin_is_https_and_the_cookie_secure() -> None:
    with RunningLoop(
        nothing, console=True, control_tls=True, control_read_token=READ, control_topic="off"
    ) as loop:
        browser = Browser(loop)
        body = {"who": "Ada", "read_token": READ}
        plain = browser.post("login", body)
        assert plain.status == 403
        secure = browser.post("login", body, Origin=browser.origin.replace("http:", "https:"))
        assert secure.status == 200
        assert "; Secure" in secure.headers["set-cookie"]


# ----------------------------------------------------------------------------------------------- headers


@pytest.mark.parametrize(
    "path",
    [
        "/console/",
        "/console/static/main.js",
        "/console/static/base.css",
        "/console/api/session",
        "/console/api/runs",
    ],
)
def test_every_answer_bears_the_headers_that_keep_it_to_itself(running: RunningLoop, path: str) -> None:
    headers = running.control(path).headers
    policy = headers["content-security-policy"]
    for part in ("default-src 'none'", "script-src 'self'", "style-src 'self'", "frame-ancestors 'none'"):
        assert part in policy
    for part in ("base-uri 'none'", "form-action 'none'", "require-trusted-types-for 'script'"):
        assert part in policy
    assert "unsafe" not in policy
    assert headers["cache-control"] == "no-store"
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert headers["cross-origin-opener-policy"] == "same-origin"
    assert headers["cross-origin-resource-policy"] == "same-origin"
    assert "access-control-allow-origin" not in headers


def test_no_page_is_there_when_the_console_is_off() -> None:
    with RunningLoop(nothing, control_read_token=READ, control_topic="off") as loop:
        for path in ("/console", "/console/", "/console/api/session", "/console/static/main.js"):
            assert loop.control(path).status == 404


def test_a_replay_that_can_not_be_written_down_is_not_begun(signed_in: Browser, desk: FakeDesk) -> None:
    before = len(desk.asked)
    deep: Any = 1
    for _ in range(300):
        deep = [deep]
    assert signed_in.post("replay", {"where": {"errors": deep}, "plan": {}}).status == 400
    assert len(desk.asked) == before
