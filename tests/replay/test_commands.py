"""``streamloop dlq replay | status | purge | import`` as a person types them, in processes of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING

from tests.realkafka.members import ROOT
from tests.replay.shop import Shop

if TYPE_CHECKING:
    from pathlib import Path

    from tests.realkafka import KafkaCluster, Members


def dlq(shop: Shop, *arguments: str, env: dict[str, str] | None = None, code: int = 0) -> str:
    """Run it; its standard output. ``code``: the exit code that it must have."""
    command = [sys.executable, "-m", "streamloop.cli.main", "dlq", *arguments]
    command += ["--brokers", shop.kafka.bootstrap, "--group", shop.group, "--set", "retry_topics=1s"]
    done = subprocess.run(
        command,
        check=False,
        capture_output=True,
        text=True,
        timeout=100,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), **(env or {})},
        stdin=subprocess.DEVNULL,
    )
    assert done.returncode == code, (done.stdout, done.stderr)
    return done.stdout if code == 0 else done.stdout + done.stderr


def test_from_dry_run_to_status(kafka: KafkaCluster) -> None:
    shop = Shop(kafka)
    shop.die(12)
    shop.die(3, first=12, error="app.CardError")
    said = dlq(shop, "replay", "--error", "CardError", "--dry-run")
    assert said.startswith("Would replay 3 of 3 (error CardError),")
    assert "Nothing was changed (--dry-run)." in said
    said = dlq(shop, "replay", "--error", "CardError", "--canary", "0", "--settle", "0", "--by", "ada")
    assert said.startswith("Replayed 3 of 3 (error CardError) to the replay topic")
    assert "Later: streamloop dlq status " in said
    run = said.split("Run ")[-1].strip()
    shop.assert_once(3)
    found = json.loads(dlq(shop, "status", run, "--json"))
    assert (found["by"], found["state"], found["outcomes"]["unknown"]) == ("ada", "finished", 3)
    assert f"replay {run}: finished" in dlq(shop, "status", run)
    assert "error CardError" in dlq(shop, "status")
    found = json.loads(dlq(shop, "replay", "--canary", "0", "--settle", "0", "--json"))
    assert (found["replayed"], found["skipped"]) == (12, {"replayed before": 3})
    shop.assert_once(15)


def test_a_canary_that_nobody_handles_ends_with_exit_code_1_and_says_why(kafka: KafkaCluster) -> None:
    shop = Shop(kafka)
    shop.die(20)
    said = dlq(shop, "replay", "--settle", "1s", code=1)
    assert "Of the first 10 nothing is known after 1 s: is a member of" in said
    shop.assert_once(10)


def test_ctrl_c_says_what_it_did(kafka: KafkaCluster, members: Members) -> None:
    shop = Shop(kafka)
    shop.die(40)
    member = members.start_module(
        "streamloop.cli.main", "dlq", "replay", "--rate", "5", "--canary", "0", "--settle", "0",
        "--brokers", kafka.bootstrap, "--group", shop.group,
    )  # fmt: skip
    member.wait_for_line("replaying")
    member.interrupt()
    member.wait_for_line(r"^Stopped. Replayed \d+ of \d+")
    assert member.wait() == 130
    done = len(shop.copies())
    assert done < 40
    shop.assert_once(done)


def test_one_letter_is_edited_in_an_editor(kafka: KafkaCluster, tmp_path: Path) -> None:
    shop = Shop(kafka, partitions=1)
    kafka.produce(shop.dead, [shop.letter(0, value=b'{"amount": -5}\n', headers=[("h", b"\xff\x00")])])
    at = ["--at", f"{shop.dead}/0/0", "--canary", "0", "--settle", "0", "--edit"]
    editor = tmp_path / "edit"
    editor.write_text("#!/bin/sh\ntouch -d '1 minute' \"$1\"\n")
    editor.chmod(0o700)
    dlq(shop, "replay", *at, env={"VISUAL": str(editor)})
    assert shop.copies() == {}
    editor.write_text("#!/bin/sh\nsed -i 's/-5/5/' \"$1\"\ntouch -d '1 minute' \"$1\"\n")
    dlq(shop, "replay", *at, env={"VISUAL": str(editor)})
    [record] = shop.back()
    assert (record.value, record.header("h")) == (b'{"amount": 5}\n', b"\xff\x00")
    assert "--edit is of a single letter" in dlq(shop, "replay", "--edit", code=2)


def test_purge_wants_a_filter_and_the_count(kafka: KafkaCluster) -> None:
    shop = Shop(kafka)
    shop.die(5)
    assert "Which dead letters? Give a filter, or --all." in dlq(shop, "purge", code=2)
    assert "5 open dead letters (all dead letters) would be purged: say so with --yes 5." in dlq(
        shop, "purge", "--all", code=2
    )
    assert "nothing was purged" in dlq(shop, "purge", "--all", "--yes", "4", code=2)
    assert dlq(shop, "purge", "--all", "--yes", "5").startswith("Purged 5 of 5 (all dead letters).")
    said = dlq(shop, "replay", "--dry-run")
    assert said.startswith("Would replay 0 of 5")
    assert "5  left out: purged" in said


def test_export_and_import(kafka: KafkaCluster, tmp_path: Path) -> None:
    shop = Shop(kafka, partitions=1)
    shop.die(5)
    file = tmp_path / "evidence.jsonl"
    dlq(shop, "export", str(file))
    kafka.delete_records(shop.dead, {0: 5})
    assert dlq(shop, "import", str(file)).startswith("Imported 5 of 5.")
    assert "left out: imported before" in dlq(shop, "import", str(file))


def test_other_targets_ask_for_a_yes_where_others_read(kafka: KafkaCluster) -> None:
    shop = Shop(kafka, partitions=1)
    shop.die(2)
    kafka.commit("other-team", shop.source, {0: (0, "")})
    said = dlq(shop, "replay", "--to-source", code=2)
    assert f"{shop.source} is read by: other-team" in said
    assert "those that read uncommitted can see a record more than once" in said
    dlq(shop, "replay", "--to-source", "--yes", "--canary", "0", "--settle", "0")
    assert len(shop.back(shop.source)) == 2
