"""Can each address be reached, and as far as the login? Says at which step it ends, and what to change.

Called by ``examine``, first for the addresses in the settings, later for those that the brokers name.
"""

from __future__ import annotations

import ssl
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from streamloop.doctor.finding import Finding, error, ok, unknown, warn
from streamloop.doctor.wire import CONSUMER_GROUP_HEARTBEAT, Mistake, Probe, Step, probe
from streamloop.settings.units import show_duration

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from streamloop.doctor.patient import Patient
    from streamloop.settings import Settings

EACH: Final = 4.0
"""Seconds for one address."""
MOST: Final = 20
"""Addresses that are tried."""
CERTIFICATE_SOON: Final = 14 * 86_400.0
DEFAULT_PORT: Final = 9092


def look_at_bootstrap(patient: Patient) -> Iterator[Finding]:
    """Each address of the setting ``brokers``."""
    addresses = patient.settings.brokers[:MOST]
    for written, found in zip(addresses, _probes(patient, list(map(parse, addresses))), strict=True):
        yield from _judge(patient, "broker.address", written, found)
        if found.apis:
            patient.apis, patient.features = found.apis, found.features
        patient.reached |= found.failed is None


def look_at_advertised(patient: Patient) -> Iterator[Finding]:
    """Each broker at the address that the cluster gives for it, where that is another one."""
    if patient.metadata is None:
        return
    known = {parse(written) for written in patient.settings.brokers}
    brokers = {(each.host, each.port): each.id for each in patient.metadata.brokers.values()}
    others = [place for place in brokers if place not in known][:MOST]
    unreachable = 0
    for place, found in zip(others, _probes(patient, others), strict=True):
        broker, about = brokers[place], f"{place[0]}:{place[1]}"
        if found.failed in (Step.NAME, Step.CONNECT):
            unreachable += 1
            yield error(
                "broker.advertised",
                about,
                f"Broker {broker} is to be found at {about} (advertised.listeners), which can't be reached "
                f"from here: "
                f"{found.why}.",
                "The first address answers, and everything after it fails: partitions of that broker are "
                "not read.",
                "Let the name resolve and the port be open from here, or correct advertised.listeners of "
                "the broker.",
            )
        else:
            yield from _judge(patient, "broker.advertised", about, found)
    if brokers and unreachable == len(brokers):
        # Whatever is asked of a broker would wait until the time is over.
        patient.metadata = None


def parse(written: str) -> tuple[str, int]:
    """Host and port of an address in the setting ``brokers``, which has been checked."""
    rest = written.partition("://")[2] or written
    if rest.startswith("["):
        host, _, port = rest[1:].partition("]")
        return host, int(port.lstrip(":") or DEFAULT_PORT)
    host, _, port = rest.partition(":")
    return host, int(port or DEFAULT_PORT)


def uses(settings: Settings) -> tuple[bool, str | None]:
    """Whether TLS is spoken, and the SASL mechanism; None: no login."""
    protocol = (
        settings.security_protocol or settings.kafka_property("admin", "security.protocol") or "plaintext"
    )
    protocol = str(protocol).lower()
    mechanism = settings.sasl_mechanism or settings.kafka_property("admin", "sasl.mechanism")
    mechanism = mechanism or settings.kafka_property("admin", "sasl.mechanisms") or "GSSAPI"
    return protocol.endswith("ssl"), str(mechanism) if protocol.startswith("sasl") else None


def tls_context(settings: Settings) -> ssl.SSLContext:
    """TLS as the clients speak it. Raises OSError or ValueError for files that can't be used."""

    def value(setting: str, name: str) -> Any:
        given = getattr(settings, setting) if setting else None
        given = settings.kafka_property("admin", name) if given is None else given
        return given.get_secret_value() if hasattr(given, "get_secret_value") else given

    context = ssl.create_default_context()
    authorities = value("ssl_ca_location", "ssl.ca.location")
    if authorities is not None:
        folder = Path(str(authorities)).is_dir()
        context.load_verify_locations(**{"capath" if folder else "cafile": str(authorities)})
    if (text := value("", "ssl.ca.pem")) is not None:
        context.load_verify_locations(cadata=str(text))
    if str(value("", "ssl.endpoint.identification.algorithm") or "https").lower() == "none":
        context.check_hostname = False
    if str(value("", "enable.ssl.certificate.verification")).lower() == "false":
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    certificate = value("ssl_certificate_location", "ssl.certificate.location")
    key = value("ssl_key_location", "ssl.key.location")
    if certificate is not None and key is not None:
        # Without the function OpenSSL would ask for a missing password on the terminal.
        password = str(value("ssl_key_password", "ssl.key.password") or "")
        context.load_cert_chain(str(certificate), str(key), lambda: password)
    return context


def _probes(patient: Patient, places: list[tuple[str, int]]) -> list[Probe]:
    """All of them at once, since one that says nothing takes its whole time."""
    if not places:
        return []
    tls, mechanism = uses(patient.settings)
    timeout = patient.left(EACH)
    context = None
    try:
        context = tls_context(patient.settings) if tls else None
    except (OSError, ValueError) as problem:
        failed = [Probe(*place) for place in places]
        for each in failed:
            each.fail(Step.TLS, f"our own certificates can't be used ({problem})")
        return failed

    def ask(place: tuple[str, int]) -> Probe:
        return probe(*place, tls=context, mechanism=mechanism, timeout=timeout, clock=patient.clock)

    with ThreadPoolExecutor(max_workers=len(places)) as pool:
        return list(pool.map(ask, places))


