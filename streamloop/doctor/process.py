"""The process and what surrounds it: settings against each other and against limits, listeners, the
collector.

Called by ``examine``. Needs no broker.
"""

from __future__ import annotations

import resource
from typing import TYPE_CHECKING, Final
from urllib.parse import urlsplit

from streamloop.doctor.finding import Finding, Level, error, ok, unknown, warn
from streamloop.doctor.wire import listens
from streamloop.http_get import get_json
from streamloop.settings import Severity, check_sums
from streamloop.settings.sums import memory_limit_of_control_group, memory_needed
from streamloop.settings.units import host_and_port, show_duration
from streamloop.shutdown import longest
from streamloop.telemetry.environment import metric_export, trace_export

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from streamloop.doctor.patient import Patient

CLIENTS: Final = 5
"""Kafka clients of a member that have connections to each broker: two Consumers, two Producers, one for
topics."""
OTHER_FILES: Final = 100
"""Libraries, logs, listeners and their connections."""
COLLECTOR_PORTS: Final = {"grpc": 4317, "http/protobuf": 4318}


def look_at_limits(
    patient: Patient, memory_limit: Callable[[], int | None] = memory_limit_of_control_group
) -> Iterator[Finding]:
    """Settings that are each right and together wrong; memory, grace period, open files."""
    settings = patient.settings
    problems = check_sums(settings, patient.consumers, memory_limit)
    for problem in problems:
        make = error if problem.severity is Severity.ERROR else warn
        means = (
            "streamloop run refuses to start."
            if problem.severity is Severity.ERROR
            else "It runs, and goes wrong in a case that will come."
        )
        yield make("limits.settings", problem.setting, problem.sentence, means, f"Change {problem.setting}.")
    if not problems:
        yield ok("limits.settings", "", "The settings fit together.")
    limit = settings.memory_limit if settings.memory_limit is not None else memory_limit()
    retries = any(consumer.retry_topics or consumer.dead_letter for consumer in patient.consumers)
    needed = memory_needed(settings, second_consumer=retries)
    if limit is None:
        yield unknown(
            "limits.memory",
            "",
            "No memory limit is known here (no control group has one, and memory_limit is not set).",
            f"With these settings messages and Python take up to {needed / 2**20:.0f} MiB.",
        )
    elif needed <= limit:
        yield ok("limits.memory", "", f"Up to {needed / 2**20:.0f} MiB of {limit / 2**20:.0f} MiB are taken.")
    if settings.termination_grace is None:
        yield unknown(
            "limits.grace",
            "",
            "The time from SIGTERM to SIGKILL is not known (termination_grace is not set).",
            f"With these settings a shutdown takes at most {show_duration(longest(settings).grace)}.",
            "Set termination_grace to the pod's terminationGracePeriodSeconds; the chart does.",
        )
    elif settings.termination_grace < longest(settings).grace:
        yield warn(
            "limits.grace",
            "",
            f"SIGKILL comes {show_duration(settings.termination_grace)} after SIGTERM, and a shutdown may "
            f"take up "
            f"to {show_duration(longest(settings).grace)}.",
            "When brokers, hooks and collector are all slow it is cut off before the member has left its "
            "group: "
            "its partitions then wait for its session to end. Nothing is lost.",
            "Raise terminationGracePeriodSeconds (termination_grace), or lower drain_timeout, "
            "shutdown_timeout or "
            "trace_flush_timeout.",
        )
    else:
        yield ok(
            "limits.grace", "", f"SIGKILL comes {show_duration(settings.termination_grace)} after SIGTERM."
        )
    yield from _files(patient)


def _files(patient: Patient) -> Iterator[Finding]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    brokers = len(patient.settings.brokers)
    handlers = sum(consumer.concurrency for consumer in patient.consumers)
    needed = CLIENTS * max(brokers, 3) + handlers + OTHER_FILES
    if soft == resource.RLIM_INFINITY or soft >= needed:
        yield ok("limits.files", "", f"This process may open {'any number of' if soft < 0 else soft} files.")
        return
    yield warn(
        "limits.files",
        "",
        f"This process may open {soft} files, and about {needed} are needed when each of {handlers} "
        f"handlers has a "
        "connection of its own.",
        "Connections fail with 'too many open files' under load.",
        f"Raise the limit (ulimit -n {needed}; at most {'any number' if hard < 0 else hard} here), or lower "
        f"concurrency.",
    )


