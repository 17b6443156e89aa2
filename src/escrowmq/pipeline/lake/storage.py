"""Where the lake and the checkpoints are: a directory, or what the deltalake package takes."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from pathlib import Path

from pyarrow import fs  # type: ignore[import-untyped]  # it brings no types

_SLICE_BYTES = 32 * 1024


def absolute(uri: str | Path) -> str:
    """A URI as it is; a path from the root on, whatever directory anybody is in later."""
    text = str(uri)
    return text.rstrip("/") if "://" in text else str(Path(text).absolute())


def for_spark(uri: str) -> str:
    """The same for Spark: a cluster's own file system may be another one than this machine's."""
    return uri if "://" in uri else f"file://{uri}"


def files_below(uri: str, storage: Mapping[str, str]) -> fs.FileSystem:
    """The files below `uri`; paths begin there.  A directory is made if it is missing."""
    if "://" in uri:
        from deltalake.fs import DeltaStorageHandler

        # What the driver can commit to, a task can write to.
        return fs.PyFileSystem(DeltaStorageHandler(uri, dict(storage)))
    Path(uri).mkdir(parents=True, exist_ok=True)
    return fs.SubTreeFileSystem(uri, fs.LocalFileSystem())


def read_whole(files: fs.FileSystem, path: str) -> bytes | None:
    """A small file's bytes; None if there is none."""
    try:
        with files.open_input_stream(path) as stream:
            data: bytes = stream.read()
            return data
    except FileNotFoundError:
        return None


def write_whole(files: fs.FileSystem, path: str, data: bytes) -> None:
    """Write a small file; nobody ever sees half of it."""
    draft = f"{path}.{uuid.uuid4().hex}"
    # Delta's streams take no large pieces.
    with files.open_output_stream(draft, buffer_size=2 * _SLICE_BYTES) as stream:
        for start in range(0, len(data), _SLICE_BYTES):
            stream.write(data[start : start + _SLICE_BYTES])
    files.move(draft, path)
