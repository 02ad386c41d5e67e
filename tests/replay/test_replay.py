"""P1 to P7: what a replay takes, what it leaves, what it says."""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamloop.dlq.plan import ReplayPlan
from tests.replay.shop import Shop, text

if TYPE_CHECKING:
    from tests.realkafka import KafkaCluster

QUICK = ReplayPlan(canary=0, settle=0)


def test_P3_P4_each_letter_goes_back_once_as_it_was(kafka: KafkaCluster) -> None:
    shop = Shop(kafka)
    shop.die(30)
    summary = shop.letters.replay(plan=QUICK, by="ada")
    assert (summary.state, summary.replayed, summary.exit_code) == ("finished", 30, 0), summary
    shop.assert_once(30)
    again = shop.letters.replay(plan=QUICK)
    assert (again.replayed, dict(again.skipped)) == (0, {"replayed before": 30})
    shop.assert_once(30)
    for record in shop.back():
        assert text(record, "streamloop-replay-id") == summary.run
