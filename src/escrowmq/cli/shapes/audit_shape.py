"""What ``escrowmq audit`` prints with ``-o json``: the report and its totals."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from escrowmq.cli.shapes.derived_shapes import derived
from escrowmq.pipeline.audit.report import AuditReport

if TYPE_CHECKING:
    from escrowmq.cli.shapes.broker_shapes import Shape

AuditShape = derived(
    "AuditShape", AuditReport, {"is_clean": bool, "has_failed": bool, "totals": dict[str, int]}
)


def shape_of(report: AuditReport) -> Shape:
    """Convert a report to its JSON shape."""
    return AuditShape(
        **msgspec.structs.asdict(report),
        is_clean=report.is_clean,
        has_failed=report.has_failed,
        totals={kind.value: count for kind, count in report.totals.items()},
    )
