"""Size of a broker: its memory, its files, its checkpoint."""

from __future__ import annotations

import asyncio
import ctypes
import gc
import os
import sys
import types
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from escrowmq.store.checkpoint import checkpoint
from escrowmq.store.disk.disk import OsDisk
from escrowmq.store.repair.backup import STORE
from escrowmq.transaction.memory.batches import SavedExpiredQueries

if TYPE_CHECKING:
    from escrowmq.broker.broker import Broker

GROWTH_MAX = 1.5

#: Types that an object refers to without owning them.
_FOREIGN = (
    type,
    types.ModuleType,
    types.FunctionType,
    types.BuiltinFunctionType,
    types.CodeType,
    types.FrameType,
    types.CoroutineType,
    asyncio.AbstractEventLoop,
    asyncio.Future,
)


@dataclass(frozen=True)
class Size:
    """Size of a broker that has just started and is idle."""

    #: All objects that belong to the broker.
    memory_bytes: int
    #: The process, including the test.
    resident_bytes: int
    files: int
    file_bytes: int
    checkpoint_bytes: int
    #: The checkpoint without its filters of expired names, whose size is fixed.
    checkpoint_rest_bytes: int

    def growth(self, before: Size) -> dict[str, float]:
        """Each size as a multiple of what it was before."""
        return {
            name: round(value / max(asdict(before)[name], 1), 3)
            for name, value in asdict(self).items()
        }


def size_of(broker: Broker, data: Path) -> Size:
    """Measure a broker and its data directory."""
    gc.collect()
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is not None:
        trim(0)
    paths = [path for path in data.rglob("*") if path.is_file()]
    return Size(
        memory_bytes=deep_bytes(broker),
        resident_bytes=_resident_bytes(),
        files=len(paths),
        file_bytes=sum(path.stat().st_size for path in paths),
        checkpoint_bytes=(data / STORE / checkpoint.PATH).stat().st_size,
        checkpoint_rest_bytes=_rest_bytes(data / STORE),
    )


def _rest_bytes(store: Path) -> int:
    newest = checkpoint.load(OsDisk(store), checkpoint.PATH)
    assert newest is not None
    catalog = replace(newest.catalog, removed_names=b"", expired_group_names=b"")
    rest = replace(newest, catalog=catalog, expired_queries=SavedExpiredQueries())
    return len(checkpoint.encode(rest))


def deep_bytes(root: object) -> int:
    """Bytes of an object and of everything that it holds."""
    seen = {id(root)}
    todo = [root]
    total = 0
    while todo:
        one = todo.pop()
        total += sys.getsizeof(one)
        for held in gc.get_referents(one):
            if id(held) not in seen and not isinstance(held, _FOREIGN):
                seen.add(id(held))
                todo.append(held)
    return total


def _resident_bytes() -> int:
    _, resident, *_ = Path("/proc/self/statm").read_text(encoding="ascii").split()
    return int(resident) * os.sysconf("SC_PAGE_SIZE")
