"""Fetches jars once a machine, by Maven: Apache Kafka's, from the versions pinned in tests/kafka/pom.xml.

The cache is ~/.cache/streamloop-tools, or the folder in TOOLS_CACHE. A set of jars is built in a
temporary folder and renamed, so that it is there whole or not at all; a file lock keeps two test runs from
fetching it twice. What calls it: the cluster, .ci/run (`python -m tests.realkafka fetch`) and the benchmarks.
It never changes a set that is there.
"""

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

POM = Path(__file__).resolve().parents[1] / "kafka" / "pom.xml"
FETCH_SECONDS = 900.0
JAVA_MAJOR = 17


class KafkaUnavailableError(Exception):
    """Kafka can't run on this machine. The text says what is missing and how to install it."""


def tools_cache() -> Path:
    """The folder that keeps what was fetched, across checkouts."""
    configured = os.environ.get("TOOLS_CACHE")
    return Path(configured) if configured else Path.home() / ".cache" / "streamloop-tools"


def java() -> str:
    """The path of a Java that can run Kafka. KafkaUnavailableError says what to install without one."""
    home = os.environ.get("JAVA_HOME")
    found = shutil.which("java", path=str(Path(home) / "bin")) if home else None
    found = found or shutil.which("java")
    needed = f"Kafka needs Java {JAVA_MAJOR} or newer (Debian: apt-get install openjdk-17-jre-headless)"
    if found is None:
        raise KafkaUnavailableError(f"{needed}; no java is on PATH.")
    answer = subprocess.run([found, "-version"], capture_output=True, text=True, timeout=60, check=False)
    version = re.search(r'version "(\d+)', answer.stderr + answer.stdout)
    if version is None or int(version.group(1)) < JAVA_MAJOR:
        said = (answer.stderr + answer.stdout).strip().splitlines()
        raise KafkaUnavailableError(f"{needed}; {found} says {said[0] if said else 'nothing'}.")
    return found


def fetch_jars(pom: Path = POM, name: str = "kafka") -> Path:
    """The folder with the jars that the pom names; fetched when it is not in the cache yet.

    KafkaUnavailableError when Maven is missing or can't get them.
    """
    folder = tools_cache() / f"{name}-{_version(pom, name)}"
    if folder.is_dir():
        return folder
    maven = shutil.which("mvn")
    if maven is None:
        raise KafkaUnavailableError(
            f"Kafka's jars are not in {tools_cache()} and fetching them needs Maven; no mvn is on PATH "
            "(Debian: apt-get install maven)."
        )
    folder.parent.mkdir(parents=True, exist_ok=True)
    with _locked(folder.with_name(folder.name + ".lock")):
        if not folder.is_dir():  # another run may have fetched it while this one waited
            _copy_dependencies(maven, pom, folder)
    return folder


def _version(pom: Path, name: str) -> str:
    """The pinned version, and a digest of the pom, so that any change of a pin leads to a set of its own."""
    text = pom.read_text(encoding="utf-8")
    version = re.search(rf"<{name}\.version>([^<]+)<", text)
    if version is None:
        raise ValueError(f"{pom} does not pin a property {name}.version")
    return f"{version.group(1)}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"


def _copy_dependencies(maven: str, pom: Path, folder: Path) -> None:
    building = Path(tempfile.mkdtemp(prefix=f".{folder.name}.", dir=folder.parent))
    try:
        argv = [maven, "-B", "-q", "-f", str(pom), "dependency:copy-dependencies"]
        argv += [f"-DoutputDirectory={building}", "-DincludeScope=runtime"]
        done = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=FETCH_SECONDS, check=False
        )
        if done.returncode != 0 or not any(building.glob("*.jar")):
            errors = [line for line in done.stdout.splitlines() if "ERROR" in line]
            raise KafkaUnavailableError(
                f"Maven could not fetch the jars of {pom.name} (exit {done.returncode}): "
                f"{errors[0] if errors else done.stderr.strip() or 'no message'}"
            )
        building.rename(folder)
    except subprocess.TimeoutExpired as error:
        raise KafkaUnavailableError(f"Maven did not fetch the jars within {FETCH_SECONDS:g} s.") from error
    finally:
        shutil.rmtree(building, ignore_errors=True)


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