def look_at_telemetry(patient: Patient) -> Iterator[Finding]:
    """Collectors that are to be pushed to: does something listen there?"""
    metrics = metric_export(patient.settings.metrics_exporter, patient.environ)
    traces = trace_export(patient.settings.tracing, patient.environ)
    wanted = {"METRICS": metrics.protocol} if metrics is not None else {}
    if traces is not None and traces.exporter == "otlp":
        wanted["TRACES"] = traces.protocol
    if not wanted:
        yield ok("telemetry", "", "Nothing is pushed to a collector.")
    for signal, protocol in wanted.items():
        endpoint = (
            patient.environ.get(f"OTEL_EXPORTER_OTLP_{signal}_ENDPOINT", "").strip()
            or patient.environ.get("OTEL_EXPORTER_OTLP_ENDPOINT", "").strip()
            or f"http://localhost:{COLLECTOR_PORTS[protocol]}"
        )
        about = signal.lower()
        parts = urlsplit(endpoint if "://" in endpoint else f"http://{endpoint}")
        try:
            host, port = (
                parts.hostname or "",
                parts.port or (443 if parts.scheme == "https" else COLLECTOR_PORTS[protocol]),
            )
        except ValueError:
            host, port = "", 0
        why = listens(host, port, patient.left()) if host else "it is no address"
        if not why:
            yield ok(
                "telemetry",
                about,
                f"The collector for {about} takes connections at {host}:{port} ({protocol}).",
            )
            continue
        yield warn(
            "telemetry",
            about,
            f"The collector for {about} can't be reached at {host or '?'}:{port} ({protocol}): {why}.",
            "Handling is not affected: what is pushed is dropped and counted (loop_export_failures_total).",
            "Check OTEL_EXPORTER_OTLP_ENDPOINT, its port for this protocol, and egress rules.",
        )


def look_at_listeners(patient: Patient) -> Iterator[Finding]:
    """The probes of the member that runs on this machine, if one does."""
    address = patient.settings.ops_address
    if address is None:
        yield warn(
            "member.probes",
            "",
            "ops_address is not set: there are no probes and no /metrics.",
            "Kubernetes can't tell a member that is stuck, and nobody sees its lag.",
            "Set ops_address, in a container to 0.0.0.0:9464.",
        )
        return
    host, port = host_and_port(address)
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 - compared, not listened on
    shown = f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
    if port == 0:
        yield unknown(
            "member.probes", address, "ops_address has port 0: which one a member has taken is in its log."
        )
        return
    if why := listens(host, port, patient.left(2.0)):
        yield unknown(
            "member.probes",
            address,
            f"No member answers at {shown} here: {why}.",
            "From outside a pod that is as it should be; inside, the member does not run or has another "
            "ops_address.",
        )
        return
    for path in ("live", "ready"):
        yield _probe(shown, path, patient.left(5.0))


def _probe(shown: str, path: str, timeout: float) -> Finding:
    try:
        status, answer = get_json(f"http://{shown}/{path}", timeout=timeout)
    except ValueError as problem:
        return error(
            "member.probes",
            path,
            f"http://{shown}/{path} gives no answer: {problem}.",
            "Kubernetes will restart the member, or send it nothing.",
            "Is it a member of streamloop? One whose handler holds the interpreter lock answers nothing; "
            "its log says so.",
        )
    if status == 200:
        return ok("member.probes", path, f"The member that runs here says /{path}: 200.")
    reasons = answer.get("reasons") if isinstance(answer, dict) else None
    why = "; ".join(map(str, reasons)) if isinstance(reasons, list) else ""
    return Finding(
        Level.WARN,
        "member.probes",
        path,
        f"The member that runs here says /{path}: {status}{f' ({why})' if why else ''}.",
        "It is stuck and will be restarted." if path == "live" else "It has not started yet, or is ending.",
        "See its log and /status; docs/operations.md says what each reason means.",
    )
