"""What ``escrowmq store check`` prints with ``-o json``: the report of the check."""

from __future__ import annotations

from escrowmq.cli.derived_shapes import derived
from escrowmq.store.report import Report

StoreCheckShape = derived("StoreCheckShape", Report, {"is_damaged": bool, "is_served": bool})
