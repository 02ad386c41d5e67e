"""The page in a real browser: hostile records, other sites, the keyboard, every width, both schemes."""

from __future__ import annotations

import http.server
import threading
from importlib import resources
from typing import TYPE_CHECKING

import pytest

from tests.browser.chromium import executable
from tests.browser.page import DESKTOP, PHONE
from tests.console.conftest import Browser
from tests.running_loop import ACT, READ, RunningLoop

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.browser.page import Pages, Watched
    from tests.console.desk import FakeDesk


@pytest.fixture
def url(running: RunningLoop) -> str:
    return f"{running.run.operations.urls['control_address']}/console/"


@pytest.fixture
def page(pages: Pages, url: str) -> Watched:
    """Ada is signed in."""
    watched = pages.open(url)
    watched.sign_in("Ada", READ, ACT)
    return watched


def test_a_person_finds_the_group_dry_runs_replays_and_sees_the_result(page: Watched, desk: FakeDesk) -> None:
    see = page.page
    page.go("Dead letters")
    see.get_by_role("checkbox", name="Choose payments.PaymentRefused").check()
    see.get_by_role("button", name="Dry run…").click()
    see.locator("main").get_by_text("39 messages would be replayed").wait_for()
    see.get_by_label("Messages a second").fill("5")
    see.get_by_role("button", name="Replay 39 messages").click()
    see.get_by_role("heading", name="Done", exact=True).wait_for()
    assert see.get_by_text("39 messages were replayed.").count() == 1
    what, (where, plan, by) = desk.asked[-1]
    assert (what, where["fingerprints"], plan["rate"], by) == ("replay", ["9f2c41aa07d3be55"], 5, "Ada")
    page.go("Replays")
    see.get_by_role("link", name="ago").first.click()
    see.get_by_text("billing-0").wait_for()
    see.get_by_role("button", name="Look again").click()
    see.get_by_text("As it is now").wait_for()


def test_a_replay_goes_on_without_its_page_and_is_stopped_from_another(
    page: Watched, pages: Pages, url: str, desk: FakeDesk
) -> None:
    see = page.page
    page.go("Dead letters")
    see.get_by_role("checkbox").first.check()
    see.get_by_role("button", name="Dry run…").click()
    see.get_by_role("button", name="Replay 39 messages").wait_for()
    desk.hold.clear()
    desk.stopped.clear()
    try:
        see.get_by_role("button", name="Replay 39 messages").click()
        see.get_by_role("heading", name="Replaying").wait_for()
        see.close()
        other = pages.open(url)
        other.sign_in("Grace", READ, ACT)
        other.go("Replays")
        other.page.get_by_text("A replay by Ada runs on this member.").wait_for()
        assert not desk.stopped.is_set()
        other.page.get_by_role("button", name="Stop it").click()
        other.page.get_by_text("A replay by Ada runs on this member.").wait_for(state="detached")
        assert desk.stopped.is_set()
    finally:
        desk.hold.set()


def test_what_would_change_the_choice_asks_for_another_dry_run(page: Watched, desk: FakeDesk) -> None:
    see = page.page
    page.go("Dead letters")
    see.get_by_role("checkbox").first.check()
    see.get_by_role("button", name="Dry run…").click()
    see.get_by_role("button", name="Replay 39 messages").wait_for()
    see.get_by_label("To", exact=True).select_option("source")
    assert see.get_by_role("button", name="Replay 39 messages").count() == 0
    see.get_by_role("button", name="Dry run with this").click()
    see.get_by_role("button", name="Replay 39 messages").wait_for()
    assert desk.asked[-1][0] == "preview"
    assert desk.asked[-1][1][1]["target"] == "source"


def test_hostile_records_are_shown_and_do_nothing(page: Watched) -> None:
    see = page.page
    page.go("Dead letters")
    shown = see.get_by_text("<script>alert(1)</script>").first
    shown.wait_for()
    assert "\\u202eevil\\u202c \\x1b[31mred" in shown.inner_text()
    see.evaluate("location.hash = '#/letter/orders.billing.dlq/0/17'")
    see.get_by_text("<img src=x onerror=alert(1)>").wait_for()
    assert see.get_by_text("<script>alert(2)</script>").count() == 1
    assert see.locator("main img, main script, main b b").count() == 0
    # Places in the address are texts, too.
    see.evaluate("location.hash = '#/letter/%3Cimg%20src=x%20onerror=alert(3)%3E/0/17'")
    see.get_by_role("heading", level=1, name="<img src=x onerror=alert(3)>/0/17").wait_for()
    see.evaluate("location.hash = '#/dead/group/%3Cscript%3Ealert(4)%3C%2Fscript%3E'")
    see.get_by_text("<script>alert(4)</script>").wait_for()
    see.evaluate("location.hash = '#/letter/%E0%A4%A/0/17'")  # what can't be decoded
    see.get_by_role("heading", level=1).wait_for()
    page.allowed.append("status of 502")


