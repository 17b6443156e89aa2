"""What ``escrowmq status`` prints with ``-o json``: the broker's answer, and the largest lag."""

from __future__ import annotations

from escrowmq.cli.derived_shapes import derived
from escrowmq.cli.shapes import LedgerReportShape
from escrowmq.protocol.own_headers import StatusAnswer

#: Keys that have another name than the field of the answer: the unit stands last.
RENAMED = {"flush_ms_median": "flush_median_ms", "flush_ms_p99": "flush_p99_ms"}
#: Fields that say how the answer came, not how the broker is.
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
