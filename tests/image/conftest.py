"""The fixtures `image` and `run_image`, and the rule for machines that can't build one.

Every test that asks for the image bears the marker `image`. Where root, buildah or debootstrap are missing it
is skipped, with one line that says what to install; with REQUIRE_IMAGE=1 (CI) the same is a failure.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.image.building import Builder, Built, ImageUnavailableError, base, require
from tests.realkafka import KafkaCluster, KafkaUnavailableError
from tests.realkafka.members import Member
from tests.unavailable import give_up

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

UNAVAILABLE = pytest.StashKey[str]()
UNSHARE = ("/usr/bin/unshare", "--pid", "--mount", "--fork", "--kill-child")

# The container's file system is read-only but for /tmp. Its process 1 is what is given, as the image's user.
# Its network is this machine's.
CONTAINER = """
set -e
root=$1; user=$2; code=$3; folder=$4; shift 4
mount --bind "$root" "$root"
mount -t proc proc "$root/proc"
mount --rbind /dev "$root/dev"
mount -t tmpfs tmpfs "$root/tmp"
if [ -n "$code" ]; then
    mount --bind "$code" "$root$folder"
    mount -o remount,bind,ro "$root$folder"
fi
mount -o remount,bind,ro "$root"
exec chroot --userspec="$user" "$root" /bin/sh -c 'cd "$0" && exec "$@"' "$folder" "$@"
"""


@pytest.hookimpl(tryfirst=True)  # before -m chooses
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if "image" in getattr(item, "fixturenames", ()):
            item.add_marker("image")


def pytest_collection_finish(session: pytest.Session) -> None:
    """Make the base here, where no test's time-out runs, and only when a test needs it."""
    chosen = any(item.get_closest_marker("image") for item in session.items)
    if session.config.option.collectonly or not chosen:
        return
    try:
        require()
        base()
    except ImageUnavailableError as error:
        session.config.stash[UNAVAILABLE] = str(error)


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    reason = item.config.stash.get(UNAVAILABLE, None)
    if reason is not None and item.get_closest_marker("image") is not None:
        give_up("image", reason)


@pytest.fixture(scope="session")
def image_builder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Builder]:
    """Builds images into a store of the run's own."""
    builder = Builder(tmp_path_factory.mktemp("image"))
    try:
        yield builder
    finally:
        builder.close()


@pytest.fixture(scope="session")
def image(image_builder: Builder) -> Built:
    """The image, built once a run, and its root file system."""
    return image_builder.build()


@pytest.fixture
def run_image(image: Built, tmp_path: Path) -> Iterator[Callable[..., Member]]:
    """Run it: run_image("version"), run_image(entry=["python3", ..]), run_image("run", .., code=folder).

    Process 1 of a process id namespace of its own. Signals go to `process_1`.
    """
    started: list[Member] = []

    def run(*arguments: str, entry: list[str] | None = None, code: Path | None = None, **env: str) -> Member:
        config = image.config
        assert isinstance(config["Entrypoint"], list)
        assert isinstance(config["Env"], list)
        argv = [*(config["Entrypoint"] if entry is None else entry), *arguments]
        environment = dict(each.split("=", 1) for each in config["Env"]) | env
        script = tmp_path / "container.sh"
        script.write_text(CONTAINER, encoding="utf-8")
        given = [str(image.root), str(config["User"]), str(code or ""), str(config["WorkingDir"])]
        member = Member(
            "container",
            [*UNSHARE, "/bin/sh", str(script), *given, *argv],
            tmp_path,
            environment,
        )
        started.append(member)
        return member

    try:
        yield run
    finally:
        for each in started:
            each.kill()
            print("\n".join([f"--- {each!r}", *each.lines]))


@pytest.fixture
def image_kafka() -> Iterator[KafkaCluster]:
    """A broker. Where there is none the test is skipped, or fails in CI."""
    try:
        with KafkaCluster() as cluster:
            yield cluster
    except KafkaUnavailableError as error:
        give_up("image", str(error))


@pytest.fixture(scope="session")
def process_1() -> Callable[[Member], int]:
    """The process id, as this machine sees it, of a container's process 1."""

    def find(member: Member) -> int:
        children = Path(f"/proc/{member.pid}/task/{member.pid}/children").read_text(encoding="ascii").split()
        return int(children[0])

    return find
