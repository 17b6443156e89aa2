"""What gRPC costs: processor time of calls, memory of clients, and the way of a back-check.

    make bench NAME=grpc [ARGS="door cost telemetry checks in-flight"]

Prints one JSON object per figure.
"""

from __future__ import annotations

import sys

from bench.figures import grpc_clients, grpc_cost, grpc_door

FIGURES = {
    "door": grpc_door.run,
    "cost": grpc_cost.run,
    "telemetry": grpc_clients.telemetry,
    "checks": grpc_clients.checks,
    "in-flight": grpc_clients.in_flight,
}

if __name__ == "__main__":
    for name in sys.argv[1:] or FIGURES:
        FIGURES[name]()
