"""Locates the parts of stored messages in a buffer, and verifies that they are intact.

``protocol/message/stored_message.py`` defines the layout. The positions of fields depend on two
bits of the message, so records are processed in groups that share these bits. Within a group, numpy
reads a field of all records in one step. Stored bytes are verified here (law 3), because the broker
passes them on unread.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple
from zlib import crc32

import numpy as np
import numpy.typing as npt
import pyarrow as pa  # type: ignore[import-untyped]  # it brings no types

from escrowmq.model.errors import ProtocolViolation, StoreCorrupt
from escrowmq.pipeline.source.checksums import crc_of_joined
from escrowmq.pipeline.source.slicing import slices
from escrowmq.protocol.message.stored_columns import HEADS
from escrowmq.protocol.message.stored_message import CRC_MASK, MAGIC_V1, SYS_FLAG_AT

Array = npt.NDArray[Any]

#: The body is followed at least by the sizes of the topic and of the properties.
_REST_BYTES_MIN = 3
_RECORD_BYTES_MIN = HEADS[0].itemsize + _REST_BYTES_MIN
#: How many body objects are created at once: as many as fit into the processor's cache.
_LISTED = 256


class MessageSource(NamedTuple):
    """The source of messages."""

    broker: str
    topic: str


class StoredPage(NamedTuple):
    """Messages of one topic, as READ_STORED returns them queue by queue."""

    queue_id: Array
    queue_offset: Array
    visible_at_ms: Array
    crc: Array
    size: Array
    #: The records, one after another.
    data: memoryview

    def halves(self) -> tuple[StoredPage, StoredPage]:
        """The first and the second half of the messages."""
        row = len(self.size) // 2
        at = int(self.size[:row].sum())
        first = self.of(slice(row))._replace(data=self.data[:at])
        return first, self.of(slice(row, None))._replace(data=self.data[at:])

    def of(self, rows: slice | Array) -> StoredPage:
        """These rows, still with the bytes of all rows."""
        return StoredPage(
            queue_id=self.queue_id[rows],
            queue_offset=self.queue_offset[rows],
            visible_at_ms=self.visible_at_ms[rows],
            crc=self.crc[rows],
            size=self.size[rows],
            data=self.data,
        )


def joined(pages: Sequence[StoredPage]) -> StoredPage:
    """Join pages into one: the overhead of a page equals some thousand messages."""
    if len(pages) == 1:
        return pages[0]
    return StoredPage(
        queue_id=np.concatenate([page.queue_id for page in pages]),
        queue_offset=np.concatenate([page.queue_offset for page in pages]),
        visible_at_ms=np.concatenate([page.visible_at_ms for page in pages]),
        crc=np.concatenate([page.crc for page in pages]),
        size=np.concatenate([page.size for page in pages]),
        data=memoryview(b"".join([page.data for page in pages])),
    )


def records_of(page: StoredPage, place: MessageSource) -> Iterator[tuple[Records, Array | None]]:
    """Split the records of a page into groups with the same layout, each with its row numbers.

    Nearly always one group has all rows. Its row numbers are then None.
    """
    ends = np.cumsum(page.size, dtype=np.int64)
    if not len(ends):
        return
    if int(page.size.min()) < _RECORD_BYTES_MIN or int(ends[-1]) != len(page.data):
        raise _malformed(place, "the sizes of the records do not add up to the page")
    data = np.frombuffer(page.data, dtype=np.uint8)
    starts = ends - page.size
    hosts = _windows(data, HEADS[0]["sys_flag"])[starts + SYS_FLAG_AT] >> 4 & 3
    if (hosts == hosts[0]).all():
        yield Records(page, place, data, HEADS[int(hosts[0])], starts), None
        return
    for group in np.unique(hosts).tolist():
        rows = np.flatnonzero(hosts == group)
        yield Records(page.of(rows), place, data, HEADS[group], starts[rows]), rows


class Records:
    """Records whose heads have the same layout. All of them are verified."""

    def __init__(
        self,
        page: StoredPage,
        place: MessageSource,
        data: Array,
        head: np.dtype[Any],
        starts: Array,
    ) -> None:
        self.page = page
        self.place = place
        self._data = data
        self._starts = starts
        self._ends = starts + page.size
        if int(page.size.min()) < head.itemsize + _REST_BYTES_MIN:
            raise _malformed(place, "a head passes its record's end")
        #: The heads, which precede the bodies, as a structured array.
        self.heads = _windows(data, head)[starts]
        self.body_starts = starts + head.itemsize
        self.body_ends = self.body_starts + self.heads["body_bytes"]
        if (self.body_ends + _REST_BYTES_MIN > self._ends).any():
            raise _malformed(place, "a body passes its record's end")
        self._verify()

    def __len__(self) -> int:
        return len(self._starts)

    def _verify(self) -> None:
        """Verify each body, and everything around the bodies in one step."""
        data, stated = pa.py_buffer(self.page.data), self.heads["body_crc"]
        self.bodies = slices(data, self.body_starts, self.body_ends, pa.binary())
        crcs = [
            crc
            for row in range(0, len(self), _LISTED)
            for crc in map(crc32, self.bodies.slice(row, _LISTED).to_pylist())
        ]
        are_right = np.array(crcs, dtype=np.uint32) & CRC_MASK == stated
        if not (are_right.all() and self._is_whole_around(data)):
            self._verify_each()

    def _is_whole_around(self, data: pa.Buffer) -> bool:
        """Whether the heads, topics and properties of all records match their combined checksum."""
        starts, ends = self._starts, self._ends
        if (starts[1:] != ends[:-1]).any():
            # Records of other groups are between them.
            return False
        rests = np.append(starts[:1], self.body_ends)
        around = slices(data, rests, np.append(self.body_starts, ends[-1:]), pa.binary())
        sizes = self.page.size - (self.body_ends - self.body_starts)
        return crc32(around.buffers()[2]) == crc_of_joined(self.page.crc, sizes)

    def _verify_each(self) -> None:
        data = self.page.data
        rows = zip(
            self._starts.tolist(),
            self.body_starts.tolist(),
            self.body_ends.tolist(),
            self._ends.tolist(),
            self.heads["body_crc"].tolist(),
            self.page.crc.tolist(),
            strict=True,
        )
        for row, (start, body, rest, end, body_crc, crc) in enumerate(rows):
            if (
                crc32(data[body:rest]) & CRC_MASK != body_crc
                or crc32(data[rest:end], crc32(data[start:body])) != crc
            ):
                raise StoreCorrupt(
                    "message_damaged",
                    "run `escrowmq store check` on the broker",
                    **self.place._asdict(),
                    queue_id=int(self.page.queue_id[row]),
                    queue_offset=int(self.page.queue_offset[row]),
                )

    def properties(self) -> tuple[Array, Array]:
        """Where the property strings are: after the body and the topic, up to the record's end."""
        data, at = self._data, self.body_ends
        is_v1 = self.heads["magic"] == MAGIC_V1
        topic_bytes = data[at].astype(np.int64)
        if is_v1.all():
            sizes_at = at + 1 + topic_bytes
        else:
            long_bytes = topic_bytes << 8 | data[at + 1]
            sizes_at = at + np.where(is_v1, 1 + topic_bytes, 2 + long_bytes)
        if (sizes_at + 2 > self._ends).any():
            raise _malformed(self.place, "a topic passes its record's end")
        starts = sizes_at + 2
        sizes = data[sizes_at].astype(np.int64) << 8 | data[sizes_at + 1]
        if (starts + sizes != self._ends).any():
            raise _malformed(self.place, "the properties do not end with their record")
        return starts, self._ends


def _windows(data: Array, kind: np.dtype[Any]) -> Array:
    """A view with one value of this type starting at each byte."""
    return np.ndarray(len(data) - kind.itemsize + 1, dtype=kind, buffer=data, strides=(1,))


def _malformed(place: MessageSource, why: str) -> ProtocolViolation:
    return ProtocolViolation("stored_message_malformed", why, **place._asdict())
