"""Heads of requests: which header blocks are valid, and a fast way to read blocks that repeat.

The clients of one connection send almost the same header block with each call. We advertise a
dynamic table of 0 bytes, so a block means the same wherever it stands. ``HeadReader`` then keeps a
template of the last blocks: constant bytes with a few values between them that change (a request
id, a timeout). A block that matches a template needs a few comparisons; its values are decoded only
if somebody asks. Every other block is decoded and checked in full, and becomes a template.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise

from escrowmq.protocol.http2.header_blocks import (
    DecodedField,
    HeaderDecoder,
    decode_string,
    end_of_string,
)

TEMPLATES_MAX = 4
"""Templates of one connection: one for each shape of its blocks."""

_PSEUDO = frozenset((b":method", b":scheme", b":path", b":authority"))
_REQUIRED = (b":method", b":scheme", b":path")
#: Fields that HTTP/2 does not allow in a request.
_OF_HTTP_1 = frozenset(
    (b"connection", b"keep-alive", b"proxy-connection", b"transfer-encoding", b"upgrade")
)
#: Fields whose values are checked; in a template they are constant.
_CHECKED = frozenset(
    (b":method", b":scheme", b"te", b"content-type", b"content-length", b"grpc-encoding")
)
_UPPER = frozenset(range(ord("A"), ord("Z") + 1))
_DIGITS_MAX = 18


class RequestHead:
    """The header fields of one request."""

    __slots__ = ("_constant", "_places", "_raw", "content_length", "is_grpc", "is_post", "problem")

    def __init__(
        self,
        constant: Mapping[bytes, bytes],
        places: Mapping[bytes, int],
        raw: Sequence[bytes],
        like: RequestHead | None = None,
    ) -> None:
        self._constant = constant
        #: Where the value of a name is in ``_raw``.
        self._places = places
        self._raw = raw
        if like is None:
            #: Why the request is malformed; empty if it is not.
            self.problem = ""
            #: Whether a gRPC client sent it.
            self.is_grpc = constant.get(b"content-type", b"").startswith(b"application/grpc")
            self.is_post = constant.get(b":method") == b"POST"
            length = constant.get(b"content-length", b"")
            #: None if the client did not say.
            self.content_length = int(length) if length else None
        else:
            self.problem = ""
            self.is_grpc, self.is_post = like.is_grpc, like.is_post
            self.content_length = like.content_length

    def get(self, name: bytes) -> bytes | None:
        """Return the value of a field; values of the same name are joined with commas."""
        place = self._places.get(name)
        return self._constant.get(name) if place is None else decode_string(self._raw[place])


class HeadReader:
    """Reads the header blocks of one connection, in order."""

    def __init__(self, list_bytes_max: int) -> None:
        self.decoder = HeaderDecoder(list_bytes_max)
        #: The latest first.
        self._templates: list[_Template] = []

    def read_request(self, block: bytes) -> RequestHead:
        """Return the head of a request."""
        if not self.decoder.has_state:
            for template in self._templates:
                found = template.read(block)
                if found is not None:
                    return found
        fields = self.decoder.decode(block)
        head = checked_head(fields)
        # A block that begins with a table size is read in full each time.
        if not (self.decoder.has_state or head.problem or fields[0].start):
            self._learn(block, fields, head)
        return head

    def read_trailers(self, block: bytes) -> str:
        """Return why the block is malformed as trailers; empty if it is not."""
        for field in self.decoder.decode(block):
            problem = "trailers have pseudo-fields" if field.name[:1] == b":" else ""
            problem = problem or _problem_of(field)
            if problem:
                return problem
        return ""

    def _learn(self, block: bytes, fields: list[DecodedField], head: RequestHead) -> None:
        names = [field.name for field in fields]
        if len(set(names)) != len(names):
            return
        changing: frozenset[int] = frozenset()
        for template in self._templates:
            differing = template.differing(block, fields)
            if differing is not None:
                changing = differing
                self._templates.remove(template)
                break
        self._templates.insert(0, _Template(block, fields, head, changing))
        del self._templates[TEMPLATES_MAX:]


class _Template:
    """Constant bytes of header blocks, and the places of values that change."""

    def __init__(
        self, block: bytes, fields: list[DecodedField], head: RequestHead, changing: frozenset[int]
    ) -> None:
        self._block = block
        self._fields = fields
        self._head = head
        self._changing = changing
        cuts = [0]
        for place in sorted(changing):
            cuts += (fields[place].value_start, fields[place].end)
        pieces = [block[start:end] for start, end in pairwise((*cuts, len(block)))][::2]
        self._chunks = [(piece, len(piece)) for piece in pieces[:-1]]
        self._tail = pieces[-1]
        self._constant = {
            field.name: field.value for place, field in enumerate(fields) if place not in changing
        }
        self._places = {fields[place].name: at for at, place in enumerate(sorted(changing))}

    def read(self, block: bytes) -> RequestHead | None:
        """Return the head of a block that matches, or None."""
        raw = []
        at, end = 0, len(block)
        for chunk, size in self._chunks:
            if not block.startswith(chunk, at):
                return None
            at += size
            if at >= end:
                return None
            start = at
            size = block[at] & 0x7F  # noqa: PLW2901 - the value's size follows the chunk's
            at = at + 1 + size if size < 0x7F else _end_of_long_string(block, at)  # noqa: PLR2004
            raw.append(block[start:at])
        if at > end or block[at:] != self._tail:
            return None
        return RequestHead(self._constant, self._places, raw, self._head)

    def differing(self, block: bytes, fields: list[DecodedField]) -> frozenset[int] | None:
        """Return which values change if another block is to fit; None if its shape differs."""
        if len(fields) != len(self._fields):
            return None
        changing = set(self._changing)
        for place, (mine, other) in enumerate(zip(self._fields, fields, strict=True)):
            name_part = self._block[mine.start : mine.value_start or mine.end]
            if name_part != block[other.start : other.value_start or other.end]:
                return None
            if mine.value_start and (
                self._block[mine.value_start : mine.end] != block[other.value_start : other.end]
            ):
                if mine.name in _CHECKED:
                    return None
                changing.add(place)
        return frozenset(changing)


def _end_of_long_string(block: bytes, at: int) -> int:
    """Return the position behind a string; beyond the block if it is incomplete."""
    try:
        return end_of_string(block, at)
    except IndexError:
        return len(block) + 1


def checked_head(fields: Sequence[DecodedField]) -> RequestHead:
    """Return the head of a request, with a problem if it is malformed."""
    values: dict[bytes, bytes] = {}
    problem = ""
    is_pseudo_over = False
    for field in fields:
        name = field.name
        is_pseudo = name[:1] == b":"
        if is_pseudo and (is_pseudo_over or name not in _PSEUDO or name in values):
            problem = "a pseudo-field is late, unknown or repeated"
        is_pseudo_over = not is_pseudo
        problem = problem or _problem_of(field)
        values[name] = values[name] + b"," + field.value if name in values else field.value
    if not all(values.get(name) for name in _REQUIRED):
        problem = problem or "a pseudo-field is missing"
    length = values.get(b"content-length", b"0")
    if not length.isdigit() or len(length) > _DIGITS_MAX:
        problem = problem or "content-length is not a number"
        del values[b"content-length"]
    head = RequestHead(values, {}, ())
    head.problem = problem
    return head


def _problem_of(field: DecodedField) -> str:
    """Return why a field is malformed; empty if it is not."""
    name = field.name
    if not name or not _UPPER.isdisjoint(name):
        return "a name is empty or not lower case"
    if name in _OF_HTTP_1 or (name == b"te" and field.value != b"trailers"):
        return "a field is not allowed in HTTP/2"
    return ""
