"""The examination: all looks in their order, within one bound. What one look meets does not keep the others.

Called by ``streamloop doctor``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from confluent_kafka import KafkaException

from streamloop.doctor.access import look_at_access
from streamloop.doctor.addresses import look_at_advertised, look_at_bootstrap
from streamloop.doctor.clock import look_at_clock
from streamloop.doctor.cluster import look_at_features, look_at_login
from streamloop.doctor.finding import Finding, Report, unknown
from streamloop.doctor.groups import look_at_groups
from streamloop.doctor.patient import OutOfTimeError, Patient
from streamloop.doctor.process import look_at_limits, look_at_listeners, look_at_telemetry
from streamloop.doctor.topics import look_at_topics
from streamloop.errors import StreamLoopError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

LOOKS: Final[tuple[tuple[str, Callable[[Patient], Iterator[Finding]]], ...]] = (
    ("limits", look_at_limits),
    ("broker.address", look_at_bootstrap),
    ("broker.login", look_at_login),
    ("broker.features", look_at_features),
    ("broker.advertised", look_at_advertised),
    ("topic", look_at_topics),
    ("access", look_at_access),
    ("group", look_at_groups),
    ("clock", look_at_clock),
    ("telemetry", look_at_telemetry),
    ("member.probes", look_at_listeners),
)
"""In this order: a later look stands on what an earlier one found out."""
NEED_LOGIN: Final = ("topic", "access", "group", "clock")
NEED_LOOP: Final = ("topic",)


def examine(patient: Patient, *, told: Callable[[Finding], None] = lambda _finding: None) -> Report:
    """Look at everything. ``told`` hears of each finding as it is made. Never raises for what it meets."""
    report = Report()
    began = patient.clock()
    for name, look in LOOKS:
        for finding in _guarded(patient, name, look):
            report.findings.append(finding)
            told(finding)
    report.seconds = patient.clock() - began
    return report


def _guarded(patient: Patient, name: str, look: Callable[[Patient], Iterator[Finding]]) -> Iterator[Finding]:
    if name in NEED_LOGIN and patient.metadata is None:
        yield unknown(
            name, "", "Not looked at: no broker can be asked.", do="Mend what is said above, and look again."
        )
        return
    if name in NEED_LOOP and patient.topics is None:
        yield unknown(
            name, "", "Not looked at: no loop was named.", do="Name it: streamloop doctor MODULE:LOOP."
        )
        return
    try:
        yield from look(patient)
    except OutOfTimeError:
        yield unknown(name, "", "Not looked at to its end: the time was over.", do="Give it more: --wait 2m.")
    except TimeoutError:
        yield unknown(
            name, "", "Not looked at to its end: a broker gave no answer in time.", do="Look again."
        )
    except KafkaException as problem:
        yield unknown(
            name, "", f"Not looked at to its end: {problem.args[0].str() or problem.args[0].name()}."
        )
    except StreamLoopError as problem:
        yield unknown(name, "", f"Not looked at to its end: {problem}")
    except Exception as problem:  # noqa: BLE001 - one look that fails must not hide what the others find
        yield unknown(name, "", f"Not looked at to its end ({type(problem).__name__}: {problem}).")
