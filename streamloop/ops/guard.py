"""Who may see and who may act: tokens, and the host names by which the control address may be called.

Tokens are compared in constant time. A wrong one is answered late, and few at a time, so that guessing takes
for ever; each is logged. Host names are checked because a page in an operator's browser can call his own
machine by a name of its own (DNS rebinding). Called by the control application.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import logging
import re
import threading
import time
from typing import TYPE_CHECKING, Final

from streamloop.ops.web import RefusedError
from streamloop.telemetry.logs import printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from pydantic import SecretStr

    from streamloop.ops.web import Request

log = logging.getLogger("streamloop.ops")

READ: Final = "read"
"""May see payloads, headers, keys and error texts."""
ACT: Final = "act"
"""May pause, resume and replay."""
LATE: Final = 1.0
"""Seconds until a wrong token is answered."""
LATE_AT_ONCE: Final = 2
"""Wrong tokens that wait at once: the other threads go on answering. More are refused."""
_HOST: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^:\[\]]+)(:\d{1,5})?")


class Guard:
    """``read`` and ``act``: the tokens; None: nobody may."""

    def __init__(
        self,
        read: SecretStr | None,
        act: SecretStr | None,
        hosts: Iterable[str],
        *,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._read = _digest(read.get_secret_value()) if read is not None else None
        self._act = _digest(act.get_secret_value()) if act is not None else None
        self._hosts = {"localhost", *(host.lower() for host in hosts)}
        self._sleep = sleep
        self._late = threading.Semaphore(LATE_AT_ONCE)

    def check_host(self, request: Request) -> None:
        """Refuse a request that came by a name which is not ours."""
        given = request.headers.get("host", "")
        match = _HOST.fullmatch(given)
        if match is None:
            raise RefusedError(400, "send a Host header: the address that was called")
        name = match[1].strip("[]").lower().rstrip(".")
        if name in self._hosts:
            return
        try:
            ipaddress.ip_address(name)
        except ValueError:
            log.warning(
                "control: refused %s from %s, which was called by the host name %s",
                printable(request.path),
                printable(request.peer),
                printable(name[:100]),
                extra={"kind": "control_refused"},
            )
            raise RefusedError(
                403,
                f"the host name {name[:100]!r} is not allowed: call it by an IP address or localhost, or "
                "list the name in control_hosts",
            ) from None

    def may_read(self, request: Request) -> bool:
        """Whether the request bears the read token. Refuses a wrong one; without any it is False."""
        token = bearer(request)
        if token is None:
            return False
        if self._read is not None and hmac.compare_digest(_digest(token), self._read):
            return True
        raise self._wrong(request)

    def rights(self, request: Request, token: str | None) -> frozenset[str]:
        """What this token allows: READ, ACT, or both when the two are the same. Refuses a wrong one.

        Without any: nothing.
        """
        if token is None:
            return frozenset()
        digest = _digest(token)
        # All are compared, whichever is right: the time it takes tells nothing.
        known = ((READ, self._read), (ACT, self._act))
        found = [right for right, own in known if own is not None and hmac.compare_digest(digest, own)]
        if not found:
            raise self._wrong(request)
        return frozenset(found)

    @property
    def offered(self) -> frozenset[str]:
        """The rights for which a token is set."""
        return frozenset(right for right, own in ((READ, self._read), (ACT, self._act)) if own is not None)

    def require_act(self, request: Request) -> None:
        """Refuse a request without the act token."""
        if self._act is None:
            raise RefusedError(403, "nobody may act here: no control_act_token is set")
        token = bearer(request)
        if token is None:
            raise RefusedError(
                401,
                "this needs the act token: send Authorization: Bearer <token>",
                ("WWW-Authenticate", "Bearer"),
            )
        digest = _digest(token)
        if hmac.compare_digest(digest, self._act):
            return
        if self._read is not None and hmac.compare_digest(digest, self._read):
            raise RefusedError(403, "this needs the act token, and that is the read token")
        raise self._wrong(request)

    def _wrong(self, request: Request) -> RefusedError:
        log.warning(
            "control: a wrong token for %s from %s",
            printable(request.path),
            printable(request.peer),
            extra={"kind": "control_refused"},
        )
        if not self._late.acquire(blocking=False):
            return RefusedError(429, "too many wrong tokens: wait", ("Retry-After", "5"))
        try:
            self._sleep(LATE)
        finally:
            self._late.release()
        return RefusedError(401, "the token is wrong", ("WWW-Authenticate", 'Bearer error="invalid_token"'))


def bearer(request: Request) -> str | None:
    """The token of the request, or None. RefusedError when the header is of another kind."""
    header = request.headers.get("authorization", "").strip()
    if not header:
        return None
    scheme, _, token = header.partition(" ")
    if scheme.lower() != "bearer" or not token.strip():
        raise RefusedError(
            401, "send the token as Authorization: Bearer <token>", ("WWW-Authenticate", "Bearer")
        )
    return token.strip()


def _digest(token: str) -> bytes:
    # Of equal length whatever is sent, so that not even the token's length shows.
    return hashlib.sha256(token.encode("utf-8", "surrogateescape")).digest()
