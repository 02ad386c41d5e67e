"""``streamloop doctor`` without a broker: what an address answers is told apart, and nothing that is met
ends it."""

from __future__ import annotations

import json
import re
import resource
import socket
import struct
import threading
import time
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner, Result
from confluent_kafka import KafkaError, KafkaException
from hypothesis import given
from hypothesis import strategies as st

from streamloop import StreamLoop
from streamloop.cli import main as cli
from streamloop.doctor import examine as examination
from streamloop.doctor import groups, process, wire
from streamloop.doctor.addresses import look_at_bootstrap, parse, tls_context, uses
from streamloop.doctor.examine import examine
from streamloop.doctor.finding import Finding, Level, Report, error, ok, unknown, warn
from streamloop.doctor.patient import OutOfTimeError, Patient
from streamloop.doctor.wire import Mistake, Step, probe
from streamloop.preflight import topics_of
from streamloop.settings import Settings
from tests.running_loop import RunningLoop

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

NOBODY = "127.0.0.1:9"


def patient(wait: float = 30.0, environ: dict[str, str] | None = None, **settings: Any) -> Patient:
    loop: StreamLoop[Any] = StreamLoop("billing", **{"brokers": NOBODY, **settings})

    @loop.consumer("orders", retry_topics=["30s"])
    async def charge(_value: bytes) -> None: ...

    assembly = loop.assemble()
    return Patient(
        assembly.settings, assembly, topics_of(assembly), time.monotonic() + wait, environ=environ or {}
    )


# ---------------------------------------------------------------------------------------------- one address


