"""A stock Java producer and consumer on a broker: rates, latencies, and what the broker takes.

    make bench NAME=peers

Needs a JDK and Maven.  Prints one JSON object per figure.
"""

from __future__ import annotations

import sys

from bench.figures import peers_apache

FIGURES = {"apache": peers_apache.run}

if __name__ == "__main__":
    for name in sys.argv[1:] or FIGURES:
        FIGURES[name]()
