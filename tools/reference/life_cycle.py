"""Generates the table of the page about the life cycle of a message."""

from __future__ import annotations

from escrowmq.broker.state.life_cycle import LIFE_CYCLE


def stages_table() -> str:
    """Return the stages, in their order, as a Markdown table."""
    rows = [
        "| RocketMQ's name | Transaction | For consumers | Group's progress | Stored | Remark |",
        "|---|---|---|---|---|---|",
    ]
    for stage in LIFE_CYCLE:
        states = " or ".join(
            f"`{one.label}`" if one is not None else "none" for one in stage.states
        )
        stored = "yes" if stage.is_stored else "no"
        rows.append(
            f"| {stage.name} | {states} | {stage.place} | {stage.progress} | {stored} "
            f"| {stage.remark} |"
        )
    return "\n".join(rows)
