"""Who is signed in: a signed cookie that every member accepts, and that no member has to remember.

The keys are derived from the tokens, so that a cookie of one member is good at the others, and a token that
is replaced ends the sessions that it began. A cookie holds a name, rights and an end; never a token. Called
by ``access``.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import secrets
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import orjson

from streamloop.ops.guard import ACT, READ

if TYPE_CHECKING:
    from collections.abc import Callable

    from pydantic import SecretStr

LASTS: Final = 8 * 3600
"""Seconds until one has to sign in again."""
PATH: Final = "/console"
LONGEST_NAME: Final = 80
LONGEST_COOKIE: Final = 1_024
ROUNDS: Final = 200_000
"""Of PBKDF2: whoever steals a cookie must not try tokens quickly."""
_VERSION: Final = 1


@dataclass(frozen=True, slots=True)
class Session:
    """``who``: the name that the person gave. ``ends``: epoch seconds."""

    who: str
    rights: frozenset[str]
    ends: int
    id: str


class Sessions:
    """Opens sessions and recognises them. ``secure``: browsers reach us over TLS."""

    def __init__(
        self,
        group: str,
        read: SecretStr | None,
        act: SecretStr | None,
        *,
        secure: bool,
        wall: Callable[[], float] = time.time,
    ) -> None:
        # Browsers send a cookie to all ports of a host: the members of two groups must not share a name.
        name = f"streamloop-console-{hashlib.sha256(group.encode()).hexdigest()[:10]}"
        self.name = f"__Secure-{name}" if secure else name
        self._group = group
        self._tokens = {right: token for right, token in ((READ, read), (ACT, act)) if token is not None}
        self._secure = secure
        self._wall = wall
        self._derived: dict[str, bytes] = {}
        self._lock = threading.Lock()

    def open(self, who: str, rights: frozenset[str]) -> Session:
        """A new session."""
        return Session(who, rights, int(self._wall()) + LASTS, secrets.token_hex(16))

    def cookie(self, session: Session) -> str:
        """The value of Set-Cookie that begins it."""
        content = [_VERSION, session.who, sorted(session.rights), session.ends, session.id]
        payload = orjson.dumps(content)
        value = f"{_text(payload)}.{_text(self._sign(session.rights, b'session', payload))}"
        left = max(0, session.ends - int(self._wall()))
        return f"{self.name}={value}; Max-Age={left}; {self._attributes}"

    def ended(self) -> str:
        """The value of Set-Cookie that ends one."""
        return f"{self.name}=; Max-Age=0; {self._attributes}"

    @property
    def _attributes(self) -> str:
        return f"Path={PATH}; HttpOnly; SameSite=Strict{'; Secure' if self._secure else ''}"

    def csrf(self, session: Session) -> str:
        """What a page of ours sends along to show that it is one."""
        return _text(self._sign(session.rights, b"csrf", session.id.encode()))

    def of(self, header: str) -> Session | None:
        """The session of a Cookie header; None when there is none that is good."""
        for part in header.split(";"):
            name, _, value = part.strip().partition("=")
            if name == self.name and len(value) <= LONGEST_COOKIE:
                found = self._read(value)
                if found is not None:
                    return found
        return None

    def _read(self, value: str) -> Session | None:
        written, _, signature = value.partition(".")
        try:
            payload, signed = _bytes(written), _bytes(signature)
            version, who, rights, ends, key = orjson.loads(payload)
        except (ValueError, TypeError):
            return None
        # Nothing of it is believed before the signature was checked, but the choice of the key.
        if version != _VERSION or not isinstance(rights, list) or not all(r in (READ, ACT) for r in rights):
            return None
        claimed = frozenset(rights)
        if not claimed or not claimed <= self._tokens.keys():
            return None
        if not hmac.compare_digest(self._sign(claimed, b"session", payload), signed):
            return None
        return Session(who, claimed, ends, key) if self._wall() < ends else None

    def _sign(self, rights: frozenset[str], purpose: bytes, content: bytes) -> bytes:
        # A session that holds two rights ends when either token is replaced.
        key = hmac.digest(b"streamloop console", b"".join(map(self._key, sorted(rights))), "sha256")
        return hmac.digest(key, purpose + b"\0" + content, "sha256")

    def _key(self, right: str) -> bytes:
        with self._lock:
            found = self._derived.get(right)
            if found is None:
                token = self._tokens[right].get_secret_value().encode("utf-8", "surrogateescape")
                salt = f"streamloop console {right} {self._group}".encode()
                self._derived[right] = found = hashlib.pbkdf2_hmac("sha256", token, salt, ROUNDS)
            return found


def _text(content: bytes) -> str:
    return base64.urlsafe_b64encode(content).rstrip(b"=").decode()


def _bytes(text: str) -> bytes:
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        raise ValueError("no base64") from None
