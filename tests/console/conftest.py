"""A member with a console, on librdkafka's mock cluster, with dead letters that are made up."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from streamloop.ops import operations
from tests.console.desk import FakeDesk
from tests.realkafka.waiting import wait_until
from tests.running_loop import ACT, READ, Reply, RunningLoop

if TYPE_CHECKING:
    from collections.abc import Iterator


async def nothing(_value: bytes) -> None: ...


class Browser:
    """What a browser would send to a console: the cookie, the origin, the header."""

    def __init__(self, loop: RunningLoop) -> None:
        self.loop = loop
        self.cookie = ""
        self.csrf = ""

    @property
    def origin(self) -> str:
        return self.loop.run.operations.urls["control_address"]

    def get(self, path: str, **headers: str) -> Reply:
        return self.loop.control(f"/console/api/{path}", headers={**self._own(), **_names(headers)})

    def post(self, path: str, body: Any = None, **headers: str | None) -> Reply:
        """``headers`` replace those that a page of ours would send; None takes one away."""
        sent: dict[str, str | None] = {
            **self._own(),
            "Content-Type": "application/json",
            "Origin": self.origin,
            "Sec-Fetch-Site": "same-origin",
            "X-Streamloop-Csrf": "login" if path == "login" else self.csrf,
            **_names(headers),
        }
        content = json.dumps({} if body is None else body).encode()
        return self.loop.control(
            f"/console/api/{path}",
            method="POST",
            headers={name: value for name, value in sent.items() if value is not None},
            body=content,
        )

    def _own(self) -> dict[str, str]:
        return {"Cookie": self.cookie} if self.cookie else {}

    def sign_in(self, who: str = "Ada", read: str = READ, act: str = ACT) -> Reply:
        answer = self.post("login", {"who": who, "read_token": read, "act_token": act})
        assert answer.status == 200, answer.body
        self.cookie = answer.headers["set-cookie"].partition(";")[0]
        self.csrf = answer.json["csrf"]
        return answer

    def ended(self, job: str) -> Any:
        """The job, when it has ended."""

        def look() -> Any:
            answer = self.get(f"job?id={job}")
            assert answer.status == 200, answer.body
            return answer.json if answer.json["state"] != "running" else None

        return wait_until(look, 30, "the end of the job")


def _names(headers: dict[str, Any]) -> dict[str, Any]:
    return {name.replace("_", "-"): value for name, value in headers.items()}


@pytest.fixture(scope="package")
def desk() -> FakeDesk:
    return FakeDesk()


@pytest.fixture(scope="package")
def running(desk: FakeDesk) -> Iterator[RunningLoop]:
    """One member for all tests that leave it as it was."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(operations, "desk_of", lambda _run: (desk, ""))
        with RunningLoop(
            nothing,
            console=True,
            control_act_token=ACT,
            control_read_token=READ,
            control_hosts="loops.internal",
            control_topic="off",
        ) as loop:
            wait_until(lambda: loop.ops("/ready").status == 200, 20, "readiness")
            yield loop


@pytest.fixture
def browser(running: RunningLoop) -> Browser:
    """Nobody is signed in."""
    return Browser(running)


@pytest.fixture
def signed_in(browser: Browser) -> Browser:
    """Ada, who may see and act."""
    browser.sign_in()
    return browser