def test_the_policy_stops_what_a_mistake_of_ours_would_let_in(pages: Pages, url: str) -> None:
    watched = pages.open(url)
    see = watched.page
    see.get_by_role("heading", name="Partitions").wait_for()
    markup = see.evaluate(
        """() => { try { document.body.innerHTML = "<i>x</i>"; return "ran"; }
        catch (error) { return error.name; } }"""
    )
    assert markup == "TypeError"
    see.evaluate(
        """() => { const s = document.createElement("script");
        try { s.text = "window.ran = 1"; } catch { /* refused */ }
        document.body.append(s); const i = new Image();
        try { i.setAttribute("onerror", "window.ran = 1"); i.src = "x"; } catch { /* refused */ } }"""
    )
    assert see.evaluate("window.ran") is None
    blocked = see.evaluate("fetch('http://127.0.0.1:9/').then(() => 'went', () => 'blocked')")
    assert blocked == "blocked"
    assert watched.problems()
    pages._watched.remove(watched)


def test_no_script_can_read_the_cookie_and_nothing_is_stored(page: Watched) -> None:
    assert page.page.evaluate("document.cookie") == ""
    assert page.page.evaluate("localStorage.length + sessionStorage.length") == 0
    assert READ not in page.page.content()
    assert "token" not in page.page.url
    cookies = page.page.context.cookies()
    assert [(each["httpOnly"], each["sameSite"], each["path"]) for each in cookies] == [
        (True, "Strict", "/console")
    ]


def test_without_a_token_the_page_shows_members_and_offers_nothing_else(
    pages: Pages, url: str, desk: FakeDesk
) -> None:
    watched = pages.open(url)
    see = watched.page
    see.get_by_role("heading", name="Partitions").wait_for()
    before = len(desk.asked)
    watched.go("Dead letters")
    see.get_by_text("Sign in with the read token.").wait_for()
    watched.go("Replays")
    see.get_by_text("Sign in with the read token.").wait_for()
    watched.go("Overview")
    see.get_by_role("button", name="Pause…").click()
    see.get_by_role("dialog", name="Sign in to act").wait_for()
    assert len(desk.asked) == before
    assert see.evaluate(
        """async () => { const answers = [];
        for (const path of ["pause", "resume", "replay", "groups"]) {
          const headers = { "Content-Type": "application/json" };
          const answer = await fetch("api/" + path, { method: "POST", headers, body: "{}" });
          answers.push(answer.status);
        } return answers; }"""
    ) == [401, 401, 401, 401]
    watched.allowed.append("status of 401")


def test_a_wrong_token_says_so_and_lets_one_try_again(pages: Pages, url: str) -> None:
    watched = pages.open(url)
    see = watched.page
    see.get_by_role("button", name="Sign in").click()
    see.get_by_label("Your name").fill("Ada")
    see.get_by_label("Read token").fill("quite a wrong token")
    see.get_by_role("dialog").get_by_role("button", name="Sign in").click()
    see.get_by_role("alert").filter(has_text="the token is wrong").wait_for()
    see.get_by_label("Read token").fill(READ)
    see.get_by_role("dialog").get_by_role("button", name="Sign in").click()
    see.get_by_role("button", name="Ada").wait_for()
    see.get_by_role("button", name="Ada").click()
    see.get_by_role("button", name="Sign out").click()
    see.get_by_role("button", name="Sign in").wait_for()
    assert see.context.cookies() == []
    watched.allowed.append("status of 401")


# ------------------------------------------------------------------------------------------ other sites


@pytest.fixture
def other_site() -> Iterator[str]:
    """A page on another port, which a browser takes for the same site and another origin."""

    class Page(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = b"<!doctype html><title>other</title><p>another page"
            self.send_response(200)
            self.send_header("Content-Type", "text/html")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None: ...

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Page)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}/"
    server.shutdown()
    server.server_close()


