"""Types of the gRPC messages: ``python -m tests.unit.protocol.grpc_stubs`` writes the stub file."""

from __future__ import annotations

from collections.abc import Iterator

from escrowmq.protocol.grpc.building import STRINGS, WELL_KNOWN, FieldRow, read_table
from escrowmq.protocol.grpc.enums import ENUMS
from tests.unit.repository import PACKAGE

FILE = PACKAGE / "protocol" / "grpc" / "messages.pyi"

HEAD = """# Made by `python -m tests.unit.protocol.grpc_stubs`.

from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from typing import Generic, Self, TypeVar

_T = TypeVar("_T")

class Repeated(Generic[_T]):
    def __len__(self) -> int: ...
    def __iter__(self) -> Iterator[_T]: ...
    def __getitem__(self, at: int) -> _T: ...
    def append(self, value: _T) -> None: ...
    def extend(self, values: Iterable[_T]) -> None: ...

class GrpcMessage:
    @classmethod
    def FromString(cls, data: bytes) -> Self: ...
    def SerializeToString(self) -> bytes: ...
    def HasField(self, name: str) -> bool: ...
    def WhichOneof(self, name: str) -> str | None: ...
    def CopyFrom(self, other: Self) -> None: ...
"""
SCALARS = {"bool": "bool", "bytes": "bytes", "float": "float", "string": "str"}
#: Messages of protobuf itself.
TIME = [FieldRow("seconds", 1, "", "", "int64"), FieldRow("nanos", 2, "", "", "int32")]


def type_of(row: FieldRow) -> str:
    """Return the Python type of one value of a field."""
    if row.kind in ENUMS or row.kind.startswith("int"):
        return "int"
    return SCALARS.get(row.kind, row.kind)


def stub_of(name: str, rows: list[FieldRow]) -> Iterator[str]:
    """Yield the lines of one class."""
    given = []
    yield ""
    yield f"class {name}(GrpcMessage):"
    for row in rows:
        kind = type_of(row)
        if row.kind == STRINGS:
            yield f"    {row.name}: MutableMapping[str, str]"
            given.append(f"{row.name}: Mapping[str, str] = ...")
        elif row.mark == "*":
            yield f"    {row.name}: Repeated[{kind}]"
            given.append(f"{row.name}: Iterable[{kind}] = ...")
        else:
            yield f"    {row.name}: {kind}"
            given.append(f"{row.name}: {kind} | None = ...")
    yield "    def __init__("
    yield "        self,"
    yield "        *,"
    yield from (f"        {one}," for one in given)
    yield "    ) -> None: ..."


def stubs() -> str:
    """Return the text of the stub file."""
    tables = [*((name, TIME) for name in WELL_KNOWN), *read_table()]
    lines = (line for name, rows in tables for line in stub_of(name, rows))
    return HEAD + "\n".join(lines) + "\n"


if __name__ == "__main__":
    FILE.write_text(stubs(), encoding="utf-8")
