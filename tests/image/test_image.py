"""The image holds what it needs and nothing to build with, and runs as Kubernetes would run it."""

from __future__ import annotations

import os
import re
import signal
import tomllib
from itertools import chain
from typing import TYPE_CHECKING, Any

from streamloop.version import __version__
from tests.image.building import BASE, NAME
from tests.realkafka.members import ROOT
from tests.realkafka.waiting import wait_until

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.image.building import Builder, Built
    from tests.realkafka import KafkaCluster, Member

DOCKERFILE = (ROOT / "Dockerfile").read_text(encoding="utf-8")
MEBIBYTE = 1024 * 1024

SERVICE = """
import os
from streamloop import StreamLoop

loop = StreamLoop()

@loop.consumer("orders", retry_topics=[])
async def handle(value: bytes) -> None:
    print("handled", value.decode(), "as process 1" if os.getpid() == 1 else "as a child", flush=True)
"""
SLOW_IMPORT = """
import time
print("importing", flush=True)
time.sleep(600)
"""


def test_the_base_is_pinned_by_its_tag_and_digest_and_the_version_is_the_packages() -> None:
    [image] = re.findall(r"^ARG PYTHON_IMAGE=(\S+)$", DOCKERFILE, re.MULTILINE)
    assert re.fullmatch(r"docker\.io/library/python:3\.\d+\.\d+-slim-\w+@sha256:[0-9a-f]{64}", image)
    assert set(re.findall(r"^FROM (\S+)", DOCKERFILE, re.MULTILINE)) == {"${PYTHON_IMAGE}"}
    assert re.findall(r"^ARG VERSION=(\S+)$", DOCKERFILE, re.MULTILINE) == [__version__]


def test_the_image_says_who_it_is_and_who_it_runs_as(image: Built) -> None:
    config: Any = image.config
    assert config["User"] == "10001:10001"
    assert config["Labels"]["org.opencontainers.image.version"] == __version__
    assert config["WorkingDir"] == "/app"
    assert config["Entrypoint"][-1] == "streamloop"


def test_nothing_to_build_or_install_python_with_is_left(image: Built) -> None:
    programs = {
        path.name
        for folder in ("bin", "sbin", "usr/bin", "usr/sbin", "usr/local/bin", "opt/streamloop/bin")
        for path in (image.root / folder).glob("*")
    }
    assert "streamloop" in programs
    for name in ("pip", "pip3", "uv", "gcc", "cc", "g++", "make", "ld", "cargo", "rustc", "git", "curl"):
        assert name not in programs
    modules = {path.name for path in (image.root / "opt/streamloop/lib").glob("python3*/site-packages/*")}
    assert {"streamloop", "confluent_kafka"} <= modules
    assert not modules & {"pip", "setuptools", "wheel", "hatchling", "pytest", "mypy"}
    assert not list(image.root.glob("usr/lib/python3*/ensurepip")), "pip could come back from there"
    assert not (image.root / "build").exists()


