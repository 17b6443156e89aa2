"""What gRPC costs: processor time of our own HTTP/2 connection, beside the library's server.

    make bench NAME=grpc [ARGS="door"]

Prints one JSON object per figure.
"""

from __future__ import annotations

import sys

from bench.figures import grpc_door

FIGURES = {
    "door": grpc_door.run,
}

if __name__ == "__main__":
    for name in sys.argv[1:] or FIGURES:
        FIGURES[name]()
