"""Who asks, what he may, and whether it is our own page that asks.

A browser sends the cookie by itself, so what changes something must come from a page of ours: same origin,
JSON, and a header that only our page can know. A program sends a token, which no browser adds by itself.
Called by the console's API before anything else.
"""

from __future__ import annotations

import hmac
import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from streamloop.ops.guard import ACT, READ, bearer
from streamloop.ops.web import RefusedError
from streamloop.telemetry.logs import printable

if TYPE_CHECKING:
    from streamloop.ops.console.session import Session, Sessions
    from streamloop.ops.guard import Guard
    from streamloop.ops.web import Request

log = logging.getLogger("streamloop.ops")

CSRF_HEADER: Final = "x-streamloop-csrf"
LOGIN_MARK: Final = "login"
"""What the header holds before there is a session: no form and no other site's page can send it."""


@dataclass(frozen=True, slots=True)
class Viewer:
    """Who asks. ``who`` goes into logs and run records. ``session``: None without a cookie."""

    who: str
    rights: frozenset[str]
    session: Session | None = None

    @property
    def may_read(self) -> bool:
        """Payloads, headers, keys, error texts."""
        return READ in self.rights

    @property
    def may_act(self) -> bool:
        """Pause, resume, replay."""
        return ACT in self.rights


class Access:
    """The rules. ``tls``: browsers reach us over TLS."""

    def __init__(self, guard: Guard, sessions: Sessions, *, tls: bool) -> None:
        self.guard = guard
        self.sessions = sessions
        self._scheme = "https" if tls else "http"

    def viewer(self, request: Request) -> Viewer:
        """Whoever it is; refuses a wrong token, and a page of another site."""
        self._check_site(request)
        token = bearer(request)
        if token is not None:
            return Viewer(f"a token from {request.peer}", self.guard.rights(request, token))
        session = self.sessions.of(request.headers.get("cookie", ""))
        if session is None:
            return Viewer("", frozenset())
        return Viewer(session.who, session.rights, session)

    def reader(self, request: Request) -> Viewer:
        """One who may see payloads."""
        viewer = self.viewer(request)
        if not viewer.may_read:
            raise self._missing(READ, viewer)
        return viewer

    def poster(self, request: Request) -> Viewer:
        """Whoever sends something; checked that no other site's page made the browser send it."""
        viewer = self.viewer(request)
        self._check_json(request)
        if viewer.session is not None:
            if "origin" not in request.headers and "sec-fetch-site" not in request.headers:
                raise self._refused(request, "the browser did not say which page sent this")
            known = self.sessions.csrf(viewer.session)
            if not hmac.compare_digest(known.encode(), _ascii(request.headers.get(CSRF_HEADER, ""))):
                raise self._refused(request, f"the header {CSRF_HEADER} is missing or of another session")
        elif not viewer.rights:
            raise self._missing(READ, viewer)
        return viewer

    def reading_poster(self, request: Request) -> Viewer:
        """One who sends something, and may see payloads."""
        viewer = self.poster(request)
        if not viewer.may_read:
            raise self._missing(READ, viewer)
        return viewer

    def actor(self, request: Request) -> Viewer:
        """One who sends something, and may act."""
        viewer = self.poster(request)
        if not viewer.may_act:
            raise self._missing(ACT, viewer)
        return viewer

    def check_login(self, request: Request) -> None:
        """Refuse a login that does not come from our own page, or from a program."""
        self._check_site(request)
        self._check_json(request)
        if request.headers.get(CSRF_HEADER) != LOGIN_MARK:
            raise self._refused(request, f"send the header {CSRF_HEADER}: {LOGIN_MARK}")

    def _check_json(self, request: Request) -> None:
        kind = request.headers["content-type"].partition(";")[0].strip().lower()
        if kind != "application/json":
            raise RefusedError(415, "send the body as Content-Type: application/json")

    def _check_site(self, request: Request) -> None:
        site = request.headers.get("sec-fetch-site", "")
        if site not in ("", "same-origin", "none"):
            raise self._refused(request, "a page of another site asked for it")
        origin = request.headers.get("origin")
        if origin is None:
            return
        try:
            given = urlsplit(origin)
        except ValueError:  # half an IPv6 address, say
            given = None
        if (
            given is None
            or given.scheme != self._scheme
            or given.netloc.lower() != request.headers.get("host", "").lower()
        ):
            raise self._refused(
                request,
                f"the page that asked is at {printable(origin[:100])}, which is not this address. Behind a "
                "proxy that speaks TLS set control_tls, and let it pass the Host header on",
            )

    def _refused(self, request: Request, why: str) -> RefusedError:
        log.warning(
            "console: refused %s from %s: %s",
            printable(request.path),
            printable(request.peer),
            why,
            extra={"kind": "control_refused"},
        )
        return RefusedError(403, f"refused: {why}")

    def _missing(self, right: str, viewer: Viewer) -> RefusedError:
        if right not in self.guard.offered:
            what = "see payloads" if right == READ else "act"
            return RefusedError(403, f"nobody may {what} here: no control_{right}_token is set")
        if viewer.rights:
            return RefusedError(403, f"this needs the {right} token: sign in with it, too")
        return RefusedError(401, f"this needs the {right} token: sign in", ("WWW-Authenticate", "Bearer"))


def _ascii(text: str) -> bytes:
    return text.encode("utf-8", "surrogateescape")
