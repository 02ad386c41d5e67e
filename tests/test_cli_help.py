"""What --help says: a line for each command that is not cut off, and no settings that mean nothing to it."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from streamloop.cli.main import main
from streamloop.cli.show import folded

LOOKERS = [["group"], ["pause"], ["resume"], ["doctor"], ["check"], ["topics"]]


def _help(*words: str) -> str:
    result = CliRunner().invoke(main, [*words, "--help"], terminal_width=80)
    assert result.exit_code == 0
    return result.output


@pytest.mark.parametrize("words", [[], ["dlq"]])
def test_no_line_of_a_list_of_commands_is_cut_off(words: list[str]) -> None:
    text = _help(*words)
    listed = text.partition("Commands:")[2].strip().split("\n")
    group = main if not words else main.commands[words[0]]
    assert isinstance(group, click.Group)
    assert len(listed) == len(group.commands)  # none is broken into two lines either
    assert not [line for line in listed if line.endswith("...")]


@pytest.mark.parametrize("words", LOOKERS)
def test_a_command_that_handles_nothing_lists_the_settings_of_the_connection_only(words: list[str]) -> None:
    text = _help(*words)
    assert "--brokers" in text
    assert "--sasl-mechanism" in text
    assert "--backoff-base" not in text
    assert "'streamloop run" in text  # where the others are listed
    assert len(text.split("\n")) < 60


def test_run_lists_every_setting() -> None:
    text = _help("run")
    assert "--brokers" in text
    assert "--backoff-base" in text


def test_what_is_not_listed_is_taken_all_the_same() -> None:
    result = CliRunner().invoke(main, ["group", "--backoff-base", "nonsense"])
    assert "backoff_base" in result.output  # judged as a setting, not refused as an option
    assert "No such option" not in result.output


def test_a_long_line_is_folded_below_itself_and_its_words_stay_whole() -> None:
    long = (
        "    orders.billing.dlq/0/17-of-a-name-that-is-longer-than-forty-characters is dead, of CardDeclined"
    )
    lines = folded(long, 40).split("\n")
    assert lines[0].startswith("    orders.")
    assert " ".join(line.strip() for line in lines) == long.strip()
    assert all(line.startswith("    ") for line in lines)
    assert max(len(line) for line in lines[1:]) <= 40
    assert folded("  short   as it is", 40) == "  short   as it is"
    assert folded("", 40) == ""
    assert folded("a" + " b" * 30, 40, hanging=8).split("\n")[1].startswith(" " * 8 + "b")
    assert folded("  - " + "b " * 30, 40).split("\n")[1].startswith("    b")


def test_a_plan_asks_for_everything_that_is_missing() -> None:
    result = CliRunner().invoke(main, ["plan"])
    assert result.exit_code == 2
    assert "--handler-mean, --handler-p99, --rate, --partitions. Give them" in result.output
