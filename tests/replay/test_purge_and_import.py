"""Letters that are put away, exported and put back: what is hidden, what is freed, what is not open again."""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING

import pytest

from streamloop.dlq import ALL, Filter, ReplayPlan
from streamloop.errors import ConfigurationError
from tests.replay.shop import Shop

if TYPE_CHECKING:
    from tests.realkafka import KafkaCluster

NOW = ReplayPlan(canary=0, settle=0)


def open_offsets(shop: Shop) -> list[int]:
    return sorted(letter.offset for letter in shop.letters.letters(only_open=True))


def exported(shop: Shop, where: Filter = ALL) -> io.BytesIO:
    out = io.BytesIO()
    shop.letters.export(where, out)
    return out


def test_purged_letters_are_neither_listed_nor_replayed_and_stay_in_their_topic(kafka: KafkaCluster) -> None:
    shop = Shop(kafka, partitions=1)
    shop.die(4)
    shop.die(2, first=4, error="app.Hopeless")
    summary = shop.letters.purge(Filter(errors=("Hopeless",)), by="grace")
    assert (summary.state, summary.purged, summary.freed) == ("finished", 2, {})
    assert open_offsets(shop) == [0, 1, 2, 3]
    again = shop.letters.purge(Filter(errors=("Hopeless",)))
    assert (again.purged, dict(again.skipped)) == (0, {"purged": 2})
    replayed = shop.letters.replay(plan=ReplayPlan(again=True, canary=0, settle=0))  # purged stays purged
    assert (replayed.replayed, dict(replayed.skipped)) == (4, {"purged": 2})
    assert kafka.start_offsets(shop.dead) == {0: 0}
    states = shop.letters.groups().states
    assert states == {"purged": 2, "replayed": 4}
    runs = shop.letters.runs()
    assert [(run.kind, run.by) for run in runs][-1] == ("purge", "grace")


def test_delete_records_frees_the_prefix_in_which_nothing_is_open_and_no_more(kafka: KafkaCluster) -> None:
    shop = Shop(kafka, partitions=1)
    shop.die(3, error="app.Hopeless")
    shop.die(2, first=3)
    shop.die(2, first=5, error="app.Hopeless")
    summary = shop.letters.purge(Filter(errors=("Hopeless",)), delete_records=True)
    assert summary.freed == {f"{shop.dead}/0": 3}
    assert kafka.start_offsets(shop.dead) == {0: 3}
    assert len(shop.entries()) == 5  # the ledger keeps what it knows: an export may come back
    shop.letters.replay(plan=NOW)
    summary = shop.letters.purge(ALL, delete_records=True, forget=True)
    assert summary.forgotten == 7
    assert kafka.start_offsets(shop.dead) == {0: 7}
    assert shop.entries() == {}
    shop.die(1, first=100)
    assert open_offsets(shop) == [7]


def test_an_import_puts_back_what_is_gone_byte_for_byte_and_once(kafka: KafkaCluster) -> None:
    shop = Shop(kafka, partitions=2)
    records = [
        shop.letter(0, headers=[("h", b"\xff"), ("h", None)]),
        shop.letter(1, value=None),
        shop.letter(2, key=b"\x00", value=b"\xff\x00"),
        shop.letter(3),
    ]
    kafka.produce(shop.dead, records)
    file = exported(shop)
    kept = shop.letters.import_(file)
    assert (kept.imported, dict(kept.skipped)) == (0, {"still in its topic": 4})
    kafka.delete_records(shop.dead, {0: 2, 1: 2})
    summary = shop.letters.import_(file, by="ada")
    assert (summary.state, summary.records, summary.imported) == ("finished", 4, 4)
    back = sorted(
        kafka.read_all(shop.dead), key=lambda each: dict(each.headers)["streamloop-original-offset"] or b""
    )
    assert [(r.key, r.value, r.headers, r.partition) for r in back] == [
        (r.key, r.value, r.headers, r.partition) for r in records
    ]
    again = shop.letters.import_(file)
    assert (again.imported, dict(again.skipped)) == (0, {"imported before": 4})
    assert shop.letters.replay(plan=NOW).replayed == 4
    assert shop.letters.import_(exported(shop)).imported == 0


def test_an_import_does_not_open_again_what_was_replayed_or_purged(kafka: KafkaCluster) -> None:
    shop = Shop(kafka, partitions=1)
    shop.die(6)
    before = exported(shop)
    shop.letters.replay(Filter.parse(at=[f"{shop.dead}/0:0-2"]), NOW)
    shop.letters.purge(Filter.parse(at=[f"{shop.dead}/0/3"]))
    after = exported(shop)
    kafka.delete_records(shop.dead, {0: 5})
    summary = shop.letters.import_(before)
    assert (summary.imported, dict(summary.skipped)) == (
        1,
        {"replayed before": 3, "purged before": 1, "still in its topic": 1},
    )
    # Where the ledger is gone the file still says it.
    kafka.delete_topic(shop.ledger)
    kafka.delete_records(shop.dead, {0: 7})
    summary = shop.letters.import_(after)
    assert (summary.imported, dict(summary.skipped)) == (2, {"replayed before": 3, "purged before": 1})


def test_nothing_is_written_of_a_file_that_is_not_whole_or_is_none(kafka: KafkaCluster) -> None:
    shop = Shop(kafka, partitions=1)
    shop.die(3)
    whole = exported(shop).getvalue()
    kafka.delete_records(shop.dead, {0: 3})
    lines = whole.splitlines(keepends=True)
    twice = json.loads(lines[-1])
    twice["records"] = 4
    for content, said in (
        (b"".join(lines[:-1]), "is not whole: its last line is missing"),
        (b"", "is not whole: it is empty"),
        (b"".join([lines[0], lines[1], b"{}\n", *lines[2:]]), "line 3 is not expected there"),
        (b"".join(lines[1:]), "is no export of dead letters"),
        (whole.replace(b'"key_base64":"', b'"key_base64":"!'), "line 2 can't be read: its base64 is damaged"),
        (b"".join([*lines[:-1], json.dumps(twice).encode()]), "has 3 records, and says 4"),
        (b"\xff\xfe", "line 1 is no JSON"),
    ):
        with pytest.raises(ConfigurationError, match=said):
            shop.letters.import_(io.BytesIO(content), "evidence.jsonl")
    assert kafka.read_all(shop.dead) == []
    assert not kafka.topic_exists(shop.ledger)
