"""Texts that must not be seen, and files that only their owner may read.

A ``Secret`` appears in no repr, no error, no pickle and no JSON.
"""

from __future__ import annotations

import hmac
import os
import stat
from pathlib import Path
from typing import NoReturn

from escrowmq.model.errors import RequestRefused

HIDDEN = "(hidden)"
OTHERS = stat.S_IRWXG | stat.S_IRWXO
BYTES_MAX = 1024 * 1024


class Secret:
    """A text that only ``reveal`` shows."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        """Return the text, for the code that signs, checks or encrypts with it."""
        return self._text

    def __repr__(self) -> str:
        return HIDDEN

    def __eq__(self, other: object) -> bool:
        """Compare in a time that does not tell where two secrets differ."""
        if not isinstance(other, Secret):
            return NotImplemented
        return hmac.compare_digest(self._text.encode(), other._text.encode())

    # A hash of a secret could end in a log, and nothing looks secrets up.
    __hash__ = None  # type: ignore[assignment]

    def __reduce__(self) -> NoReturn:
        raise TypeError("a secret is not pickled: read it where it is needed")


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
