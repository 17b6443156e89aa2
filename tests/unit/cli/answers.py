"""Broker answers that the brokers of these tests do not give by themselves."""

from __future__ import annotations

from typing import Any

from escrowmq.protocol.native.headers import NativeAnswer
from escrowmq.protocol.native.status_answer import StatusAnswer

TEXTS = {
    "broker",
    "cluster",
    "broker_version",
    "broker_address",
    "durability",
    "disk",
    "retention",
    "lineage",
    "clock_gap",
    "deletion_waits",
    "offsets_lost",
    "topics_found",
    "names_near",
    "alerts",
    "alerts_firing",
    "alerts_last_error",
    "backup",
    "backup_last_good",
    "backup_last_error",
    "round_did",
    "round_error",
}
POLICY: dict[str, Any] = {
    "check_backoff": 1.0,
    "check_interval_ms": 30_000,
    "check_interval_max_ms": 600_000,
    "checks_max": 15,
    "park_after_ms": 3_600_000,
    "checked_by": "auto",
    "checker": "pipeline",
    "after_last_check": "park",
}


def answered(**known: object) -> StatusAnswer:
    """Answer to STATUS with every field 0 or empty, except for the given ones."""
    own = set(StatusAnswer.__struct_fields__) - set(NativeAnswer.__struct_fields__) - TEXTS
    fields: dict[str, Any] = dict.fromkeys(own, 0) | dict.fromkeys(TEXTS, "") | POLICY
    return StatusAnswer(**{**fields, "now_ms": 1_000_000, **known})
