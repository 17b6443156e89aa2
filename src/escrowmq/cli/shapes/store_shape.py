"""What ``escrowmq store check`` prints with ``-o json``: the report of the check."""

from __future__ import annotations

from escrowmq.cli.shapes.derived_shapes import derived
from escrowmq.store.repair.report import StoreReport

StoreCheckShape = derived("StoreCheckShape", StoreReport, {"is_damaged": bool, "is_served": bool})
