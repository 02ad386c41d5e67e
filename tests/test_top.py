"""`streamloop top`: what it draws of real and odd answers, and what it says of members that do not answer."""

from __future__ import annotations

import json
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner, Result
from rich.console import Console

from streamloop.cli import main as cli
from streamloop.cli.members import Look, Member, ask, member_url
from streamloop.cli.top import frame
from streamloop.errors import ConfigurationError
from tests.realkafka.waiting import wait_until
from tests.running_loop import RunningLoop

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

Answer = tuple[int, bytes]


@contextmanager
def member(answer: Callable[[str, str | None], Answer]) -> Iterator[str]:
    """A control listener that answers this to (path, token): its address."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            status, body = answer(self.path, self.headers.get("authorization"))
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            try:
                self.wfile.write(body)
            except OSError:
                pass

        def log_message(self, *_: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def part(number: int, **more: Any) -> dict[str, Any]:
    return {
        "topic": "orders",
        "partition": number,
        "lag": 0,
        "lag_seconds": 0.0,
        "buffered": 0,
        "gap": 0,
        "committable": 7,
        "held": {},
        "holder": None,
        **more,
    }


def status(*, uptime: float = 100.0, acked: int = 1000, **more: Any) -> dict[str, Any]:
    return {
        "group": "billing",
        "member": "member-1",
        "state": "running",
        "uptime": uptime,
        "probes": {"live": True, "ready": True, "why_not_live": [], "why_not_ready": []},
        "intakes": [
            {
                "name": "source",
                "group": "billing",
                "protocol": "consumer",
                "buffered": 34,
                "buffered_bytes": 2048,
                "high_watermark_messages": 2000,
                "high_watermark_bytes": 67108864,
                "last_turn_age": 0.01,
            }
        ],
        "consumers": [
            {
                "name": "charge",
                "running": 3,
                "concurrency": 100,
                "waiting": 2,
                "counts": {"acked": acked, "failed_attempts": 4, "dead_lettered": 1},
                "oldest": [{"topic": "orders", "partition": 3, "offset": 77, "age": 12.0}],
            }
        ],
        "partitions": [part(0)],
        **more,
    }


def drawn(*looks: Look, height: int | None = None, width: int = 150) -> str:
    console = Console(width=width, color_system=None, force_terminal=False, highlight=False)
    with console.capture() as capture:
        console.print(frame(looks, height=height, width=width))
    return capture.get()


def run(*arguments: str) -> Result:
    return CliRunner().invoke(cli.main, ["top", *arguments])


# ---------------------------------------------------------------------------------------------------- drawn


@pytest.mark.parametrize("width", [60, 80, 100])
def test_on_a_narrow_terminal_why_a_partition_is_held_is_what_stays(width: int) -> None:
    why = "orders.billing.dlq takes nothing now: Broker: Topic authorization failed"
    holder = {"offset": 5338, "state": "PROCESSING", "attempt": 2, "age": 12.0}
    held = part(3, lag=120, gap=40, held={"publish_blocked": why}, holder=holder)
    oldest = {"topic": "orders", "partition": 3, "offset": 77, "age": 12.0, "waits_for": "parcels"}
    shown = status(partitions=[held, part(1)])
    shown["consumers"][0]["oldest"] = [oldest]
    look = Look("http://localhost:9465", shown, "", {"charge": {"acked": 207.0, "failed_attempts": 21.0}})
    text = drawn(look, width=width)
    lines = [line.rstrip() for line in text.splitlines()]
    assert max(map(len, lines)) <= width
    assert "…" not in text
    whole = " ".join(text.split())
    assert f"publish_blocked: {why}" in whole
    assert "orders/3 lag 120" in whole
    assert "position held by 5338 processing, attempt 2, 12 s" in whole
    assert "charge runs orders/3/77 12 s, publishes to parcels" in whole
    assert "    position held by 5338 processing, attempt 2, 12 s" in lines
    # With few lines there are fewer partitions, and the others are counted.
    many = status(partitions=[part(number) for number in range(40)])
    assert "more partitions, 0 of them held" in drawn(Look("u", many), width=width, height=30)


def test_a_partition_shows_lag_in_flight_what_holds_it_and_the_message_that_holds_its_position() -> None:
    held = {"gap": "takes no new messages", "retry_not_due": "not due"}
    holder = {"offset": 1042, "state": "BACKOFF", "attempt": 2, "age": 95.0}
    busy = part(3, lag=12345, lag_seconds=95.0, buffered=210, gap=20000, held=held, holder=holder)
    shown = drawn(Look("http://a:1", status(partitions=[part(0), busy])))
    [row] = [line for line in shown.split("\n") if "orders/3" in line and "12,345" in line]
    assert "1 min 35 s" in row
    assert "210" in row
    assert "20,000" in row
    assert "1042 backoff, attempt 2, 1 min 35 s" in row
    assert "gap: takes no new messages" in row
    assert "retry_not_due" in shown
    assert "34 of 2,000" in shown
    assert "orders/3/77 12 s" in shown  # the slowest handler
    assert shown.index("orders/3 ") < shown.index("orders/0 ")  # what is held comes first


def test_who_paused_what_since_when_and_why_is_shown_and_a_control_topic_that_is_not_in_use() -> None:
    paused = [
        {"scope": "group", "topic": None, "partition": None, "by": "ann", "since": 940.0, "reason": "INC-42"},
        {"scope": "member", "topic": "orders", "partition": 3, "by": "", "since": "x", "reason": ""},
    ]
    control = {"topic": "billing.control", "state": "off", "detail": "it may not be made"}
    shown = drawn(Look("http://a:1", status(at=1000.0, paused=paused, control=control)))
    assert "paused in the group: everything, by ann 1 min ago: INC-42" in shown
    assert "paused at this member: orders/3" in shown
    assert "control topic billing.control: off  it may not be made" in shown
    on = {"topic": "billing.control", "state": "on", "detail": ""}
    assert "control topic" not in drawn(Look("http://a:1", status(at=1000.0, control=on)))


def test_what_is_not_known_is_a_dash_and_not_0() -> None:
    shown = drawn(Look("http://a:1", status(partitions=[part(5, lag=None, lag_seconds=None)])))
    [row] = [line for line in shown.split("\n") if "orders/5" in line]
    assert row.split()[1:3] == ["-", "-"]


def test_rates_are_differences_between_two_looks_by_the_member_s_clock() -> None:
    one = Member("http://a:1", timeout=1)
    assert one.rated(Look("http://a:1", status(uptime=100.0, acked=1000))).rates == {}
    second = one.rated(Look("http://a:1", status(uptime=104.0, acked=1500)))
    assert second.rates["charge"]["acked"] == 125.0
    same = one.rated(Look("http://a:1", status(uptime=104.0, acked=1500)))
    assert same.rates["charge"]["acked"] == 125.0  # the status was not renewed meanwhile
    again = one.rated(Look("http://a:1", status(uptime=2.0, acked=10)))
    assert again.rates == {}  # another run
    assert "125" in drawn(second)


def test_several_members_are_summed_up_and_one_that_is_away_is_shown_as_such() -> None:
    looks = (
        Look("http://a:1", status(partitions=[part(0, lag=10), part(1, lag=20, held={"operator": ""})])),
        Look("http://b:1", error="connection refused"),
    )
    shown = drawn(*looks)
    assert "1 of 2 members answer   2 partitions, 1 held   lag 30" in shown
    assert "unreachable http://b:1  connection refused" in shown


def test_a_small_terminal_shows_the_most_urgent_partitions_and_counts_the_others() -> None:
    parts = [part(number, lag=number) for number in range(100)]
    shown = drawn(Look("http://a:1", status(partitions=parts)), height=24)
    assert len(shown.split("\n")) <= 24
    assert "orders/99 " in shown
    assert "orders/0 " not in shown
    assert "more partitions, 0 of them held" in shown


def test_no_text_of_a_member_reaches_the_terminal_as_control_characters_or_markup() -> None:
    evil = "\x1b]0;owned\x07[red]x[/red]\u202e\r\n"
    shown = drawn(
        Look(
            "http://a:1",
            status(
                member=evil,
                partitions=[part(0, topic=evil, held={evil: evil}, holder={"offset": evil, "state": evil})],
                blocked_targets=[evil],
            ),
        ),
        Look("http://b:1", error=evil),
        width=400,
    )
    assert not {"\x1b", "\x07", "\r", "\u202e"} & set(shown)
    assert shown.count("\\x1b]0;owned\\x07[red]x[/red]\\u202e\\r\\n") >= 6


@pytest.mark.parametrize(
    "odd",
    [
        {"partitions": "x", "consumers": 3, "intakes": None},
        {"paused": [3, {"topic": 3, "since": None, "by": [], "reason": {}}], "control": "x"},
        {"partitions": [1, {"held": [], "holder": 3, "lag": "x", "partition": None}]},
        {"consumers": [{"counts": [], "oldest": [1]}], "uptime": "long", "probes": 3},
        {"intakes": [{"high_watermark_messages": 0, "buffered": True}], "hanging": 1},
    ],
)
def test_a_status_of_another_shape_is_drawn_as_far_as_it_goes(odd: dict[str, Any]) -> None:
    one = Member("http://a:1", timeout=1)
    assert "billing" in drawn(one.rated(Look("http://a:1", status(**odd))))


def test_why_a_member_is_not_live_is_said() -> None:
    probes = {"live": False, "ready": True, "why_not_live": ["the event loop is blocked by charge"]}
    shown = drawn(Look("http://a:1", status(probes=probes)))
    assert "not live" in shown
    assert "the event loop is blocked by charge" in shown


# ------------------------------------------------------------------------------------------------ addresses


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ("127.0.0.1", "http://127.0.0.1:9465"),
        ("host:8000", "http://host:8000"),
        ("http://host:8000/status", "http://host:8000"),
        ("https://host/billing/", "https://host/billing"),
        ("[::1]:8000", "http://[::1]:8000"),
    ],
)
def test_an_address_may_be_written_in_several_ways(given: str, url: str) -> None:
    assert member_url(given) == url


@pytest.mark.parametrize(
    "given", ["ftp://host", "http://", "host:99999", "http://me:secret@host", "http://h/?a=b"]
)
def test_what_is_no_address_is_refused_in_a_sentence(given: str) -> None:
    with pytest.raises(ConfigurationError, match=r"address|token") as refused:
        member_url(given)
    assert "secret" not in str(refused.value)


# ------------------------------------------------------------------------------------------------- answers


def test_members_that_answer_badly_are_sentences() -> None:
    for answer, said in (
        ((200, b"<html>"), "no JSON"),
        ((200, b"[]"), "no status"),
        ((200, b"{}"), "no status"),
        ((404, b'{"error": "nothing"}'), "ops_address"),
        ((401, b'{"error": "the token is\\u001b wrong"}'), "HTTP 401): the token is\\x1b wrong"),
    ):
        with member(lambda _path, _token, answer=answer: answer) as address:  # type: ignore[misc]
            look = ask(member_url(address), timeout=5)
        assert look.status is None
        assert said in look.error


def test_a_member_that_never_answers_is_unreachable_within_the_bound() -> None:
    release = threading.Event()

    def silent(_path: str, _token: str | None) -> Answer:
        release.wait(20)
        return 200, b"{}"

    with member(silent) as address:
        one = Member(member_url(address), timeout=0.2)
        one.begin()
        look = one.end(time.monotonic() + 0.7)
        release.set()
    assert look.status is None
    assert "within 0.2 s" in look.error


def test_once_looks_twice_for_the_rates_and_sends_the_token(tmp_path: Path) -> None:
    tokens: list[str | None] = []

    def answer(_path: str, token: str | None) -> Answer:
        tokens.append(token)
        return 200, json.dumps(status(uptime=100.0 + len(tokens), acked=100 * len(tokens))).encode()

    secret = tmp_path / "token"
    secret.write_text("read-me\n")
    with member(answer) as address:
        result = run(address, "--once", "--interval", "0.2s", "--token-file", str(secret))
    assert result.exit_code == 0, result.output
    assert tokens == ["Bearer read-me"] * 2
    assert "billing" in result.output
    assert " 100 " in result.output  # acked/s


def test_once_ends_with_1_when_nobody_answers() -> None:
    result = run("127.0.0.1:1", "--once")
    assert result.exit_code == 1
    assert "unreachable" in result.output
    assert "refused" in result.output


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["ftp://x"], "no address"),
        (["--interval", "0"], "at least 0.2s"),
        (["--interval", "soon"], "soon"),
        (["--token-file", "/nowhere"], "can't be read"),
    ],
)
def test_mistakes_are_sentences_and_exit_code_2(arguments: list[str], said: str) -> None:
    result = run(*arguments)
    assert result.exit_code == 2
    assert said in result.output


# ---------------------------------------------------------------------------------------------- a real loop


def test_a_running_loop_is_shown_with_the_handler_that_runs_and_the_message_that_holds_the_position() -> None:
    finish = threading.Event()

    def wait(_value: bytes) -> None:
        finish.wait(30)

    with RunningLoop(wait) as loop:
        url = loop.run.operations.urls["control_address"]
        loop.send(b"1")

        def shown() -> str:
            text = drawn(ask(member_url(url), timeout=5))
            return text if "orders/0/0" in text and "0 processing" in text else ""

        text = wait_until(shown, 20, "the handler")
        finish.set()
    assert "billing" in text
    assert "charge" in text
    assert "live ready" in text
