"""The probes and metrics listener's paths: /startup, /ready, /live, /metrics. Nothing here needs a token.

What is shown holds no key, payload or error text of a message. Called by waitress's threads; answers from
the observer's values alone.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from streamloop.ops.web import Answer, Application, Request, answer_json
from streamloop.telemetry.exposition import render

if TYPE_CHECKING:
    from streamloop.ops.observer import Observer


def probes_application(observer: Observer) -> Application:
    """The application of one run."""

    def startup(_request: Request) -> Answer:
        # That it answers says it: the settings are valid, and the process is up.
        return answer_json({"status": "ok", "phase": observer.probes().phase, "reasons": []})

    def ready(_request: Request) -> Answer:
        probes = observer.probes()
        return _verdict(probes.ready, probes.why_not_ready, {"phase": probes.phase})

    def live(_request: Request) -> Answer:
        probes = observer.probes()
        ages = {
            "poll_turn_age": probes.poll_turn_ages,
            "oldest_handler_age": probes.oldest_handlers,
            "event_loop_age": probes.event_loop_age,
        }
        return _verdict(probes.live, probes.why_not_live, {"phase": probes.phase, **ages})

    def metrics(request: Request) -> Answer:
        body, kind = render(observer.scrape(), request.headers.get("accept", ""))
        return Answer(200, body, kind)

    paths = {"/startup": startup, "/ready": ready, "/live": live, "/metrics": metrics}
    return Application({path: {"GET": handler} for path, handler in paths.items()})


def _verdict(good: bool, reasons: tuple[str, ...], more: dict[str, object]) -> Answer:
    return answer_json(
        {"status": "ok" if good else "failing", "reasons": reasons, **more}, 200 if good else 503
    )
