"""A new user's first minutes: from ``git clone`` to the first transactional message.

    make first-hour [ARGS="plain"]

Packages are downloaded before anything is timed; their size is a figure of its own. The timed part
runs without a package index. It clones the repository, makes an environment, installs the clone,
starts a real broker (``escrowmq serve``, with Spark ``escrowmq up`` until its pipeline is ready)
and commits one transaction. Prints one JSON object per figure.
"""

from __future__ import annotations

import sys

from bench.figures.common import scratch
from bench.figures.first_hour import PLAIN, SPARK, measure

FIGURES = {"plain": PLAIN, "spark": SPARK}

if __name__ == "__main__":
    for name in sys.argv[1:] or FIGURES:
        with scratch() as folder:
            measure(FIGURES[name], folder)
