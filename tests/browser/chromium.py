"""Finds Chromium on this machine, or says how to get it. Playwright's own browsers are not used."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

NAMES = ("chromium", "chromium-browser", "google-chrome")
PACKAGES = ("chromium", "fonts-dejavu-core", "fonts-liberation")


class BrowserUnavailableError(Exception):
    """There is no browser. The text says how to install one."""


def executable() -> str:
    """Its path: the variable CHROMIUM, or what is found by name."""
    named = os.environ.get("CHROMIUM")
    found = named if named and Path(named).is_file() else None
    found = found or next((path for name in NAMES if (path := shutil.which(name))), None)
    if found is None:
        raise BrowserUnavailableError(
            "there is no Chromium: run 'python -m tests.browser install' (Debian: apt-get install chromium), "
            "or name it in CHROMIUM"
        )
    return found


def install() -> str:
    """Install it with apt-get where it is missing. Returns its path."""
    try:
        return executable()
    except BrowserUnavailableError:
        if shutil.which("apt-get") is None:
            raise
    root = [] if os.geteuid() == 0 else ["sudo", "-n"]
    subprocess.run([*root, "apt-get", "update", "-qq"], check=True)
    subprocess.run(
        [*root, "apt-get", "install", "-y", "-qq", "--no-install-recommends", *PACKAGES],
        check=True,
        env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
    )
    return executable()
