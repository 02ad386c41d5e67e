"""The console in Chromium, on members that run on a real broker: from a failing group to its replay."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest
from confluent_kafka import Producer

from tests.browser.page import PHONE
from tests.realkafka.client import Record, json_records
from tests.realkafka.node import free_ports
from tests.realkafka.waiting import wait_until
from tests.running_loop import ACT, READ, ask

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.browser.page import Pages
    from tests.realkafka import KafkaCluster, Members
    from tests.tools import Jaeger

SCRIPT = "<script>alert('payload')</script>"
MIB = 1024 * 1024


class Cashiers:
    """Members of one group, each with a console."""

    def __init__(self, kafka: KafkaCluster, members: Members, topic: str, group: str, bank: Path) -> None:
        self._kafka, self._members = kafka, members
        self.topic, self.group, self.bank = topic, group, bank
        self.urls: list[str] = []

    def start(self, name: str, *settings: str, env: dict[str, str] | None = None) -> str:
        """One more; returns the address of its console."""
        [port] = free_ports(1)
        self._members.start_module(
            "streamloop.cli.main",
            *("run", "tests.broker.apps.cashier:loop", "--brokers", self._kafka.bootstrap),
            *("--group", self.group, "--member", name, "--set", "console=true"),
            *("--set", f"control_address=127.0.0.1:{port}", "--set", "commit_interval=0.1"),
            *(part for each in settings for part in ("--set", each)),
            name=name,
            env={
                "CASHIER_TOPIC": self.topic,
                "BANK_IS_UP": str(self.bank),
                "STREAMLOOP_CONTROL_READ_TOKEN": READ,
                "STREAMLOOP_CONTROL_ACT_TOKEN": ACT,
                **(env or {}),
            },
        )
        url = f"http://127.0.0.1:{port}/console/"
        wait_until(lambda: _state(url) == "running", 60, f"the console of {name}")
        self.urls.append(url)
        return url

    @property
    def dead(self) -> str:
        return f"{self.topic}.{self.group}.dlq"

    def settled(self, count: int) -> None:
        """Until so many have died and nothing else waits."""
        wait_until(
            lambda: self._kafka.topic_exists(self.dead) and len(self._kafka.read_all(self.dead)) >= count,
            60,
            f"{count} dead letters",
        )


def _state(url: str) -> str:
    try:
        found: str = ask(f"{url}api/overview").json["state"]
    except OSError:
        return ""
    return found


@pytest.fixture
def cashiers(
    kafka: KafkaCluster, members: Members, topic: Callable[..., str], group: str, tmp_path: Path
) -> Cashiers:
    """None is started yet; the topic has three partitions."""
    return Cashiers(kafka, members, topic(3), group, tmp_path / "bank")


def orders(count: int, **what: object) -> list[Record]:
    return json_records([{"customer": n % 7, **what} for n in range(count)], key="customer")


def test_a_person_finds_what_failed_dry_runs_replays_once_and_any_member_shows_it(
    kafka: KafkaCluster, cashiers: Cashiers, pages: Pages
) -> None:
    kafka.produce(cashiers.topic, [*orders(30), *orders(21, bank=True), *orders(3, text="no amount")])
    first, second = cashiers.start("cashier-1"), cashiers.start("cashier-2")
    cashiers.settled(24)
    watched = pages.open(first)
    see = watched.page
    see.get_by_role("cell", name="cashier-2").first.wait_for()  # known from the control topic
    watched.sign_in("Ada", READ, ACT)

    watched.go("Dead letters")
    see.get_by_text("2 groups, 24 letters, 24 open").wait_for()
    row = see.get_by_role("row").filter(has_text="PaymentRefusedError")
    row.get_by_role("link").click()
    see.get_by_text("21 letters, 21 open").wait_for()
    see.get_by_role("link", name=cashiers.dead).first.click()
    see.get_by_text("the bank refused the card of customer").first.wait_for()
    see.get_by_text('"bank": true').wait_for()
    see.get_by_text("streamloop-error-class").wait_for(state="attached")

    cashiers.bank.touch()  # the cause is mended
    watched.go("Dead letters")
    see.get_by_role("checkbox", name="PaymentRefusedError").check()
    see.get_by_role("button", name="Dry run…").click()
    see.locator("main").get_by_text("21 messages would be replayed").wait_for()
    assert kafka.read_all(f"{cashiers.topic}.{cashiers.group}.replay") == []
    see.get_by_role("button", name="Replay 21 messages").click()
    see.get_by_role("heading", name="Done", exact=True).wait_for(timeout=90_000)
    handled = see.locator("[data-key=acked] dd").first.inner_text()
    assert handled == "21"
    replayed = kafka.read_all(f"{cashiers.topic}.{cashiers.group}.replay")
    assert len({(r.header("streamloop-replayed-from")) for r in replayed}) == len(replayed) == 21

    watched.go("Dead letters")
    see.get_by_role("button", name="Read again").click()
    see.get_by_text("24 letters, 3 open").wait_for()
    # Another member accepts the cookie, and shows the run.
    watched.move(second)
    see.get_by_role("button", name="Ada").wait_for()
    watched.go("Replays")
    line = see.get_by_role("row").filter(has_text="Ada").filter(has_text="finished")
    line.wait_for()
    assert "21" in line.inner_text()


def test_a_pause_at_one_member_holds_the_group_and_a_resume_at_another_frees_it(
    kafka: KafkaCluster, cashiers: Cashiers, pages: Pages
) -> None:
    first, second = cashiers.start("cashier-1"), cashiers.start("cashier-2")
    watched = pages.open(first)
    see = watched.page
    watched.sign_in("Ada", act=ACT)
    see.get_by_role("button", name="Pause…").click()
    see.get_by_label("Why").fill("the bank is down")
    see.get_by_role("dialog").get_by_role("button", name="Pause").click()
    see.get_by_text("Everything is paused by Ada").wait_for()
    watched.move(second)
    see.get_by_text("the bank is down").first.wait_for()
    see.get_by_role("button", name="Held").click()
    wait_until(lambda: see.get_by_text("paused by an operator").count() >= 3, 30, "all partitions held")
    kafka.produce(cashiers.topic, orders(6))
    see.get_by_role("button", name="Resume").first.click()
    see.get_by_text("Everything is paused").wait_for(state="detached")
    wait_until(lambda: kafka.lag(cashiers.group, cashiers.topic) == 0, 60, "the flow")


def test_hostile_and_foreign_letters_are_shown_and_do_nothing(
    kafka: KafkaCluster, cashiers: Cashiers, pages: Pages
) -> None:
    url = cashiers.start("cashier-1")
    kafka.produce(cashiers.topic, orders(1, text=f"{SCRIPT} \u202egpj.exe\u202c \x1b[31m\x07"))
    cashiers.settled(1)
    producer = Producer({"bootstrap.servers": kafka.bootstrap, "message.max.bytes": 2 * MIB})
    large = json.dumps({"html": SCRIPT, "fill": "x" * (MIB + 1000)}).encode()
    headers: list[tuple[str, Any]] = [
        ("<img src=x onerror=alert(1)>", SCRIPT.encode()),
        ("twice", b"1"),
        ("twice", b"2"),
        ("nothing", None),
        ("bytes", b"\xff\xfe\x00\x80"),
        ("\u202eheader", "\u202e\u0007".encode()),
    ]
    producer.produce(cashiers.dead, large, key=SCRIPT.encode(), headers=headers, partition=0)
    producer.produce(cashiers.dead, None, partition=1)
    producer.produce(cashiers.dead, b"\x00\xff" * 600, key=b"\xff\xff", partition=1)
    assert producer.flush(30) == 0
    where = {r.value or b"": (r.partition, r.offset) for r in kafka.read_all(cashiers.dead)}
    watched = pages.open(url, PHONE)
    see = watched.page
    watched.sign_in("Ada", READ)
    watched.go("Dead letters")
    see.get_by_text(SCRIPT).first.wait_for()
    assert "\\u202egpj.exe\\u202c" in see.locator("main").inner_text()
    assert watched.overflow() == []

    def letter(value: bytes) -> str:
        partition, offset = where[value]
        see.evaluate(
            "(place) => { location.hash = place; }", f"#/letter/{cashiers.dead}/{partition}/{offset}"
        )
        see.get_by_role("heading", level=1, name=f"{cashiers.dead}/{partition}/{offset}").wait_for()
        see.get_by_role("heading", name="Trace").wait_for()
        return see.locator("main").inner_text()

    text = letter(large)
    assert "1.0 MiB" in text
    assert "The first 64.0 KiB of 1.0 MiB are shown" in text
    assert text.count(SCRIPT) >= 3  # key, value and header
    assert "<img src=x onerror=alert(1)>" in text
    assert "\\u202eheader" in text
    assert watched.overflow() == []
    assert "null: a tombstone" in letter(b"")
    assert "00 ff 00 ff" in letter(b"\x00\xff" * 600)
    assert see.locator("main script, main img").count() == 0
    assert watched.problems() == []


def test_T1_a_trace_is_drawn_with_its_attempts_and_waits(
    kafka: KafkaCluster, cashiers: Cashiers, pages: Pages, jaeger: Jaeger
) -> None:
    url = cashiers.start(
        "cashier-1",
        f"jaeger_url={jaeger.url}",
        "jaeger_link=http://localhost:16686",
        env={"OTEL_EXPORTER_OTLP_ENDPOINT": jaeger.otlp_http, "OTEL_METRICS_EXPORTER": "none"},
    )
    trace_id = f"{hash(cashiers.group) & (2**128 - 1) | 1:032x}"
    traced = Record(
        json.dumps({"flaky": True, "customer": 1, "bank": True}).encode(),
        b"1",
        headers=(("traceparent", f"00-{trace_id}-00f067aa0ba902b7-01".encode()),),
    )
    kafka.produce(cashiers.topic, [traced])
    cashiers.settled(1)
    wait_until(lambda: len(jaeger.spans(trace_id)) >= 5, 60, "the spans")
    watched = pages.open(url)
    see = watched.page
    watched.sign_in("Ada", READ)
    watched.go("Dead letters")
    see.get_by_role("row").get_by_role("link").first.click()
    see.get_by_role("link", name=cashiers.dead).first.click()
    see.get_by_role("list", name="Spans").wait_for()
    spans = see.get_by_role("listitem").all_inner_texts()
    assert sum(f"process {cashiers.topic}" in each for each in spans) >= 3
    assert any("attempt 1" in each for each in spans)
    assert any("the bank does not answer" in each for each in spans)
    link = see.get_by_role("link", name="Open in Jaeger")
    assert link.get_attribute("href") == f"http://localhost:16686/trace/{trace_id}"
    assert link.get_attribute("rel") == "noopener noreferrer"


def test_a_letter_is_read_from_dead_letter_topics_only(
    kafka: KafkaCluster, cashiers: Cashiers, topic: Callable[..., str]
) -> None:
    url = cashiers.start("cashier-1")
    secret = topic(name=None)
    kafka.produce(secret, [b"not for this page"])
    bearer = {"Authorization": f"Bearer {READ}"}
    for other in (secret, cashiers.topic, "__consumer_offsets"):
        answer = ask(f"{url}api/letter?topic={other}&partition=0&offset=0", headers=bearer)
        assert answer.status == 502
        assert "no dead-letter topic of this group" in answer.json["error"]
    job = ask(
        f"{url}api/groups",
        method="POST",
        headers={**bearer, "Content-Type": "application/json"},
        body=json.dumps({"where": {"at": [f"{secret}/0"]}}).encode(),
    ).json["job"]
    found: Any = wait_until(lambda: _ended(url, job, bearer), 30, "the search")
    assert b"not for this page" not in json.dumps(found).encode()


def _ended(url: str, job: str, headers: dict[str, str]) -> Any:
    shown = ask(f"{url}api/job?id={job}", headers=headers).json
    return shown if shown["state"] != "running" else None
