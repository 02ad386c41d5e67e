"""The console's settings: what does not go together is told before anything starts."""

from __future__ import annotations

import pytest

from streamloop.errors import ConfigurationError
from streamloop.settings import Settings
from streamloop.settings.sums import Severity, check_sums
from streamloop.shutdown import longest

TOKENS = {"control_read_token": "a read token of 16+", "control_act_token": "an act token of 16+"}


def problems(**settings: object) -> list[tuple[Severity, str]]:
    loaded = Settings.load({"console": True, **settings}, env={}).settings
    return [
        (each.severity, each.setting)
        for each in check_sums(loaded, [], lambda: None)
        if each.setting.startswith("control_")
    ]


def test_a_console_without_an_address_is_an_error() -> None:
    assert problems() == [(Severity.ERROR, "control_address")]


def test_a_console_without_a_read_token_is_a_warning() -> None:
    assert problems(control_address="127.0.0.1:9465") == [(Severity.WARNING, "control_read_token")]


@pytest.mark.parametrize("address", ["0.0.0.0:9465", "10.0.0.7:9465", "[::]:9465", "billing.internal:9465"])
def test_tokens_that_travel_in_clear_text_are_a_warning(address: str) -> None:
    assert problems(control_address=address, **TOKENS) == [(Severity.WARNING, "control_tls")]
    assert problems(control_address=address, control_tls=True, **TOKENS) == []


@pytest.mark.parametrize("address", ["127.0.0.1:9465", "localhost:9465", "[::1]:0"])
def test_an_address_of_this_machine_alone_is_none(address: str) -> None:
    assert problems(control_address=address, **TOKENS) == []


@pytest.mark.parametrize(
    "given",
    [
        "jaeger:16686",
        "ftp://jaeger",
        "http://",
        "http://user:pass@jaeger",
        "http://j/?x=1",
        "javascript:alert(1)",
    ],
)
@pytest.mark.parametrize("setting", ["jaeger_url", "jaeger_link"])
def test_an_address_of_jaeger_that_is_none_is_refused(setting: str, given: str) -> None:
    with pytest.raises(ConfigurationError, match=setting):
        Settings.load({setting: given}, env={})


def test_an_address_of_jaeger_loses_the_slash_at_its_end() -> None:
    loaded = Settings.load({"jaeger_url": "http://jaeger:16686/base/"}, env={}).settings
    assert loaded.jaeger_url == "http://jaeger:16686/base"


def test_the_end_of_a_member_with_a_console_includes_that_of_its_replay() -> None:
    plain = longest(Settings.load({}, env={}).settings)
    console = longest(Settings.load({"console": True}, env={}).settings)
    assert console.ended - plain.ended == 5.0
    assert console.left == plain.left
