"""The demo: what its orders add up to, when the sums do not meet, and a small run of its service."""

from __future__ import annotations

import json
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

from streamloop.demo import __main__ as demo
from streamloop.demo.orders import BROKEN, SLOW_CUSTOMER, Expected, records

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class TestOrders:
    def test_every_order_is_accounted_for(self) -> None:
        expected = Expected()
        made = list(records(20_000, expected))
        assert len(made) == expected.produced == 20_000
        assert expected.acked + expected.dead == expected.produced
        assert expected.undecodable == sum(value == BROKEN for _, value in made) == 50
        assert expected.failing_for_ever == 50
        assert expected.failing_for_a_while == 500
        assert expected.slow == sum(key == SLOW_CUSTOMER.encode() for key, _ in made) == 50

    def test_what_an_order_says_is_what_is_expected_of_it(self) -> None:
        expected = Expected()
        seen: Counter[str] = Counter()
        for key, value in records(4_000, expected):
            if value == BROKEN:
                seen["undecodable"] += 1
                continue
            order = json.loads(value)
            assert order["customer"].encode() == key
            seen["for_ever" if order["fails"] < 0 else "for_a_while" if order["fails"] else "fine"] += 1
        assert seen["undecodable"] == expected.undecodable
        assert seen["for_ever"] == expected.failing_for_ever
        assert seen["for_a_while"] == expected.failing_for_a_while
        assert seen["fine"] + seen["for_a_while"] == expected.acked

    def test_they_are_the_same_each_time(self) -> None:
        assert list(records(500, Expected())) == list(records(500, Expected()))


class Sums:
    """Progress as if so much had been handled."""

    def __init__(self, folder: Path, count: int = 800) -> None:
        self.expected = Expected()
        self.values = [json.loads(v) if v != BROKEN else None for _, v in records(count, self.expected)]
        journal = folder / "journal"
        lines = [f"{v['id']} 1\n" for v in self.values if v is not None and v["fails"] >= 0]
        journal.write_text("".join(lines))
        self.progress = demo.Progress(self.expected, demo.Journal(journal), self)  # type: ignore[arg-type]
        self.progress.journal.look()
        self.progress.journal._file.close()
        self.origins: Counter[tuple[str, str]] = Counter(
            {("0", str(n)): 1 for n in range(self.expected.dead)}
        )
        self.progress.first_handled, self.progress.last_handled = 10.0, 12.0

    def look(self) -> None:
        """As the dead letters' reader."""

    def sums(self, exit_code: int = 0) -> dict[str, Any]:
        return demo.summary(self.progress, exit_code)

    def problems(self, exit_code: int = 0) -> list[str]:
        return demo.problems(self.sums(exit_code), self.expected)


@pytest.fixture
def whole(tmp_path: Path) -> Sums:
    return Sums(tmp_path)


class TestSums:
    def test_they_meet_when_everything_was_handled_or_is_a_dead_letter(self, whole: Sums) -> None:
        sums = whole.sums()
        assert whole.problems() == []
        assert (sums["produced"], sums["lost"], sums["redelivered"]) == (800, 0, 0)
        assert sums["acked"] + sums["dead_lettered"] == 800
        assert sums["messages_per_second"] == sums["acked"] // 2
        assert {"held_seconds", "max_in_flight", "high_watermark", "retried"} <= set(sums)
        json.dumps(sums)

    def test_one_lost_order_does_not_meet(self, whole: Sums) -> None:
        del whole.progress.journal.handled[0]
        assert whole.sums()["lost"] == 1
        problems = whole.problems()
        assert "1 orders are neither handled nor dead letters" in problems
        assert len(problems) == 2

    def test_an_order_that_is_handled_and_a_dead_letter_does_not_hide_a_lost_one(self, whole: Sums) -> None:
        del whole.progress.journal.handled[0]
        whole.origins["0", "99999"] = 1
        assert whole.sums()["lost"] == 0
        assert len(whole.problems()) == 2

    def test_redelivered_ones_are_counted_and_allowed(self, whole: Sums) -> None:
        whole.progress.journal.handled[0] += 2
        whole.origins["0", "0"] += 1
        assert whole.sums()["redelivered"] == 3
        assert whole.problems() == []

    def test_a_service_that_did_not_drain_does_not_meet(self, whole: Sums) -> None:
        assert whole.problems(exit_code=3) == ["the service ended with exit code 3 after SIGTERM"]


@pytest.fixture
def services() -> Iterator[list[demo.Service]]:
    started: list[demo.Service] = []
    yield started
    for service in started:
        if service.process.poll() is None:
            service.process.kill()
        service.process.wait(timeout=10)


def test_H3_a_small_run_of_the_service_killed_half_way_loses_nothing(
    tmp_path: Path, services: list[demo.Service]
) -> None:
    broker = demo.EmbeddedBroker()
    expected = broker.produce(800)
    progress = demo.Progress(
        expected, demo.Journal(tmp_path / "journal"), demo.DeadLetters(broker.address), services
    )
    deadline = time.monotonic() + 90
    services.append(demo.Service.start(tmp_path, 1, broker.address))
    demo.wait(progress, lambda: len(progress.journal.handled) >= 200, deadline, "some are handled")
    services[0].process.kill()
    services[0].process.wait(timeout=10)
    services.append(demo.Service.start(tmp_path, 2, broker.address))
    demo.wait(progress, lambda: progress.finished, deadline, "everything is handled")
    progress.before = (progress.journal.handled.copy(), progress.dead.origins.copy())
    (tmp_path / demo.MENDED).touch()
    progress.back = demo.replay(broker.address, expected)
    demo.wait(progress, lambda: progress.brought_back >= 2, deadline, "two came back")
    services[1].process.terminate()
    exit_code = services[1].process.wait(timeout=60)
    progress.look()
    progress.journal._file.close()
    progress.dead._consumer.close()
    sums = demo.summary(progress, exit_code)
    assert demo.problems(sums, expected) == [], (tmp_path / "log-2.txt").read_text()[-2000:]
    assert sums["lost"] == 0
    assert (sums["handled_after_replay"], sums["still_dead"]) == (2, 2)
    assert sums["retried"] > 0
    assert 0 < sums["max_in_flight"] <= sums["high_watermark"] + 500


def test_while_nothing_can_move_the_line_says_why(whole: Sums) -> None:
    class Started:
        def __init__(self, **status: Any) -> None:
            self.status = status

    whole.progress.services = [Started()]  # type: ignore[list-item]
    assert "starting and joining the group: the embedded broker takes 3 s" in whole.progress.line()
    assigned = {"partitions": [{"held": {"watermark": ""}}], "intakes": [{"buffered": 7}]}
    whole.progress.services = [Started(**assigned)]  # type: ignore[list-item]
    assert whole.progress.line().endswith("in flight    7  held watermark 1")
    whole.progress.services.append(Started(partitions=[]))  # type: ignore[arg-type]
    assert "waits for the killed member: its session ends after 6 s" in whole.progress.line()
