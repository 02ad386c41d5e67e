"""GET over HTTP from what an operator named: a member, Jaeger, a page of metrics. Bounded in time and size.

No proxy, no redirect: a token goes to who was named. What comes back is another process's, and is checked for
its shape with ``objects`` and ``rows``. Blocking; called by the command line, the console and the doctor.
"""

from __future__ import annotations

import http.client
import time
import urllib.error
import urllib.request
from typing import Any, Final

import orjson

LONGEST_ANSWER: Final = 16 * 1024 * 1024
"""Bytes: a status of some 10,000 partitions."""
LONGEST_ERROR: Final = 300


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """A token goes to who was named, and to nobody that he names."""

    def redirect_request(self, *_: Any, **__: Any) -> None:
        return None


def fetch(url: str, *, timeout: float, accept: str, token: str | None = None) -> tuple[int, bytes]:
    """GET: the HTTP status and the body. No proxy, no redirect.

    Raises ValueError with the end of a sentence. ``timeout`` (seconds) bounds each wait, and the body.
    """
    headers = {"Accept": accept, **({"Authorization": f"Bearer {token}"} if token else {})}
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}), _NoRedirect())
    try:
        request = urllib.request.Request(url, headers=headers)  # noqa: S310 - the scheme was checked
        try:
            with opener.open(request, timeout=timeout) as answer:
                status, body = answer.status, _whole(answer, time.monotonic() + timeout)
        except urllib.error.HTTPError as error:
            with error:
                status, body = error.code, error.read(LONGEST_ANSWER + 1)
    except urllib.error.URLError as error:
        reason = error.reason
        raise ValueError(
            f"no answer within {timeout:g} s"
            if isinstance(reason, TimeoutError)
            else (reason.strerror if isinstance(reason, OSError) and reason.strerror else str(reason)).lower()
        ) from None
    except TimeoutError:
        raise ValueError(f"no whole answer within {timeout:g} s") from None
    except (OSError, http.client.HTTPException, UnicodeError) as error:
        raise ValueError(f"no HTTP answer ({type(error).__name__}: {error})"[:LONGEST_ERROR]) from None
    if len(body) > LONGEST_ANSWER:
        raise ValueError(f"the answer is larger than {LONGEST_ANSWER} bytes")
    return status, body


def _whole(answer: http.client.HTTPResponse, until: float) -> bytes:
    """The body, in time: one that comes byte by byte would be waited for for ever. Raises TimeoutError."""
    parts: list[bytes] = []
    size = 0
    while size <= LONGEST_ANSWER and (part := answer.read1(65_536)):
        parts.append(part)
        size += len(part)
        if time.monotonic() > until:
            raise TimeoutError
    if answer.length and size <= LONGEST_ANSWER:  # read1() takes a connection that broke for the end
        raise http.client.IncompleteRead(b"", answer.length)
    return b"".join(parts)


def get_json(url: str, *, timeout: float, token: str | None = None) -> tuple[int, Any]:
    """The same for JSON. Raises ValueError with the end of a sentence."""
    status, body = fetch(url, timeout=timeout, accept="application/json", token=token)
    try:
        return status, orjson.loads(body)
    except orjson.JSONDecodeError:
        raise ValueError(f"the answer (HTTP {status}) is no JSON: is this the control_address?") from None


def rows(status: dict[str, Any], name: str) -> list[dict[str, Any]]:
    """A list of objects in an answer; what is no object is left out: another version may have sent it."""
    found = status.get(name)
    return [each for each in found if isinstance(each, dict)] if isinstance(found, list) else []


def objects(value: Any) -> dict[str, Any]:
    """An object, or an empty one in the place of anything else."""
    return value if isinstance(value, dict) else {}
