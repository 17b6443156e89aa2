"""Files that hold secrets, which only their owner may read."""

from __future__ import annotations

import os
import stat
from pathlib import Path

from escrowmq.model.errors import RequestRefused

OTHERS = stat.S_IRWXG | stat.S_IRWXO
BYTES_MAX = 1024 * 1024


def read_private(code: str, path: Path, *, bytes_max: int = BYTES_MAX) -> bytes:
    """Return a file's content; refuse a file that others could read or exchange.

    ``code`` is the refusal's code. The permissions are those of the opened file, so nobody can
    exchange it between the check and the read.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except OSError as error:
        why = error.strerror or "cannot be opened"
        raise RequestRefused(code, f"name a file that can be read: {why}", path=str(path)) from None
    try:
        facts = os.fstat(handle)
        if not stat.S_ISREG(facts.st_mode):
            raise RequestRefused(code, "name a regular file", path=str(path))
        if facts.st_mode & OTHERS or facts.st_uid != os.geteuid():
            raise RequestRefused(
                code,
                "the file must belong to the user of this process, and only that user may read it:"
                " run `chown` and `chmod 600`",
                path=str(path),
                mode=f"{stat.S_IMODE(facts.st_mode):03o}",
                owner=facts.st_uid,
            )
        if facts.st_size > bytes_max:
            raise RequestRefused(code, "the file is too large", path=str(path), bytes_max=bytes_max)
        return os.read(handle, bytes_max)
    finally:
        os.close(handle)
