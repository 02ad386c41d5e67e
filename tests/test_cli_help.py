"""What --help says: a line for each command that is not cut off, and no settings that mean nothing to it."""

from __future__ import annotations

import click
import pytest
from click.testing import CliRunner

from streamloop.cli.main import main

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
