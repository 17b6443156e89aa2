"""JSON shape of a ledger in ``status`` and ``txn explain``: the row that a broker sends."""

from __future__ import annotations

from escrowmq.cli.shapes.broker_shapes import Shape
from escrowmq.protocol.native.ledgers import LedgerRow


class LedgerReportShape(
    LedgerRow, Shape, frozen=True, kw_only=True, array_like=False, forbid_unknown_fields=True
):
    """A ledger that a pipeline reported, or that an undecided transaction names."""
