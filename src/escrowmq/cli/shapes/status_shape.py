"""What ``escrowmq status`` prints with ``-o json``: the broker's answer, the lag, the ledgers."""

from __future__ import annotations

from escrowmq.cli.shapes.derived_shapes import derived
from escrowmq.cli.shapes.ledger_shape import LedgerReportShape
from escrowmq.protocol.native.status_answer import StatusAnswer

#: Keys whose name differs from the answer's field: a key ends with its unit.
RENAMED = {"flush_ms_median": "flush_median_ms", "flush_ms_p99": "flush_p99_ms"}
#: Fields about the response itself, not about the broker.
LEFT_OUT = ("form", "version", "row_count")

StatusShape = derived(
    "StatusShape",
    StatusAnswer,
    {
        "lag_max": int,
        "lag_max_group": str,
        "lag_max_topic": str,
        "ledgers": list[LedgerReportShape],
        "ledgers_left_out": int,
    },
    without=LEFT_OUT,
    renamed=RENAMED,
)
