"""The console of one run: its page, its API, and the jobs that have to end with the run.

Called by the run's operations when the setting ``console`` is on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from streamloop.ops.console.access import Access
from streamloop.ops.console.api import Api
from streamloop.ops.console.jobs import Jobs
from streamloop.ops.console.pages import page_routes, redirect
from streamloop.ops.console.session import PATH, Sessions
from streamloop.ops.web import Answer, Request, answer_json

if TYPE_CHECKING:
    from streamloop.observed import Observed
    from streamloop.ops.console.desk import Desk
    from streamloop.ops.guard import Guard
    from streamloop.ops.observer import Observer
    from streamloop.ops.web import Handler

END_WITHIN: Final = 5.0
"""Seconds that a replay gets at the end to finish its transaction and its record."""


class Console:
    """``desk``: dead letters and their replay; None: ``why_none`` says why there are none to see."""

    def __init__(
        self, run: Observed, observer: Observer, guard: Guard, desk: Desk | None, *, why_none: str = ""
    ) -> None:
        settings = run.settings
        sessions = Sessions(
            settings.group,
            settings.control_read_token,
            settings.control_act_token,
            secure=settings.control_tls,
        )
        self._jobs = Jobs()
        access = Access(guard, sessions, tls=settings.control_tls)
        self._api = Api(run, observer, access, desk, self._jobs, why_none=why_none)

    def routes(self, others: list[str]) -> dict[str, dict[str, Handler]]:
        """The console's paths. ``others``: paths of the same address, for its front page."""

        def front(request: Request) -> Answer:
            # A person goes to the page; a program is told the paths, as ever.
            if "text/html" in request.headers.get("accept", ""):
                return redirect(f"{PATH}/")
            return answer_json({"paths": sorted([*others, f"{PATH}/"])})

        return {
            "/": {"GET": front},
            PATH: {"GET": lambda _request: redirect(f"{PATH}/")},
            **page_routes(PATH),
            **self._api.routes(f"{PATH}/api"),
        }

    def drain(self) -> None:
        """The member drains: a replay ends at its next transaction, and no more begins."""
        self._jobs.drain("this member is about to end")

    def close(self) -> None:
        """Wait for the ends, within a bound."""
        self._jobs.close(END_WITHIN)
