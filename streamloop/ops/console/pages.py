"""The page's files, from the package, with the headers that keep it to itself.

The policy allows scripts and styles from files of ours, and connections to us; nothing inline, nothing from
elsewhere, no frame around it, and no text that becomes markup (trusted types: none). Called by
``application``.
"""

from __future__ import annotations

from importlib import resources
from typing import TYPE_CHECKING, Final

from streamloop.ops.web import Answer

if TYPE_CHECKING:
    from streamloop.ops.web import Handler, Request

POLICY: Final = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self'",
        "connect-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
HEADERS: Final = (
    ("Content-Security-Policy", POLICY),
    ("Referrer-Policy", "no-referrer"),
    ("X-Frame-Options", "DENY"),
    ("Cross-Origin-Opener-Policy", "same-origin"),
    ("Cross-Origin-Resource-Policy", "same-origin"),
    ("Permissions-Policy", "camera=(), geolocation=(), microphone=(), payment=(), usb=()"),
)
"""For every answer below /console, those of the API too."""
_KINDS: Final = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}


def page_routes(base: str) -> dict[str, dict[str, Handler]]:
    """The files by their path; ``base/`` is the page itself. They are read once."""
    routes: dict[str, dict[str, Handler]] = {}
    for file in (resources.files(__package__) / "static").iterdir():
        kind = _KINDS.get(file.name.rpartition(".")[2])
        if kind is None:
            continue
        path = f"{base}/" if file.name == "index.html" else f"{base}/static/{file.name}"
        routes[path] = {"GET": _serving(Answer(200, file.read_bytes(), kind, HEADERS))}
    return routes


def _serving(answer: Answer) -> Handler:
    def serve(_request: Request) -> Answer:
        return answer

    return serve


def redirect(to: str) -> Answer:
    """Go there."""
    return Answer(302, b"", "text/plain; charset=utf-8", (("Location", to), *HEADERS))
