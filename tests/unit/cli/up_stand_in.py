"""``escrowmq up`` with a stand-in for the pipeline, which says which broker it was told of.

python -m tests.unit.cli.up_stand_in ARGUMENTS...
"""

from __future__ import annotations

import os
import sys

from escrowmq.cli.main import main
from escrowmq.cli.up import Up
from tests.unit.cli.family import KINDS


def stand_in(up: Up) -> list[str] | None:
    if not up._places:
        return None
    up._told = up._places["broker"]
    program = KINDS["good"].replace("'ready'", f"'ready brokers={up._told}'")
    return [sys.executable, "-c", program, str(os.getpid())]


if __name__ == "__main__":
    Up._pipeline_command = stand_in  # type: ignore[assignment, method-assign] # here alone
    main(["up", *sys.argv[1:]])