ONLY_LIBRDKAFKA: Final = (
    *("ssl.certificate.pem", "ssl.key.pem", "ssl.keystore.location", "ssl.providers", "ssl.engine.location"),
    "ssl.ca.certificate.stores",
)
"""Ways to give certificates that the client has and our own connection has not."""


def _judge(patient: Patient, check: str, about: str, found: Probe) -> Iterator[Finding]:
    given = [name for name in ONLY_LIBRDKAFKA if patient.settings.kafka_property("admin", name) is not None]
    if given and found.failed in (Step.TLS, Step.KAFKA) and found.mistake is not Mistake.NO_TLS:
        patient.reached = True
        yield unknown(
            check,
            about,
            f"How far TLS with {about} gets could not be told: this look can't use {given[0]} ({found.why}).",
            "The client itself can: see whether its login succeeds.",
        )
        return
    protocol = patient.settings.security_protocol or "plaintext"
    nobody = "This address is of no use: without another one that works no broker is found."
    match found.failed, found.mistake:
        case None, _:
            tls, mechanism = uses(patient.settings)
            how = [each for each in ("TLS" if tls else "", f"SASL {mechanism}" if mechanism else "") if each]
            features = f"{len(found.apis)} APIs"
            if CONSUMER_GROUP_HEARTBEAT not in found.apis:
                features += ", without KIP-848"
            yield ok(
                check,
                about,
                f"{about} ({found.ip}) speaks Kafka over {' and '.join(how) or 'plaintext'}, {features}.",
            )
        case Step.NAME, _:
            yield error(
                check,
                about,
                f"The name {found.host} does not resolve: {found.why}.",
                nobody,
                "Correct the setting brokers; in Kubernetes a name of another namespace needs it "
                "(kafka.NAMESPACE.svc).",
            )
        case Step.CONNECT, _:
            refused = "refused" in found.why
            yield error(
                check,
                about,
                f"{found.ip}:{found.port} takes no connection: {found.why}.",
                (
                    "Nothing listens there. "
                    if refused
                    else "A firewall or a NetworkPolicy drops it, or the host is down. "
                )
                + nobody,
                "Start the broker, or correct the port in the setting brokers."
                if refused
                else "Open the way from here to that port (NetworkPolicy, firewall), or correct the address.",
            )
        case Step.TLS, Mistake.NO_TLS:
            yield error(
                check,
                about,
                f"{about} speaks plaintext, and security_protocol is {protocol}.",
                nobody,
                f"Name the port of a listener with TLS, or set security_protocol to "
                f"{protocol.replace('ssl', 'plaintext')}"
                f"{'' if protocol.startswith('sasl') else ' (which is no encryption)'}.",
            )
        case Step.TLS, Mistake.CERTIFICATE:
            yield error(
                check,
                about,
                f"The certificate of {about} is not believed: {found.why}.",
                nobody,
                "Give the authority that signed it (ssl_ca_location), and reach the broker by a name that "
                "the "
                "certificate has. Do not switch the check off.",
            )
        case Step.TLS, _:
            yield error(
                check,
                about,
                f"TLS with {about} fails: {found.why}.",
                nobody,
                "Check ssl_ca_location, ssl_certificate_location, ssl_key_location and its password; the "
                "broker's log "
                "says which side refused.",
            )
        case Step.KAFKA, Mistake.WANTS_TLS:
            yield error(
                check,
                about,
                f"{about} speaks TLS, and security_protocol is {protocol}.",
                nobody,
                f"Set security_protocol to {protocol.replace('plaintext', 'ssl')}, or name the port of a "
                f"listener "
                "without TLS.",
            )
        case Step.KAFKA, _:
            yield error(
                check,
                about,
                f"{about} takes the connection and does not answer as Kafka does: {found.why}.",
                nobody,
                "Is it a broker's port (not a controller's, a proxy's, another service's)? With ssl it may "
                "want a "
                "certificate of ours (ssl_certificate_location, ssl_key_location).",
            )
        case Step.LOGIN, Mistake.WANTS_LOGIN:
            yield error(
                check,
                about,
                f"{about} wants a login, and security_protocol is {protocol}.",
                "It closes the connection at the first request.",
                f"Set security_protocol to sasl_{protocol}, with sasl_mechanism, sasl_username and "
                f"sasl_password_file.",
            )
        case Step.LOGIN, Mistake.NO_LOGIN:
            yield error(
                check,
                about,
                f"{about} asks for no login, and security_protocol is {protocol}.",
                "librdkafka's login fails there.",
                f"Name the port of a listener with SASL, or set security_protocol to "
                f"{protocol.removeprefix('sasl_')}.",
            )
        case Step.LOGIN, Mistake.MECHANISM:
            yield error(
                check,
                about,
                f"{about} {found.why.removeprefix('it ')} (sasl_mechanism); it takes "
                f"{', '.join(found.mechanisms) or 'no mechanism'}.",
                "No login succeeds.",
                "Set sasl_mechanism to one that the broker takes.",
            )
        case _:
            yield unknown(check, about, f"How far the login at {about} gets could not be told: {found.why}.")
    if found.certificate_ends is not None:
        yield from _certificate(patient, about, found.certificate_ends)


def _certificate(patient: Patient, about: str, ends: float) -> Iterable[Finding]:
    left = ends - patient.wall()
    if left < CERTIFICATE_SOON:
        yield warn(
            "broker.certificate",
            about,
            f"The certificate of {about} ends in {show_duration(max(0, round(left / 3600)) * 3600.0)}.",
            "After that no client connects any more.",
            "Have it renewed on the broker.",
        )
