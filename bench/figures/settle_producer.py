"""A producer that answers every back-check with a commit, until it is ended.

python -m bench.figures.settle_producer NAME_SERVER GROUP
"""

from __future__ import annotations

import sys
import threading

from escrowmq import Producer, Resolution


def main() -> None:
    """Come online and print "ready"."""
    name_server, group = sys.argv[1:]
    with Producer(name_server, group, checker=lambda _half: Resolution.COMMIT) as producer:
        # The broker learns of this producer by its first message.
        producer.send("ready", b"")
        sys.stdout.write("ready\n")
        sys.stdout.flush()
        threading.Event().wait()


if __name__ == "__main__":
    main()
