"""`python -m tests.realkafka fetch` gets the jars; `.. run [nodes]` runs a cluster until Ctrl-C."""

import signal
import sys

from tests.realkafka.cluster import KafkaCluster
from tests.realkafka.jars import KafkaUnavailableError, fetch_jars, java


def main(argv: list[str]) -> int:
    try:
        match argv:
            case ["fetch"]:
                java()
                print(fetch_jars())
            case ["run", *count]:
                with KafkaCluster(nodes=int(count[0]) if count else 1) as cluster:
                    print(cluster.bootstrap, flush=True)
                    ends = {signal.SIGINT, signal.SIGTERM}
                    signal.pthread_sigmask(signal.SIG_BLOCK, ends)  # only now: the nodes must not inherit it
                    signal.sigwait(ends)
            case _:
                print(__doc__, file=sys.stderr)
                return 2
    except KafkaUnavailableError as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
