"""The cost of the SDK, beside RocketMQ's own Python client and beside no client.

    make bench NAME=sdk [ARGS="import bulk"]

Prints one JSON object per figure. ``cpu`` needs a JDK, Maven and a package index.
"""

from __future__ import annotations

import sys

from bench.figures import sdk, sdk_marks

FIGURES = {
    "import": sdk.import_ms,
    "bulk": sdk.bulk,
    "marks": sdk_marks.marks,
    "cpu": sdk.client_cpu,
}

if __name__ == "__main__":
    for name in sys.argv[1:] or FIGURES:
        FIGURES[name]()