def test_its_size_is_told_and_what_is_added_to_the_base_is_small(image: Built) -> None:
    def size(folder: Path) -> int:
        files = (path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
        return sum(path.lstat().st_size for path in files)

    added = size(image.root / "opt/streamloop")
    whole = sum(size(image.root / name) for name in ("usr", "opt", "etc", "var"))
    print(f"the image: {whole / MEBIBYTE:.0f} MiB; streamloop and its packages: {added / MEBIBYTE:.0f} MiB")
    assert added < 150 * MEBIBYTE


def test_it_runs_read_only_as_10001_with_only_tmp_to_write_to(run_image: Callable[..., Member]) -> None:
    assert run_image("version").wait() == 0
    text = (
        "import os, tempfile\n"
        "print(os.getuid(), os.getgid())\n"
        "tempfile.TemporaryFile()\n"
        "try: open('/app/x', 'w')\n"
        "except OSError as error: print(error.strerror)\n"
    )
    member = run_image("-c", text, entry=["python3"])
    assert member.wait() == 0
    assert member.lines == ["10001 10001", "Read-only file system"]


def test_without_a_command_it_explains_itself(image: Built, run_image: Callable[..., Member]) -> None:
    command: Any = image.config["Cmd"]
    member = run_image(*command)
    assert member.wait() == 0
    assert any("Commands:" in line for line in member.lines)


def test_the_exit_code_is_streamloops(run_image: Callable[..., Member]) -> None:
    member = run_image("run", "nothing:loop", "--brokers", "127.0.0.1:1")
    assert member.wait() == 2
    assert "nothing" in "\n".join(member.lines)


def test_H1_a_sigterm_while_it_imports_ends_it_at_once(
    run_image: Callable[..., Member], process_1: Callable[[Member], int], tmp_path: Path
) -> None:
    """Python as process 1 would never see it, and SIGKILL would come after the grace period."""
    code = tmp_path / "code"
    code.mkdir()
    code.chmod(0o755)
    (code / "slow.py").write_text(SLOW_IMPORT, encoding="utf-8")
    member = run_image("run", "slow:loop", "--brokers", "127.0.0.1:1", code=code)
    member.wait_for_line("importing")
    os.kill(process_1(member), signal.SIGTERM)
    assert member.wait() == 128 + signal.SIGTERM


def test_H1_it_consumes_from_kafka_and_drains_at_a_sigterm_to_process_1(
    run_image: Callable[..., Member],
    process_1: Callable[[Member], int],
    image_kafka: KafkaCluster,
    tmp_path: Path,
) -> None:
    code = tmp_path / "code"
    code.mkdir()
    code.chmod(0o755)
    (code / "service.py").write_text(SERVICE, encoding="utf-8")
    source = image_kafka.create_topic(1, prefix="image")
    image_kafka.produce(source, [b"one"])
    member = run_image(
        *("run", "service:loop", "--brokers", image_kafka.bootstrap, "--group", source),
        *("--topic", f"orders={source}"),
        code=code,
        STREAMLOOP_LOG_FORMAT="json",
    )
    member.wait_for_line("handled one as a child", timeout=60)
    os.kill(process_1(member), signal.SIGTERM)
    assert member.wait(60) == 0
    wait_until(lambda: image_kafka.committed_offsets(source, source) == {0: 1}, 30, "the commit")


def test_code_and_packages_of_users_are_added_as_the_guide_says(
    image: Built, image_builder: Builder, tmp_path: Path
) -> None:
    text = (ROOT / "docs/deploy.md").read_text(encoding="utf-8")
    [_, with_packages] = re.findall(r"^```dockerfile\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    # The names of the images here; and this base has pip only inside a virtual environment.
    published = re.findall(r"^ARG PYTHON_IMAGE=docker\.io/library/(\S+)@", DOCKERFILE, re.MULTILINE)[0]
    assert with_packages.count(f"FROM {published} AS packages") == 1
    dockerfile = with_packages.replace(published, BASE).replace(
        f"registry.example.com/streamloop:{__version__}", NAME
    )
    dockerfile = dockerfile.replace("RUN pip ", "RUN python3 -m venv /pip && /pip/bin/pip ")
    (tmp_path / "requirements.txt").write_text("tomlkit\npyyaml\n", encoding="utf-8")
    (tmp_path / "app.py").write_text("import tomlkit\n", encoding="utf-8")
    root = image_builder.build_from(dockerfile, tmp_path, "localhost/billing:test")
    packages = {path.name for path in (root / "opt/streamloop/lib").glob("python3*/site-packages/*")}
    assert {"tomlkit", "streamloop"} <= packages
    assert "pip" not in packages
    assert (root / "app/app.py").is_file()
    versions = pinned_in_environment(root)
    before = pinned_in_environment(image.root)
    assert versions.items() - before.items() == {("tomlkit", versions["tomlkit"])}


def pinned_in_environment(root: Path) -> dict[str, str]:
    """Names and versions of the packages in the image's virtual environment."""
    found = (root / "opt/streamloop/lib").glob("python3*/site-packages/*.dist-info")
    return dict(path.name.removesuffix(".dist-info").rsplit("-", 1) for path in found)


def pinned(path: Path) -> dict[str, str]:
    """Names and versions of a lock file."""
    return dict(re.findall(r"^([a-z0-9._-]+)==(\S+)", path.read_text(encoding="utf-8"), re.MULTILINE))


def test_the_image_has_the_locked_version_of_every_package_that_streamloop_needs() -> None:
    image, project = pinned(ROOT / "image/requirements.lock"), pinned(ROOT / "requirements.lock")
    both = image.keys() & project.keys()
    assert {name: image[name] for name in both} == {name: project[name] for name in both}, "run `make lock`"
    assert image.keys() - project.keys() <= {"dumb-init"}
    declared = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    needed = [*declared["dependencies"], *chain(*declared["optional-dependencies"].values())]
    names = {re.split(r"[\[<>=~! ;]", each)[0].lower() for each in needed}
    assert names <= image.keys(), "run `make lock`"
    assert not image.keys() & {"pytest", "mypy", "ruff", "hypothesis"}
