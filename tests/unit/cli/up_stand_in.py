"""``escrowmq up`` with a stand-in for the pipeline, which prints the arguments it was given.

    python -m tests.unit.cli.up_stand_in ARGUMENTS...

If ``HUNGRY_ON`` names a CPU, the stand-in runs a busy loop on it with the scheduling policy
``SCHED_IDLE``, unless its niceness was set to another value.
"""

from __future__ import annotations

import os
import sys

from escrowmq.cli.main import main
from escrowmq.cli.run import up
from escrowmq.pipeline.priority import LEFT_OVER
from escrowmq.supervise import supervising
from tests.unit.supervise.family import KINDS

TOLD = f"""
niceness = left_over = "{LEFT_OVER}"
for name, value in zip(sys.argv, sys.argv[1:]):
    if name == "--brokers":
        brokers = value
    if value.startswith("pipeline.niceness="):
        niceness = value.partition("=")[2]
print(f"ready brokers={{brokers}} niceness={{niceness}}", flush=True)
"""
HUNGRY = """
if niceness == left_over:
    os.sched_setaffinity(0, [int(os.environ["HUNGRY_ON"])])
    os.sched_setscheduler(0, os.SCHED_IDLE, os.sched_param(0))
    while True: pass
"""
PIPELINE = KINDS["good"].replace(
    "print('ready', flush=True)", TOLD + (HUNGRY if "HUNGRY_ON" in os.environ else "")
)

ours = up._ours


def with_stand_in(command: str) -> list[str]:
    if command == "pipeline":
        return [sys.executable, "-c", PIPELINE, str(os.getpid())]
    return ours(command)


if __name__ == "__main__":
    supervising.LOOK_S = float(os.environ.get("LOOK_S", supervising.LOOK_S))
    up.STARVED_S = float(os.environ.get("STARVED_S", up.STARVED_S))
    up._ours = with_stand_in
    main(["up", *sys.argv[1:]])