_ATTACKS = """async (base) => {
  const results = {};
  const json = { "Content-Type": "application/json" };
  const send = { method: "POST", credentials: "include", body: "{}" };
  const tries = {
    json: { ...send, headers: json },
    header: { ...send, headers: { ...json, "X-Streamloop-Csrf": "login" } },
    text: { ...send, mode: "no-cors", headers: { "Content-Type": "text/plain" } },
    read: { credentials: "include" },
  };
  for (const [name, options] of Object.entries(tries)) {
    const path = name === "read" ? "api/runs" : "api/pause";
    results[name] = await fetch(base + path, options).then((a) => a.text(), () => "blocked");
  }
  const form = document.createElement("form");
  Object.assign(form, { method: "post", enctype: "text/plain", action: base + "api/pause", target: "sink" });
  const input = document.createElement("input");
  Object.assign(input, { name: '{"topic": "orders", "x', value: '": 1}' });
  form.append(input);
  const frame = document.createElement("iframe");
  frame.name = "sink";
  document.body.append(frame, form);
  const arrived = new Promise((done) => { frame.onload = done; });
  form.submit();
  await arrived;
  const inside = document.createElement("iframe");
  const loaded = new Promise((done) => { inside.onload = done; });
  inside.src = base;
  document.body.append(inside);
  await loaded;
  results.framed = inside.contentDocument === null ? "closed" : "open";
  return results;
}"""


def test_a_page_of_another_origin_changes_and_reads_nothing(
    page: Watched, other_site: str, url: str, running: RunningLoop, desk: FakeDesk
) -> None:
    before = len(desk.asked)
    tab = page.page.context.new_page()  # with Ada's cookie
    tab.goto(other_site)
    results = tab.evaluate(_ATTACKS, url)
    tab.close()
    assert results == {
        "json": "blocked",
        "header": "blocked",
        "text": "blocked",
        "read": "blocked",
        "framed": "closed",
    }
    assert len(desk.asked) == before
    assert Browser(running).get("overview").json["holds"] == []


def test_a_name_that_leads_here_by_dns_is_refused(pages: Pages, url: str) -> None:
    port = url.rsplit(":", 1)[1].partition("/")[0]
    from playwright.sync_api import Error

    rebound = f"http://rebound.example:{port}/console/"
    browser = pages.browser.browser_type.launch(
        executable_path=executable(),
        args=["--no-sandbox", "--host-resolver-rules=MAP rebound.example 127.0.0.1"],
    )
    try:
        page = browser.new_page()
        answer = page.goto(rebound)
        assert answer is not None
        assert answer.status == 403
        assert "is not allowed" in page.inner_text("body")
        assert page.evaluate("fetch('/console/api/session').then((a) => a.status)") == 403
    except Error as error:
        raise AssertionError(f"the browser did not get there: {error}") from None
    finally:
        browser.close()


# -------------------------------------------------------------------------------- keyboard, widths, schemes


def test_the_keyboard_alone_reaches_and_does_everything(pages: Pages, url: str, desk: FakeDesk) -> None:
    watched = pages.open(url)
    see = watched.page
    see.get_by_role("heading", name="Partitions").wait_for()
    keys = see.keyboard

    def tab_to(name: str, most: int = 60) -> None:
        for _ in range(most):
            keys.press("Tab")
            found = see.evaluate(
                """() => { const e = document.activeElement;
                if (e === document.body) return ["", "", ""];
                const shown = getComputedStyle(e);
                const label = e.labels && e.labels.length ? e.labels[0].textContent : "";
                const name = e.getAttribute("aria-label") || label || e.textContent.trim();
                return [name, shown.outlineStyle, shown.outlineWidth]; }"""
            )
            if name in found[0]:
                assert found[1] != "none", f"{name} shows no focus"
                assert found[2] != "0px", f"{name} shows no focus"
                return
        raise AssertionError(f"Tab never came to {name}")

    tab_to("Skip to the content")
    keys.press("Enter")
    assert see.evaluate("document.activeElement.id") == "main"
    see.evaluate("document.activeElement.blur()")
    tab_to("Sign in")
    keys.press("Enter")
    see.get_by_role("dialog").wait_for()
    keys.type("Ada")
    keys.press("Tab")
    keys.type(READ)
    keys.press("Tab")
    keys.type(ACT)
    keys.press("Enter")
    see.get_by_role("dialog").wait_for(state="detached")
    see.get_by_role("button", name="Ada").wait_for()
    tab_to("Dead letters")
    keys.press("Enter")
    see.get_by_role("heading", level=1, name="Dead letters").wait_for()
    see.get_by_role("link", name="PaymentRefused").wait_for()
    tab_to("Choose payments.PaymentRefused")
    keys.press("Space")
    tab_to("Dry run")
    keys.press("Enter")
    see.get_by_role("button", name="Replay 39 messages").wait_for()
    assert see.evaluate("document.activeElement.tagName") == "H1"
    tab_to("Replay 39 messages")
    keys.press("Enter")
    see.get_by_role("heading", name="Done", exact=True).wait_for()
    assert desk.asked[-1][0] == "replay"
    see.locator("#announce", has_text="The replay is done").wait_for(state="attached")


