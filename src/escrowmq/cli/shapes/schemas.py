"""Table of the JSON shape that each command prints with ``-o json``.

Every command is in ``SCHEMAS``. ``broker_shapes.py`` says how to add one.
``tests/unit/cli/test_schemas.py`` runs every command and compares its output with this table.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from functools import partial
from importlib import import_module
from typing import Any, NamedTuple


class OutputForm(StrEnum):
    """Form in which a command prints its objects."""

    OBJECT = "one object"
    ARRAY = "an array of objects"
    LINES = "one object per line, as they come"


class Schema(NamedTuple):
    """What a command prints with ``-o json``."""

    form: OutputForm
    #: The shape of an object, as ``module:class`` below ``escrowmq``.
    home: str

    def load(self) -> type[Any]:
        """Import the shape."""
        module, _, name = self.home.partition(":")
        found: type[Any] = getattr(import_module(f"escrowmq.{module}"), name)
        return found


_object = partial(Schema, OutputForm.OBJECT)
_array = partial(Schema, OutputForm.ARRAY)
_lines = partial(Schema, OutputForm.LINES)

_ASK, _TXN, _TOOL = "cli.shapes.broker_shapes", "cli.txn.shapes", "cli.shapes.tool_shapes"
_ACCESS = "cli.shapes.access_shapes"

#: Keyed by the words of the command, and by an option where that changes the shape.
SCHEMAS: Mapping[str, Schema] = {
    "acl explain": _object(f"{_ACCESS}:ExplainedShape"),
    "acl grant": _object(f"{_ACCESS}:UserChangedShape"),
    "acl list": _array(f"{_ACCESS}:UserPolicyShape"),
    "acl revoke": _object(f"{_ACCESS}:UserChangedShape"),
    "audit": _object("cli.shapes.audit_shape:AuditShape"),
    "backup": _object(f"{_TOOL}:BackupShape"),
    "bench": _array(f"{_TOOL}:BenchShape"),
    "cert make": _array(f"{_TOOL}:CertificateShape"),
    "clock confirm": _object(f"{_ASK}:ClockConfirmedShape"),
    "clock show": _object(f"{_ASK}:ClockShape"),
    "config import": _array(f"{_TOOL}:ImportedKeyShape"),
    "config show": _array(f"{_TOOL}:SettingShape"),
    "demo": _object(f"{_TOOL}:DemoShape"),
    "dlq list": _array(f"{_ASK}:DeadLettersShape"),
    "dlq redrive": _array(f"{_ASK}:RedrivenShape"),
    "dlq show": _array(f"{_ASK}:DeadLetterShape"),
    "doctor": _array(f"{_ASK}:FindingShape"),
    "group list": _array(f"{_ASK}:GroupShape"),
    "group pause": _object(f"{_ASK}:GroupPausedShape"),
    "group reset-offset": _object(f"{_ASK}:OffsetResetShape"),
    "group resume": _object(f"{_ASK}:GroupPausedShape"),
    "group show": _object(f"{_ASK}:GroupShownShape"),
    "lake compact": _array(f"{_TOOL}:LakeCompactedShape"),
    "lake query": _array(f"{_TOOL}:LakeRow"),
    "lake replay": _object(f"{_TOOL}:LakeReplayedShape"),
    "lake tables": _array(f"{_TOOL}:LakeTableShape"),
    "lake vacuum": _array(f"{_TOOL}:LakeVacuumedShape"),
    "ledger migrate": _object(f"{_TOOL}:LedgerMigratedShape"),
    "ledger show": _object(f"{_TOOL}:LedgerShape"),
    "ledger sql": _object(f"{_TOOL}:LedgerSqlShape"),
    "message get": _object(f"{_ASK}:MessageFoundShape"),
    "message query": _array(f"{_ASK}:MessageShape"),
    "message send": _object(f"{_ASK}:MessageSentShape"),
    "message tail": _lines(f"{_ASK}:MessageShape"),
    "pipeline": _lines(f"{_TOOL}:ProcessEventShape"),
    "restore": _object(f"{_TOOL}:BackupShape"),
    "serve": _lines(f"{_TOOL}:ServeEventShape"),
    "status": _object("cli.shapes.status_shape:StatusShape"),
    "store check": _object("cli.shapes.store_shape:StoreCheckShape"),
    "store repair": _object(f"{_TOOL}:RepairShape"),
    "store migrate": _object(f"{_TOOL}:StateMigrationShape"),
    "topic create": _object(f"{_ASK}:TopicMadeShape"),
    "topic delete": _object(f"{_ASK}:TopicDeletedShape"),
    "topic list": _array(f"{_ASK}:TopicShape"),
    "topic show": _array(f"{_ASK}:TopicQueueShape"),
    "txn commit": _object(f"{_TXN}:DecidedShape"),
    "txn commit --filter": _object(f"{_TXN}:DecidedManyShape"),
    "txn explain": _object(f"{_TXN}:TransactionExplainedShape"),
    "txn list": _array(f"{_TXN}:TransactionShape"),
    "txn resume": _object(f"{_TXN}:ResumedShape"),
    "txn rollback": _object(f"{_TXN}:DecidedShape"),
    "txn rollback --filter": _object(f"{_TXN}:DecidedManyShape"),
    "txn show": _object(f"{_TXN}:TransactionShownShape"),
    "txn watch": _lines(f"{_TXN}:WatchedShape"),
    "up": _lines(f"{_TOOL}:ProcessEventShape"),
    "user create": _object(f"{_ACCESS}:UserChangedShape"),
    "user delete": _object(f"{_ACCESS}:UserChangedShape"),
    "user disable": _object(f"{_ACCESS}:UserChangedShape"),
    "user enable": _object(f"{_ACCESS}:UserChangedShape"),
    "user list": _array(f"{_ACCESS}:UserShape"),
    "user rotate": _object(f"{_ACCESS}:UserChangedShape"),
    "user show": _object(f"{_ACCESS}:UserShape"),
}
#: What commands print on standard error with ``-o json``.
ERRORS: Mapping[str, Schema] = {
    "error": _lines(f"{_ASK}:ErrorShape"),
    "note": _lines(f"{_ASK}:NoteShape"),
}
