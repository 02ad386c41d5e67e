"""A base image from Debian's own packages, and the image of the Dockerfile on top of it.

The published base can't be had everywhere; debootstrap makes the nearest thing: the same Debian release with
its Python. It is kept in the cache of the tools, since that takes a minute or two. The image is built anew in
each run. What calls it: the fixture `image`. It changes nothing outside its folders.
"""

from __future__ import annotations

import fcntl
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tests.realkafka.jars import tools_cache
from tests.realkafka.members import ROOT

if TYPE_CHECKING:
    from collections.abc import Mapping

RELEASE = "bookworm"
PACKAGES = "python3,python3-venv,ca-certificates"
BASE = f"localhost/python-base:{RELEASE}"
NAME = "localhost/streamloop:test"
CERTIFICATES = Path("/etc/ssl/certs/ca-certificates.crt")
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
STEP_SECONDS = 900.0


class ImageUnavailableError(Exception):
    """An image can't be built on this machine. The text says what is missing and how to install it."""


def require() -> None:
    """ImageUnavailableError unless everything is here that building and running needs."""
    if sys.platform != "linux" or os.geteuid() != 0:
        raise ImageUnavailableError("building the image in a chroot needs Linux and root")
    for program in ("buildah", "debootstrap", "unshare"):
        if shutil.which(program) is None:
            raise ImageUnavailableError(
                f"{program} is not on PATH (Debian: apt-get install buildah debootstrap)"
            )


def base() -> Path:
    """The base's root file system as a tar file; made when it is not in the cache yet."""
    folder = tools_cache() / f"debian-{RELEASE}-python3-1"
    path = folder.with_suffix(".tar")
    tools_cache().mkdir(parents=True, exist_ok=True)
    with path.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.is_file():
            making = folder.with_name(f".{folder.name}")
            shutil.rmtree(making, ignore_errors=True)
            try:
                _run("debootstrap", "--variant=minbase", f"--include={PACKAGES}", RELEASE, str(making))
                shutil.rmtree(making / "var/cache/apt", ignore_errors=True)
                shutil.rmtree(making / "var/lib/apt/lists", ignore_errors=True)
                _run("tar", "-C", str(making), "-c", "-f", f"{path}.new", ".")
                Path(f"{path}.new").rename(path)
            finally:
                shutil.rmtree(making, ignore_errors=True)
    return path


@dataclass(frozen=True, slots=True)
class Built:
    """An image that was built, and its root file system."""

    config: Mapping[str, object]
    """What the image says of itself: User, Entrypoint, Cmd, Env, Labels, WorkingDir."""
    root: Path


class Builder:
    """buildah with a store of its own in `folder`. Call close() at the end."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._mounted: list[str] = []

    def build(self) -> Built:
        """Build the Dockerfile of the project, and mount what came out."""
        scratch = self._buildah("from", "scratch").strip()
        self._buildah("add", scratch, str(base()), "/")
        self._buildah("config", "--env", f"PATH={PATH}", scratch)
        self._buildah("commit", "--rm", scratch, BASE)
        self._buildah(
            *("build", "--isolation", "chroot", "--pull-never", "--build-arg", f"PYTHON_IMAGE={BASE}"),
            *(word for each in self._shared() for word in ("--volume", each)),
            *("--tag", NAME, str(ROOT)),
        )
        described = json.loads(self._buildah("inspect", "--type", "image", NAME))
        return Built(described["OCIv1"]["config"], self._mount(NAME))

    def _mount(self, name: str) -> Path:
        container = self._buildah("from", "--pull-never", name).strip()
        root = Path(self._buildah("mount", container).strip())
        self._mounted.append(container)
        return root

    def _shared(self) -> list[str]:
        """What the build borrows from this machine: how to reach the package index."""
        pip = self._folder / "pip.conf"
        pip.write_text(_pip_configuration(), encoding="utf-8")
        shared = [f"{pip}:/etc/pip.conf:ro"]
        if CERTIFICATES.is_file():
            shared.append(f"{CERTIFICATES}:{CERTIFICATES}:ro")
        return shared

    def build_from(self, dockerfile: str, context: Path, name: str) -> Path:
        """Build another image, whose stages may begin with NAME and BASE; returns its root file system."""
        path = context / "Dockerfile"
        path.write_text(dockerfile, encoding="utf-8")
        self._buildah(
            *("build", "--isolation", "chroot", "--pull-never"),
            *(word for each in self._shared() for word in ("--volume", each)),
            *("--tag", name, "--file", str(path), str(context)),
        )
        return self._mount(name)

    def close(self) -> None:
        """Unmount and forget everything."""
        for container in self._mounted:
            self._buildah("umount", container)
        self._buildah("rm", "--all")
        self._buildah("rmi", "--all", "--force")

    def _buildah(self, *arguments: str) -> str:
        store = ("--root", str(self._folder / "store"), "--runroot", str(self._folder / "run"))
        return _run("buildah", *store, *arguments)


def _pip_configuration() -> str:
    """How this machine's pip reaches its index, for the pip of the build."""
    lines = ["[global]"]
    if CERTIFICATES.is_file():
        lines.append(f"cert = {CERTIFICATES}")
    done = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], capture_output=True, text=True, check=False
    )
    for line in done.stdout.splitlines():
        name, _, value = line.partition("=")
        key = name.rpartition(".")[2]
        if key in ("index-url", "extra-index-url", "trusted-host", "timeout", "proxy", "default-timeout"):
            lines.append(f"{key.removeprefix('default-')} = {value.strip(chr(39))}")
    return "\n".join(dict.fromkeys(lines)) + "\n"


def _run(*argv: str) -> str:
    # Behind everything else on the machine.
    done = subprocess.run(
        ["nice", "-n", "15", *argv], capture_output=True, text=True, timeout=STEP_SECONDS, check=False
    )
    if done.returncode != 0:
        last = "\n".join((done.stdout + done.stderr).splitlines()[-25:])
        raise AssertionError(f"{' '.join(argv[:8])} ended with {done.returncode}:\n{last}")
    return done.stdout
