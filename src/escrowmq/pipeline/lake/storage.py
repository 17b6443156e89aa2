"""Storage of the lake and the checkpoints: a directory, or a URI for the deltalake package."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from pathlib import Path

from pyarrow import fs  # type: ignore[import-untyped]  # it brings no types

_SLICE_BYTES = 32 * 1024


def absolute(uri: str | Path) -> str:
    """A URI unchanged, or an absolute path, which no later change of directory affects."""
    text = str(uri)
    return text.rstrip("/") if "://" in text else str(Path(text).absolute())


def for_spark(uri: str) -> str:
    """The URI for Spark: a cluster's default file system may not be this machine's."""
    return uri if "://" in uri else f"file://{uri}"


def files_below(uri: str, storage: Mapping[str, str]) -> fs.FileSystem:
    """A file system rooted at `uri`. A missing directory is created."""
    if "://" in uri:
        from deltalake.fs import DeltaStorageHandler

        # With the same storage layer, a task can write wherever the driver can commit.
        return fs.PyFileSystem(DeltaStorageHandler(uri, dict(storage)))
    Path(uri).mkdir(parents=True, exist_ok=True)
    return fs.SubTreeFileSystem(uri, fs.LocalFileSystem())


def read_whole(files: fs.FileSystem, path: str) -> bytes | None:
    """A small file's bytes; None if it does not exist."""
    try:
        with files.open_input_stream(path) as stream:
            return bytes(stream.read())
    except FileNotFoundError:
        return None


def write_whole(files: fs.FileSystem, path: str, data: bytes) -> None:
    """Write a small file atomically."""
    draft = f"{path}.{uuid.uuid4().hex}"
    # Delta's streams do not accept large writes.
    with files.open_output_stream(draft, buffer_size=2 * _SLICE_BYTES) as stream:
        for start in range(0, len(data), _SLICE_BYTES):
            stream.write(data[start : start + _SLICE_BYTES])
    files.move(draft, path)