@contextmanager
def server(serve: Callable[[socket.socket], None]) -> Iterator[int]:
    """Serves one connection after the other on 127.0.0.1; gives the port."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.1)
        over = threading.Event()

        def run() -> None:
            while not over.is_set():
                try:
                    connection, _ = listener.accept()
                except OSError:
                    continue
                with connection:
                    connection.settimeout(5)
                    try:
                        serve(connection)
                    except OSError:
                        pass

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield listener.getsockname()[1]
        finally:
            over.set()
            thread.join()


def request(connection: socket.socket) -> tuple[int, int]:
    """Read a request; its key and version."""
    (size,) = struct.unpack(">i", connection.recv(4))
    body = connection.recv(size)
    key, version = struct.unpack_from(">hh", body)
    return key, version


def answer(connection: socket.socket, correlation: int, body: bytes) -> None:
    connection.sendall(struct.pack(">ii", len(body) + 4, correlation) + body)


def look(port: int, mechanism: str | None = None, timeout: float = 3.0) -> wire.Probe:
    return probe("127.0.0.1", port, tls=None, mechanism=mechanism, timeout=timeout)


def test_a_broker_from_before_features_answers_the_old_form() -> None:
    def old(connection: socket.socket) -> None:
        assert request(connection) == (18, 3)
        answer(connection, 18, struct.pack(">hi", 35, 0))
        assert request(connection) == (18, 0)
        answer(connection, 18, struct.pack(">hihhhhhh", 0, 2, 3, 0, 5, 18, 0, 2))
        assert request(connection) == (3, 1)
        answer(connection, 3, bytes(8))

    with server(old) as port:
        found = look(port)
    assert (found.failed, found.apis, found.features) == (None, {3: (0, 5), 18: (0, 2)}, {})


def web_page(connection: socket.socket) -> None:
    connection.recv(64)
    connection.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")


def closes(connection: socket.socket) -> None:
    connection.recv(64)


def half(connection: socket.socket) -> None:
    connection.recv(64)
    connection.sendall(b"\0\0")


def endless(connection: socket.socket) -> None:
    connection.recv(64)
    connection.sendall(struct.pack(">ii", 2**31 - 1, 18) + b"x" * 100)


def empty(connection: socket.socket) -> None:
    request(connection)
    answer(connection, 18, b"")


def cut_off(connection: socket.socket) -> None:
    request(connection)
    answer(connection, 18, b"\0\0\x05\0")


@pytest.mark.parametrize("serve", [web_page, closes, half, endless, empty, cut_off])
def test_what_is_no_kafka_is_said_to_be_none(serve: Callable[[socket.socket], None]) -> None:
    with server(serve) as port:
        found = look(port)
    assert (found.failed, found.mistake) == (Step.KAFKA, Mistake.NONE)
    assert found.why


def test_an_address_that_takes_the_connection_and_says_nothing_is_given_up() -> None:
    over = threading.Event()

    def silent(_connection: socket.socket) -> None:
        over.wait(20)

    with server(silent) as port:
        try:
            found = look(port, timeout=0.3)
        finally:
            over.set()
    assert (found.failed, found.why) == (Step.KAFKA, "no answer in time")


def test_a_login_step_that_answers_nonsense_is_the_step_that_failed() -> None:
    def serve(connection: socket.socket) -> None:
        request(connection)
        answer(connection, 18, b"\0\0\x01" + bytes(4) + b"\0")
        request(connection)
        answer(connection, 17, b"\0\0\0\0\0\x09\x7f\xff")

    with server(serve) as port:
        found = look(port, "PLAIN")
    assert found.failed is Step.LOGIN


@given(st.binary(max_size=400))
def test_no_bytes_of_an_answer_raise_anything_but_an_oserror(body: bytes) -> None:
    try:
        apis, features = wire._flexible(b"\0\0" + body)
    except OSError:
        return
    assert len(apis) + len(features) <= len(body)


def test_a_name_that_takes_for_ever_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    over = threading.Event()

    def slow(*_: Any, **__: Any) -> Any:
        over.wait(20)
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", slow)
    try:
        found = probe("slow.example", 1, tls=None, mechanism=None, timeout=0.2)
    finally:
        over.set()
    assert (found.failed, found.why) == (Step.NAME, "no answer in time")


@pytest.mark.parametrize(
    ("written", "host", "port"),
    [
        ("kafka:9093", "kafka", 9093),
        ("kafka", "kafka", 9092),
        ("SASL_SSL://kafka:9093", "kafka", 9093),
        ("[::1]:9094", "::1", 9094),
        ("[::1]", "::1", 9092),
    ],
)
def test_an_address_has_a_host_and_a_port(written: str, host: str, port: int) -> None:
    assert parse(written) == (host, port)


def test_how_to_connect_is_read_from_settings_and_from_properties() -> None:
    assert uses(Settings()) == (False, None)
    assert uses(Settings(security_protocol="sasl_ssl", sasl_mechanism="PLAIN")) == (True, "PLAIN")
    passed = Settings.model_validate(
        {"kafka": {"common": {"security.protocol": "SASL_PLAINTEXT", "sasl.mechanism": "SCRAM-SHA-256"}}}
    )
    assert uses(passed) == (False, "SCRAM-SHA-256")


def test_certificates_that_can_t_be_read_are_a_finding() -> None:
    with pytest.raises(OSError, match="No such file"):
        tls_context(Settings(ssl_ca_location="/nowhere.pem"))
    sick = patient(security_protocol="ssl", ssl_certificate_location="/nowhere.pem", ssl_key_location="/no")
    report = examine(sick)
    [found] = report.of("broker.address")
    assert found.level is Level.ERROR
    assert "our own certificates can't be used" in found.found


def test_certificates_that_only_the_client_can_use_leave_the_address_unknown() -> None:
    with server(closes) as port:
        given: dict[str, Any] = {
            "kafka": {"common": {"ssl.keystore.location": "/keys.p12"}},
            "security_protocol": "ssl",
        }
        sick = patient(brokers=f"127.0.0.1:{port}", **given)
        [found] = look_at_bootstrap(sick)
    assert found.level is Level.UNKNOWN
    assert "can't use ssl.keystore.location" in found.found
    assert sick.reached  # so that the client gets its whole time


def test_addresses_that_say_nothing_are_waited_for_together() -> None:
    over = threading.Event()
    both = threading.Barrier(2, timeout=20)
    met: list[str] = []

    def silent(name: str) -> Callable[[socket.socket], None]:
        def serve(_connection: socket.socket) -> None:
            if name not in met:
                met.append(name)
                both.wait()  # the other one has been asked, too, before this one is given up
            over.wait(20)

        return serve

    with server(silent("one")) as one, server(silent("two")) as two:
        sick = patient(brokers=f"127.0.0.1:{one},127.0.0.1:{two}", wait=2.0)
        try:
            found = list(look_at_bootstrap(sick))
        finally:
            over.set()
    assert not both.broken
    assert sorted(met) == ["one", "two"]
    assert [each.level for each in found] == [Level.ERROR, Level.ERROR]


# ------------------------------------------------------------------------------------------- the examination


def test_without_a_broker_what_needs_one_is_unknown_and_the_rest_is_looked_at() -> None:
    report = examine(patient())
    assert [each.check for each in report.findings if each.level is Level.ERROR] == [
        "broker.address",
        "broker.login",
    ]
    for check in ("topic", "access", "group", "clock"):
        assert [each.level for each in report.of(check)] == [Level.UNKNOWN]
    assert report.of("limits.settings")
    assert report.of("member.probes")
    assert report.exit_code() == 1


def test_each_finding_that_is_not_good_says_what_it_means_or_what_to_do() -> None:
    for finding in examine(patient()).findings:
        if finding.level in (Level.WARN, Level.ERROR):
            assert finding.means
            assert finding.do


def kafka_error() -> Exception:
    return KafkaException(KafkaError(KafkaError._TRANSPORT))


@pytest.mark.parametrize(
    ("met", "said"),
    [
        (OutOfTimeError(), "the time was over"),
        (TimeoutError(), "no answer in time"),
        (kafka_error(), "Not looked at to its end"),
        (RuntimeError("boom"), "RuntimeError: boom"),
    ],
)
def test_what_one_look_meets_does_not_keep_the_others(
    monkeypatch: pytest.MonkeyPatch, met: Exception, said: str
) -> None:
    def fails(_patient: Patient) -> Iterator[Finding]:
        yield ok("first", "", "as it should be")
        raise met

    def works(_patient: Patient) -> Iterator[Finding]:
        yield ok("second", "", "too")

    monkeypatch.setattr(examination, "LOOKS", (("first", fails), ("second", works)))
    report = examine(patient())
    assert [each.level for each in report.findings] == [Level.OK, Level.UNKNOWN, Level.OK]
    assert said in report.findings[1].found


def test_when_the_time_is_over_the_rest_says_so() -> None:
    report = examine(patient(wait=0.0))
    assert any("the time was over" in each.found for each in report.of("broker.address"))


def test_exit_codes_and_counts() -> None:
    report = Report([ok("a", "", "x"), unknown("b", "", "x"), warn("c", "", "x", "y", "z")])
    assert (report.exit_code(), report.exit_code(strict=True)) == (0, 1)
    report.findings.append(error("d", "", "x", "y", "z", "command"))
    assert report.exit_code() == 1
    found = report.to_json()
    assert found["counts"] == {"ok": 1, "warn": 1, "error": 1, "unknown": 1}
    assert found["findings"][3] == {
        "level": "error",
        "check": "d",
        "about": "",
        "found": "x",
        "means": "y",
        "do": "z",
        "commands": ["command"],
    }


# ----------------------------------------------------------------------------------------------- the process


def levels(findings: Iterator[Finding]) -> dict[str, Level]:
    return {each.check: each.level for each in findings}


def test_limits_that_fit_are_good_and_those_that_do_not_name_the_setting() -> None:
    good = levels(process.look_at_limits(patient(termination_grace="90s"), lambda: 2**30))
    assert good == dict.fromkeys(
        ("limits.settings", "limits.memory", "limits.grace", "limits.files"), Level.OK
    )
    short = levels(process.look_at_limits(patient(termination_grace="40s"), lambda: 2**30))
    assert short["limits.grace"] is Level.WARN  # 25 s of drain fit, all that may follow does not
    tight = list(process.look_at_limits(patient(termination_grace="20s"), lambda: 64 * 2**20))
    assert {each.about for each in tight if each.level is Level.ERROR} == {
        "drain_timeout",
        "high_watermark_bytes",
    }
    assert levels(process.look_at_limits(patient(), lambda: None))["limits.memory"] is Level.UNKNOWN


def test_too_few_open_files_for_the_handlers_is_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _which: (256, 1024))
    [found] = [
        each for each in process.look_at_limits(patient(concurrency=500)) if each.check == "limits.files"
    ]
    assert found.level is Level.WARN
    assert "256 files, and about 615 are needed" in found.found


def test_a_collector_that_listens_and_one_that_does_not() -> None:
    with server(lambda _connection: None) as port:
        here = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{port}"}
        [metrics, traces] = process.look_at_telemetry(patient(environ=here))
        assert (metrics.level, traces.level) == (Level.OK, Level.OK)
    away = {**here, "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:9/v1/traces"}
    found = list(process.look_at_telemetry(patient(environ=away, metrics_exporter="none")))
    assert [each.level for each in found] == [Level.WARN]
    assert "at 127.0.0.1:9" in found[0].found
    assert [each.level for each in process.look_at_telemetry(patient())] == [Level.OK]
    assert [
        each.level
        for each in process.look_at_telemetry(patient(environ={"OTEL_EXPORTER_OTLP_ENDPOINT": "http://x:y"}))
    ] == [Level.WARN, Level.WARN]


def test_the_probes_of_a_member_that_runs_here() -> None:
    async def charge(_value: bytes) -> None: ...

    with RunningLoop(charge) as running:
        address = running.run.operations.urls["ops_address"].removeprefix("http://")
        found = {each.about: each for each in process.look_at_listeners(patient(ops_address=address))}
        assert found["live"].level is Level.OK
    gone = list(process.look_at_listeners(patient(ops_address=address)))
    assert [each.level for each in gone] == [Level.UNKNOWN]
    assert [each.level for each in process.look_at_listeners(patient())] == [Level.WARN]


def test_something_else_on_the_port_of_the_probes_is_an_error() -> None:
    with server(closes) as port:
        found = list(process.look_at_listeners(patient(ops_address=f"127.0.0.1:{port}")))
    assert {each.level for each in found} == {Level.ERROR}


# ------------------------------------------------------------------------------------------------- the group


class Described:
    """A client that describes a group as a test says, one description after the other."""

    def __init__(self, *states: Any) -> None:
        self.states = list(states)

    def describe_consumer_groups(self, names: list[str], **_: Any) -> dict[str, Any]:
        state = self.states.pop(0) if len(self.states) > 1 else self.states[0]

        class Answer:
            def result(self, _timeout: float) -> Any:
                if isinstance(state, Exception):
                    raise state
                return state

        return {names[0]: Answer()}


class Group:
    def __init__(self, state: Any, kind: Any, assignor: str) -> None:
        self.state, self.type, self.partition_assignor = state, kind, assignor
        self.members: list[Any] = []


def test_a_rebalance_that_ends_is_waited_for_and_one_that_does_not_is_said() -> None:
    from confluent_kafka import ConsumerGroupState as State
    from confluent_kafka import ConsumerGroupType as Type

    moving = Group(State.PREPARING_REBALANCING, Type.CLASSIC, "")
    coordinator = KafkaException(KafkaError(KafkaError.NOT_COORDINATOR))
    for states, expected in (
        ((coordinator, moving, Group(State.EMPTY, Type.CLASSIC, "")), ["group.members"]),
        ((moving,), ["group.state", "group.members"]),
    ):
        sick = patient()
        now = [time.monotonic()]
        sick.clock = lambda now=now: now[0]  # type: ignore[misc]
        sick.sleep = lambda seconds, now=now: now.__setitem__(0, now[0] + seconds)  # type: ignore[misc]
        sick.client = Described(*states)
        assert [each.check for each in groups._group(sick, "billing", None)] == expected


# ----------------------------------------------------------------------------------------------- the command


def test_the_page_has_every_check_and_no_other() -> None:
    root = Path(__file__).parents[1]
    source = "\n".join(each.read_text("utf-8") for each in (root / "streamloop" / "doctor").glob("*.py"))
    areas = "limits|broker|topic|access|group|clock|telemetry|member"
    made = set(re.findall(rf'\n? *"((?:{areas})(?:\.[a-z]+)?)",', source)) - set(examination.NEED_LOGIN)
    page = (root / "docs" / "doctor.md").read_text("utf-8")
    named = set(re.findall(rf"`((?:{areas})(?:\.[a-z]+)?)`", page.partition("## What is looked at")[2]))
    # group.version is the name of a feature.
    assert named == (made | {"clock", "telemetry"}) - {"limits", "group.version"}


@pytest.fixture
def doctor(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    import sys

    monkeypatch.setattr("streamloop.cli.doctor.leave", sys.exit)

    def call(*arguments: str, findings: list[Finding] | None = None) -> Result:
        if findings is not None:

            def fake(_patient: Patient, told: Callable[[Finding], None]) -> Report:
                for each in findings:
                    told(each)
                return Report(list(findings))

            monkeypatch.setattr(examination, "examine", fake)
        return CliRunner().invoke(cli.main, ["doctor", *arguments], prog_name="streamloop")

    return call


def test_without_brokers_nothing_is_looked_at_and_the_exit_code_is_2(doctor: Callable[..., Result]) -> None:
    result = doctor()
    assert result.exit_code == 2
    assert "brokers is not set" in result.stderr
    result = doctor("nowhere:loop", "--brokers", NOBODY)
    assert result.exit_code == 2
    assert "There is no module 'nowhere'" in result.stderr
    assert doctor("--brokers", NOBODY, "--wait", "soon").exit_code == 2
    assert doctor("--brokers", NOBODY, "--set", "kafka.common.no.such=1").exit_code == 2


def test_without_a_loop_topics_are_not_looked_at_and_that_is_said(doctor: Callable[..., Result]) -> None:
    result = doctor("--brokers", NOBODY, "--wait", "10s", "--json")
    assert result.exit_code == 1
    found = json.loads(result.stdout)
    assert [each["level"] for each in found["findings"] if each["check"] == "broker.address"] == ["error"]


def test_findings_are_printed_with_what_to_do_and_control_characters_are_not(
    doctor: Callable[..., Result],
) -> None:
    found = [
        ok("good", "", "all is well"),
        error("bad", "x", "it says \x1b[31mred", "it fails", "mend it", "kafka-topics.sh --create"),
    ]
    result = doctor("--brokers", NOBODY, findings=found)
    assert result.exit_code == 1
    assert "all is well" not in result.stdout
    assert "\x1b" not in result.stdout
    assert "        it fails\n        mend it\n            kafka-topics.sh --create\n" in result.stdout
    assert result.stdout.splitlines()[-1].startswith(
        "1 ok, 0 warn, 1 error, 0 unknown (--all shows what is ok)"
    )
    assert "all is well" in doctor("--brokers", NOBODY, "--all", findings=found).stdout


def test_a_warning_is_exit_code_1_when_it_is_strict(doctor: Callable[..., Result]) -> None:
    found = [warn("w", "", "hm", "it may fail", "look")]
    assert doctor("--brokers", NOBODY, findings=found).exit_code == 0
    assert doctor("--brokers", NOBODY, "--strict", findings=found).exit_code == 1
