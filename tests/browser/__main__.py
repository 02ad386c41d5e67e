"""`python -m tests.browser install` installs Chromium where it is missing, and prints its path."""

import subprocess
import sys

from tests.browser.chromium import BrowserUnavailableError, install


def main(argv: list[str]) -> int:
    if argv != ["install"]:
        print(__doc__, file=sys.stderr)
        return 2
    try:
        print(install())
    except (BrowserUnavailableError, subprocess.CalledProcessError, OSError) as error:
        print(f"Chromium can't be installed: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
