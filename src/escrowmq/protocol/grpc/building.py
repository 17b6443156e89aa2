"""Builds protobuf classes from the table of definitions, in a descriptor pool of their own.

The official clients register the same names in protobuf's default pool; a process may hold both.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from google.protobuf import (
    descriptor_pb2,
    descriptor_pool,
    duration_pb2,
    message_factory,
    timestamp_pb2,
)

from escrowmq.protocol.grpc.definitions import MESSAGES, SERVICE
from escrowmq.protocol.grpc.enums import ENUMS

PACKAGE = SERVICE.rpartition(".")[0]
FILE = "escrowmq/messaging.proto"
WELL_KNOWN = {"Duration": duration_pb2, "Timestamp": timestamp_pb2}
SCALARS = ("bool", "bytes", "float", "int32", "int64", "string")
STRINGS = "strings"

_FIELD = re.compile(r"(\w+) (\d+)([?*]?)(?:/(\w+))? (\w+)")
_KIND = descriptor_pb2.FieldDescriptorProto


class FieldRow(NamedTuple):
    """One field of the table."""

    name: str
    number: int
    #: ``?`` for a field that may be absent, ``*`` for a repeated one.
    mark: str
    oneof: str
    kind: str


def read_table(text: str = MESSAGES) -> Iterator[tuple[str, list[FieldRow]]]:
    """Yield each message of the table with its fields."""
    for line in text.replace("\n  ", " ").split("\n"):
        if line:
            message, _, fields = line.partition(": ")
            yield message, [_row(field) for field in fields.split(", ")]


def _row(text: str) -> FieldRow:
    match = _FIELD.fullmatch(text)
    assert match is not None, text
    name, number, mark, oneof, kind = match.groups(default="")
    return FieldRow(name, int(number), mark, oneof, kind)


def build() -> dict[str, type]:
    """Return the class of each message, by its name."""
    pool = descriptor_pool.DescriptorPool()
    file = descriptor_pb2.FileDescriptorProto(name=FILE, package=PACKAGE, syntax="proto3")
    for module in WELL_KNOWN.values():
        pool.AddSerializedFile(module.DESCRIPTOR.serialized_pb)
        file.dependency.append(module.DESCRIPTOR.name)
    for name, members in ENUMS.items():
        enum = file.enum_type.add(name=name)
        for member in members:
            enum.value.add(name=member.name, number=member.value)
    for name, rows in read_table():
        _add_message(file, name, rows)
    pool.AddSerializedFile(file.SerializeToString())
    found = pool.FindFileByName(FILE).message_types_by_name
    return {
        name: message_factory.GetMessageClass(descriptor) for name, descriptor in found.items()
    } | {
        name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"google.protobuf.{name}"))
        for name in WELL_KNOWN
    }


def _add_message(file: descriptor_pb2.FileDescriptorProto, name: str, rows: list[FieldRow]) -> None:
    message = file.message_type.add(name=name)
    stated = dict.fromkeys(row.oneof for row in rows if row.oneof)
    # protobuf wants the oneofs that stand for one optional field after all others.
    oneofs = [*stated, *(f"_{row.name}" for row in rows if row.mark == "?")]
    for oneof in oneofs:
        message.oneof_decl.add(name=oneof)
    for row in rows:
        field = message.field.add(name=row.name, number=row.number)
        field.label = _KIND.LABEL_REPEATED if row.mark == "*" else _KIND.LABEL_OPTIONAL
        if row.oneof:
            field.oneof_index = oneofs.index(row.oneof)
        elif row.mark == "?":
            field.oneof_index = oneofs.index(f"_{row.name}")
            field.proto3_optional = True
        _set_type(message, field, row)


def _set_type(
    message: descriptor_pb2.DescriptorProto,
    field: descriptor_pb2.FieldDescriptorProto,
    row: FieldRow,
) -> None:
    if row.kind in SCALARS:
        field.type = _KIND.Type.Value(f"TYPE_{row.kind.upper()}")
    elif row.kind in ENUMS:
        field.type = _KIND.TYPE_ENUM
        field.type_name = f".{PACKAGE}.{row.kind}"
    else:
        field.type = _KIND.TYPE_MESSAGE
        field.type_name = f".{PACKAGE}.{row.kind}"
    if row.kind in WELL_KNOWN:
        field.type_name = f".google.protobuf.{row.kind}"
    if row.kind == STRINGS:
        # protobuf has a map as a repeated message with a key and a value.
        entry = message.nested_type.add(name=f"{row.name.title().replace('_', '')}Entry")
        entry.options.map_entry = True
        for number, part in enumerate(("key", "value"), 1):
            entry.field.add(
                name=part, number=number, label=_KIND.LABEL_OPTIONAL, type=_KIND.TYPE_STRING
            )
        field.type_name = f".{PACKAGE}.{message.name}.{entry.name}"