def test_a_dialog_closes_with_escape_and_gives_the_focus_back(pages: Pages, url: str) -> None:
    watched = pages.open(url)
    see = watched.page
    see.get_by_role("button", name="Sign in").focus()
    see.keyboard.press("Enter")
    see.get_by_role("dialog").wait_for()
    see.keyboard.press("Escape")
    see.get_by_role("dialog").wait_for(state="detached")
    assert see.evaluate("document.activeElement.id") == "who-button"


VIEWS = {
    "overview": ("#/", "Partitions"),
    "dead letters": ("#/dead", "the card of customer 7 was refused"),
    "a group": ("#/dead/group/9f2c41aa07d3be55", "orders.billing.dlq/0/17"),
    "a letter": ("#/letter/orders.billing.dlq/0/17", "tenant"),
    "replays": ("#/replays", "Ada"),
    "a replay": ("#/replays/20260528T200000Z-a1b2c3", "39 messages were replayed."),
}


def _each_view(watched: Watched) -> Iterator[str]:
    for name, (place, text) in VIEWS.items():
        watched.page.evaluate("(place) => { location.hash = place; }", place)
        watched.page.locator("main").get_by_text(text).first.wait_for()
        yield name
    watched.go("Dead letters")
    watched.page.get_by_role("checkbox").first.check()
    watched.page.get_by_role("button", name="Dry run…").click()
    watched.page.get_by_role("button", name="Replay 39 messages").wait_for()
    yield "a dry run"


_AXE = """() => axe.run(document, { runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa",
    "wcag22aa", "best-practice"] }).then((r) => r.violations.map((v) => v.id + ": " + v.nodes.map((n) =>
    n.target.join(" ") + " " + (n.any[0] || {}).message).slice(0, 3).join("; ")))"""


@pytest.mark.parametrize(
    ("size", "dark"),
    [
        (DESKTOP, False),
        (DESKTOP, True),
        (PHONE, False),
        (PHONE, True),
        ((1024, 768), False),
        ((768, 1024), False),
        ((320, 640), False),
    ],
    ids=str,
)
def test_every_view_fits_its_width_and_meets_axe_rules(
    pages: Pages, url: str, size: tuple[int, int], dark: bool
) -> None:
    """The rules of axe-core for WCAG 2.2 A and AA: names, labels, roles, contrast, order of headings."""
    watched = pages.open(url, size, dark=dark, bypass_csp=True)  # axe itself would not pass the policy
    watched.sign_in("Ada", READ, ACT)
    axe = (resources.files("axe_playwright_python") / "axe.min.js").read_text(encoding="utf-8")
    watched.page.evaluate(axe)
    for name in _each_view(watched):
        assert watched.overflow() == [], name
        found = watched.page.evaluate(_AXE)
        assert found == [], name


def test_what_is_renewed_keeps_the_focus_and_what_was_typed(page: Watched) -> None:
    see = page.page
    row = see.get_by_role("button", name="Pause orders/1")
    row.focus()
    see.evaluate("document.activeElement.marked = true")
    for _ in range(2):
        with see.expect_response(lambda answer: "api/overview" in answer.url):
            pass
    assert see.evaluate("document.activeElement.marked") is True
    page.go("Dead letters")
    see.get_by_text("Filter", exact=True).click()
    see.get_by_label("Error class").fill("PaymentRef")
    see.get_by_role("checkbox").first.check()  # draws the view anew
    assert see.get_by_label("Error class").input_value() == "PaymentRef"


def test_nothing_jumps_while_a_view_loads(page: Watched, desk: FakeDesk) -> None:
    see = page.page
    see.evaluate(
        """() => { window.shift = 0; new PerformanceObserver((list) => {
        for (const each of list.getEntries()) if (!each.hadRecentInput) window.shift += each.value; })
        .observe({ type: "layout-shift", buffered: false }); }"""
    )
    for _ in range(3):
        with see.expect_response(lambda answer: "api/overview" in answer.url):
            pass
    assert see.evaluate("window.shift") < 0.02


def test_when_the_member_is_gone_the_page_says_so(pages: Pages, url: str) -> None:
    watched = pages.open(url)
    see = watched.page
    see.get_by_role("heading", name="Partitions").wait_for()
    see.route("**/api/overview", lambda route: route.abort())
    see.locator(".pulse[data-state=late], .pulse[data-state=lost]").wait_for()
    see.unroute("**/api/overview")
    see.locator(".pulse[data-state=live]").wait_for()
    watched.allowed.append("net::ERR_FAILED")
