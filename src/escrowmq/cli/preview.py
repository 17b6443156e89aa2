"""Text of clients on one line of a terminal: escaped, so that it cannot control the terminal."""

from __future__ import annotations

import codecs
import unicodedata
import zlib

BODY_WIDTH = 40
"""Columns of the terminal that a preview takes, at most."""

PREVIEW_BYTES = 1_024
"""Bytes of a body that a preview of 60 columns needs, at most: bodies may have megabytes."""

HEX_PREFIX = "hex "
MORE = "…"

_SYS_COMPRESSED = 1
_INFLATED_BYTES_MAX = 4_096
_SHORT_ESCAPES = {"\n": "\\n", "\r": "\\r", "\t": "\\t"}


def preview(body: bytes, total_bytes: int, *, sys_flag: int = 0, width: int = BODY_WIDTH) -> str:
    r"""The start of a body as text, or as hexadecimal digits if it is no UTF-8.

    ``body`` may be the first of ``total_bytes`` only.  Control characters are shown as ``\x1b``.
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
    """Text on one line without control characters, within this many columns of a terminal."""
    shown: list[str] = []
    used = 0
    for at, char in enumerate(text):
        piece = char if char.isprintable() else _escaped(char)
        # A line of combining characters has no width, so their number is limited as well.
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
    r"""Text on one line; control characters are shown as ``\x1b``, line ends as ``\n``."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else _escaped(char) for char in text)


def _inflated(body: bytes, *, is_whole: bool) -> tuple[bytes, bool]:
    """The start of a compressed body, which may have been cut; as it is if it is no zlib."""
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
