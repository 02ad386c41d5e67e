"""`python -m tests.tools build [NAME..]` builds the programs (by default all) and prints their paths."""

import sys

from tests.tools.build import TOOLS, ToolUnavailableError, build


def main(argv: list[str]) -> int:
    known = {tool.name: tool for tool in TOOLS}
    match argv:
        case ["build", *names] if set(names) <= known.keys():
            try:
                for name in names or known:
                    print(build(known[name]), flush=True)
            except ToolUnavailableError as error:
                print(error, file=sys.stderr)
                return 1
            return 0
        case _:
            print(__doc__, file=sys.stderr)
            return 2


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
