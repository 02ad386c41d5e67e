"""Asks members for their /status, over HTTP, all at once and each within a bound.

A member that does not answer, answers something else, or sends for ever is a sentence, never an exception.
What comes back is another process's text: it is shown only through ``printable``. Called by ``streamloop
top``.
"""

from __future__ import annotations

import threading
import time
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import urlsplit

from streamloop.errors import ConfigurationError
from streamloop.http_get import LONGEST_ERROR, get_json, objects, rows
from streamloop.telemetry.logs import printable

DEFAULT_PORT: Final = 9465


@dataclass(frozen=True, slots=True)
class Look:
    """What one member answered. ``error``: why there is no ``status``. ``rates``: a second, by consumer."""

    url: str
    status: dict[str, Any] | None = None
    error: str = ""
    rates: dict[str, dict[str, float]] = field(default_factory=dict)


def member_url(text: str, *, setting: str = "control_address", port: int = DEFAULT_PORT) -> str:
    """The base URL that ``host``, ``host:port`` or a URL means. Raises ConfigurationError.

    ``setting``: which of a member's addresses is asked for; ``port``: the one it usually has.
    """
    written = text if "://" in text else f"http://{text}"
    try:
        parts = urlsplit(written)
        named = parts.port
    except ValueError as error:
        raise ConfigurationError(f"{text!r} is no address of a member: {error}.") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ConfigurationError(
            f"{text!r} is no address of a member: give its {setting}, such as 127.0.0.1:{port}."
        )
    if parts.username is not None or parts.query or parts.fragment:
        raise ConfigurationError(
            "A member's address is a host and a port; a token is given with --token-file."
        )
    host = f"[{parts.hostname}]" if ":" in parts.hostname else parts.hostname
    given = named if named is not None else port if "://" not in text else None
    path = parts.path.rstrip("/").removesuffix("/status")
    return f"{parts.scheme}://{host}{'' if given is None else f':{given}'}{path}"


def ask(url: str, *, timeout: float, token: str | None = None) -> Look:
    """One look at one member."""
    try:
        status, found = get_json(f"{url}/status", timeout=timeout, token=token)
    except ValueError as error:
        return Look(url, error=str(error))
    if not isinstance(found, dict):
        return Look(url, error="the answer is no status: is this the control_address?")
    if status == 404:
        return Look(url, error="it has no /status: this is its ops_address, give its control_address")
    if status != 200:
        said = str(found.get("error", "no reason given"))[:LONGEST_ERROR]
        return Look(url, error=f"it refused (HTTP {status}): {printable(said)}")
    if "probes" not in found:
        return Look(url, error="the answer is no status: is this the control_address?")
    return Look(url, found)


class Member:
    """One member over many looks: remembers the last counts, from which the rates come."""

    def __init__(self, url: str, *, timeout: float, token: str | None = None) -> None:
        self.url = url
        self._timeout = timeout
        self._token = token
        self._asking: threading.Thread | None = None
        self._answer: Look | None = None
        self._before: tuple[float, dict[str, dict[str, float]]] | None = None
        self._rates: dict[str, dict[str, float]] = {}

    def begin(self) -> None:
        """Ask, on a thread of its own; unless an earlier question still waits."""
        if self._asking is not None and self._asking.is_alive():
            return
        self._answer = None
        self._asking = threading.Thread(target=self._ask, daemon=True)
        self._asking.start()

    def end(self, until: float) -> Look:
        """The answer, waited for until this time (monotonic)."""
        assert self._asking is not None
        self._asking.join(max(0.0, until - time.monotonic()))
        answer = self._answer
        if answer is None:
            return Look(self.url, error=f"no whole answer within {self._timeout:g} s")
        return self.rated(answer)

    def _ask(self) -> None:
        try:
            self._answer = ask(self.url, timeout=self._timeout, token=self._token)
        except Exception as error:  # noqa: BLE001 - whatever a member sends, the others are shown
            self._answer = Look(self.url, error=f"it could not be asked ({type(error).__name__}: {error})")

    def rated(self, look: Look) -> Look:
        """The look with rates: differences to the last one, by the member's own clock.

        A status is renewed about once a second: two looks at the same one keep the rates that were there.
        """
        if look.status is None:
            return look
        uptime = look.status.get("uptime")
        if not isinstance(uptime, int | float):
            return look
        counts = {
            str(each.get("name")): {
                str(name): float(value)
                for name, value in objects(each.get("counts")).items()
                if isinstance(value, int | float)
            }
            for each in rows(look.status, "consumers")
        }
        if self._before is None or uptime < self._before[0]:  # the first look, or it was started again
            self._before, self._rates = (uptime, counts), {}
        elif uptime > self._before[0]:
            elapsed, before = uptime - self._before[0], self._before[1]
            self._rates = {
                consumer: {
                    name: max(0.0, value - before.get(consumer, {}).get(name, 0.0)) / elapsed
                    for name, value in own.items()
                }
                for consumer, own in counts.items()
            }
            self._before = (uptime, counts)
        return Look(look.url, look.status, rates=self._rates)


def look_at(members: list[Member], timeout: float) -> list[Look]:
    """One look at all of them, within ``timeout`` and a little."""
    until = time.monotonic() + timeout + 0.5
    for member in members:
        member.begin()
    return [member.end(until) for member in members]
