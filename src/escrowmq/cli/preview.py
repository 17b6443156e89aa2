"""Escapes client text for one line of a terminal, so that it cannot control the terminal."""

from __future__ import annotations

import codecs
import unicodedata
import zlib

BODY_WIDTH = 40
"""Default limit of a preview, in terminal columns."""

PREVIEW_BYTES = 1_024
"""The most bytes that a preview of 60 columns needs; a body may have megabytes."""

HEX_PREFIX = "hex "
MORE = "…"

_SYS_COMPRESSED = 1
_INFLATED_BYTES_MAX = 4_096
_SHORT_ESCAPES = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def preview(body: bytes, total_bytes: int, *, sys_flag: int = 0, width: int = BODY_WIDTH) -> str:
    r"""Return the start of a body as text, or as hexadecimal digits if it is not UTF-8.

    ``body`` may be only the start of ``total_bytes``. Control characters are shown as ``\x1b``.
    A preview that leaves something out ends with ``…``.
    """
    is_whole = len(body) >= total_bytes
    if sys_flag & _SYS_COMPRESSED:
        body, is_whole = _inflated(body, is_whole=is_whole)
    try:
        text = codecs.getincrementaldecoder("utf-8")().decode(body, final=is_whole)
    except UnicodeDecodeError:
        text = HEX_PREFIX + body.hex()
    return clipped(text, width, is_whole=is_whole)


def clipped(text: str, width: int, *, is_whole: bool = True) -> str:
    """Escape control characters, and cut the text to this many terminal columns."""
    shown: list[str] = []
    used = 0
    for at, char in enumerate(text):
        piece = char if char.isprintable() else _escaped(char)
        # Combining characters have no width, so the number of characters is limited, too.
        if used + _columns(piece) > width or at >= 4 * width:
            is_whole = False
            break
        shown.append(piece)
        used += _columns(piece)
    if is_whole:
        return "".join(shown)
    while shown and used >= width:
        used -= _columns(shown.pop())
    return "".join(shown) + MORE


def escaped(text: str) -> str:
    r"""Escape a text for one line: control characters become ``\x1b``, line ends ``\n``."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else _escaped(char) for char in text)


def _inflated(body: bytes, *, is_whole: bool) -> tuple[bytes, bool]:
    """Decompress a body, which may have been cut; return it unchanged if it is not zlib."""
    inflater = zlib.decompressobj()
    try:
        inflated = inflater.decompress(body, _INFLATED_BYTES_MAX)
    except zlib.error:
        return body, is_whole
    return inflated, inflater.eof


def _escaped(char: str) -> str:
    if char in _SHORT_ESCAPES:
        return _SHORT_ESCAPES[char]
    return char.encode("unicode_escape", errors="surrogatepass").decode()


def _columns(piece: str) -> int:
    return sum(
        0 if unicodedata.combining(char) else 1 + (unicodedata.east_asian_width(char) in "WF")
        for char in piece
    )
