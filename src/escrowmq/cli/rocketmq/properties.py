"""Reads a Java properties file as ``java.util.Properties`` does.

Three things differ on purpose. Text is UTF-8 if it can be, where RocketMQ always reads Latin-1. A
key that occurs twice is an error, where Java silently takes the last value. A backslash alone on
the last line is nothing, where Java finds an empty key.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from escrowmq.model.errors import RequestRefused

#: RocketMQ has 510 settings, which need about 30 KiB with their values.
FILE_BYTES_MAX = 1024 * 1024
KEYS_MAX = 2_000

_BLANKS = " \t\f"
_LINE_END = re.compile(r"\r\n|\n|\r")
# A backslash and the character after it belong to the key.
_KEY = re.compile(r"(?:\\.|[^\\=: \t\f])*", re.DOTALL)
_SEPARATOR = re.compile(r"[ \t\f]*[=:]?[ \t\f]*")
_ESCAPE = re.compile(r"\\(u[0-9A-Fa-f]{4}|u|.)", re.DOTALL)
_ESCAPES = {"t": "\t", "n": "\n", "r": "\r", "f": "\f"}


class Property(NamedTuple):
    """One key of the file and its value, without escapes."""

    #: Number of its first line, from 1.
    line: int
    key: str
    value: str


def read_properties(path: Path) -> tuple[Property, ...]:
    """Read a file; ``RequestRefused`` says why it cannot be read."""
    return parse_properties(_text_of(path), str(path))


def parse_properties(text: str, path: str) -> tuple[Property, ...]:
    """Parse the text of a file; ``path`` is for errors."""
    found: dict[str, Property] = {}
    for number, line in _logical_lines(text):
        key = _KEY.match(line)
        separator = _SEPARATOR.match(line, key.end() if key else 0)
        assert key, "the pattern matches the empty text"
        assert separator, "the pattern matches the empty text"
        raw = key[0], line[separator.end() :]
        name, value = (_unescaped(part, path=path, line=number) for part in raw)
        if name in found:
            raise RequestRefused(
                "bad_config",
                "the key occurs twice: remove the line that is wrong; RocketMQ takes the last one",
                key=name[:128],
                lines=f"{found[name].line} and {number}",
                origin=f"file {path}",
            )
        if len(found) >= KEYS_MAX:
            raise _unreadable(f"has more than {KEYS_MAX} keys", path)
        found[name] = Property(number, name, value)
    return tuple(found.values())


def _text_of(path: Path) -> str:
    try:
        # Without O_NONBLOCK, opening a pipe would wait for its writer.
        with os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb") as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise _unreadable("must be a regular file", str(path))
            content = file.read(FILE_BYTES_MAX + 1)
    except OSError as error:
        raise _unreadable(error.strerror or "cannot be read", str(path)) from error
    except ValueError as error:  # A zero byte in the path.
        raise _unreadable(str(error), str(path)) from error
    if len(content) > FILE_BYTES_MAX:
        raise _unreadable(f"must have at most {FILE_BYTES_MAX} bytes", str(path))
    if b"\0" in content:
        raise _unreadable("holds zero bytes, so it is not UTF-8 or Latin-1 text", str(path))
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        return content.decode("latin-1")


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield each line that has a key, joined with its continuation lines, and its number."""
    parts: list[str] = []
    begun = 0
    for number, natural in enumerate(_LINE_END.split(text), 1):
        line = natural.lstrip(_BLANKS)
        if not parts:
            if line.startswith(("#", "!")):
                continue
            begun = number
        is_continued = (len(line) - len(line.rstrip("\\"))) % 2 == 1
        if kept := line[:-1] if is_continued else line:
            parts.append(kept)
        if parts and not is_continued:
            yield begun, "".join(parts)
            parts = []
    if parts:  # The last line ends with a backslash.
        yield begun, "".join(parts)


def _unescaped(text: str, *, path: str, line: int) -> str:
    def replaced(match: re.Match[str]) -> str:
        escape = match[1]
        if escape == "u":
            raise _unreadable(r"\u needs four hexadecimal digits", path, line=line)
        if escape.startswith("u"):
            return chr(int(escape[1:], 16))
        return _ESCAPES.get(escape, escape)

    plain = _ESCAPE.sub(replaced, text)
    try:
        # Java writes a character beyond U+FFFF as two escapes.
        return plain.encode("utf-16", "surrogatepass").decode("utf-16")
    except UnicodeDecodeError:
        raise _unreadable(r"\u escapes half of a character", path, line=line) from None


def _unreadable(why: str, path: str, **facts: object) -> RequestRefused:
    return RequestRefused("unreadable_config", why, path=path, **facts)
