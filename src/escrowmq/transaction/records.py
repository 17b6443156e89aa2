"""Records: the facts in a frame besides its messages, which recovery applies again.

Records hold absolute values (check number 3), never increments, so applying one twice, or to a
state that already contains it, gives the same state. On disk each is a MessagePack array that
starts with its tag; a later version may only add fields at the end, with defaults.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar, get_args

import msgspec

from escrowmq.model.catalog import Group, Setting, Topic
from escrowmq.transaction.pop_records import PopAcknowledged, PopPlaced
from escrowmq.transaction.recall_records import Recalled
from escrowmq.transaction.user_records import AccessWasOn, UserPut, UserRemoved

NEVER = 2**63 - 1
"""Due time of a row that needs no more attention."""

PLAIN = 2**32 - 1
"""Origin of a row that is not a half message: an ordinary message that waits for its time."""

NOWHERE = -1
"""The queue offset of a message whose topic was deleted before its time came."""

UNNUMBERED = -1
"""The request number of a stock client's half message."""


BOOT_CLOCK = "boot_clock"
KERNEL = "kernel"
CLIENTS = "clients"
PERSON = "person"
"""Why store time moves ahead: the source that vouches for the new time."""

BEHIND = "behind"
"""The wall clock is behind store time, which does not go back."""

AGREES = "agrees"
"""The wall clock is no longer behind."""


class Span(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Queue offsets ``[first, first + count)`` assigned in one queue."""

    queue: int
    first: int
    count: int


class NamedQueue(msgspec.Struct, frozen=True, array_like=True, tag=1, gc=False):
    """From here on ``id`` stands for this queue."""

    id: int
    topic: str
    queue_id: int
    #: Incarnation of the topic; 0 in a log that does not keep topics.
    incarnation: int = 0


class NamedOrigin(msgspec.Struct, frozen=True, array_like=True, tag=2, gc=False):
    """From here on ``id`` stands for this producer group, ledger, time allowed and user."""

    id: int
    group: str
    ledger: str
    allowed_ms: int
    #: The user that sent the half messages; empty without access control.
    user: str = ""


class Placed(msgspec.Struct, frozen=True, array_like=True):
    """The messages that come with a record, one item each, in the order of its frame.

    Recovery takes everything it needs from here, so it never parses a message. The core knows only
    the queues of new messages. The encoder knows their bytes, and makes the record that is written.
    """

    queues: list[int]
    sizes: list[int] = []
    crcs: list[int] = []
    tags: list[int] = []
    #: Hashes of the unique keys, one per message.
    unique: list[int] = []
    #: Hashes of further keys, and the index of the message that each belongs to.
    keys: list[int] = []
    keyed: list[int] = []


class Stored(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """Ordinary messages, visible at once."""

    queue_offsets: list[int]
    placed: Placed


class Scheduled(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """Ordinary messages that become visible at their own times. They take half offsets too."""

    first: int
    deliver_at_ms: list[int]
    placed: Placed


class Prepared(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """Half messages: one request of one transaction."""

    first: int
    #: First half message of the transaction, which may be of an earlier request.
    head: int
    origin: int
    transaction_id: str
    number: int
    next_check_at_ms: int
    #: Delay after the commit until each becomes visible; empty when no message is delayed.
    deliver_after_ms: list[int]
    placed: Placed


class Decided(msgspec.Struct, frozen=True, array_like=True, tag=6):
    """The op record: one decision for all half messages of a transaction."""

    head: int
    state: int
    by: str
    #: Rows ``(first, count)`` that this decides.
    ranges: list[tuple[int, int]]
    given: list[Span]
    #: Rows that become visible later, and when.
    waiting: list[tuple[int, int]]
    #: A person forced the decision, whatever the ledger said.
    is_forced: bool = False


class BatchDecided(msgspec.Struct, frozen=True, array_like=True, tag=7):
    """One decision for all attempts of a Spark batch.

    Without attempts it only remembers the batch: an empty one, or one that another broker decided.
    """

    app_id: str
    query_id: str
    batch_id: int | str
    by: str
    heads: list[int]
    ranges: list[tuple[int, int]]
    given: list[Span]
    #: Rows that become visible later, and when.
    waiting: list[tuple[int, int]]
    #: The writer's fingerprint of all rows; empty if it gave none.
    content: str = ""
    #: Whether the query decides every number, so that a gap shows that decisions were lost.
    is_gapless: bool = False


class Asked(msgspec.Struct, frozen=True, array_like=True, tag=8, gc=False):
    """A live producer was sent a back-check."""

    head: int
    checks_sent: int
    next_check_at_ms: int
    client: str


class Answered(msgspec.Struct, frozen=True, array_like=True, tag=9, gc=False):
    """A producer answered a back-check with UNKNOWN, and perhaps a reason."""

    head: int
    checks_sent: int
    client: str
    #: The producer's words, such as the error that its check raised.
    remark: str = ""


class Parked(msgspec.Struct, frozen=True, array_like=True, tag=10, gc=False):
    """The transaction gets no more back-checks until it is resumed or decided."""

    head: int
    reason: str


class Resumed(msgspec.Struct, frozen=True, array_like=True, tag=11, gc=False):
    """A parked transaction gets back-checks again, from the first one."""

    head: int
    next_check_at_ms: int
    by: str


class Released(msgspec.Struct, frozen=True, array_like=True, tag=12):
    """Messages that became visible: ``rows[i]`` is now at ``queue_offsets[i]`` of its queue.

    The offset is ``NOWHERE`` if the topic was deleted: the message will never be visible.
    """

    rows: list[int]
    queues: list[int]
    queue_offsets: list[int]


class CarriedRow(msgspec.Struct, frozen=True, array_like=True):
    """Everything that the state table knows about one half message that was carried forward."""

    half_offset: int
    log_offset: int
    stored_at_ms: int
    origin: int
    state: int
    checks_sent: int
    next_at_ms: int
    part: int
    head: int
    number: int
    transaction_id: str
    deliver_after_ms: int


class Carried(msgspec.Struct, frozen=True, array_like=True, tag=13):
    """Half messages carried forward, by retention or because they become visible very late.

    They belong to one request, or are ordinary messages that were sent alone. Their bytes are in
    this frame, unchanged, and they keep their identity.
    """

    rows: list[CarriedRow]
    placed: Placed
    #: When the first part of the request was carried; 0 if it was not carried in parts.
    since_ms: int = 0


class Lost(msgspec.Struct, frozen=True, array_like=True, tag=14):
    """Repair found a range of the log damaged and put this frame in its place.

    The records in the range are lost. Offsets that they assigned stay assigned, so that every half
    message and every message in a queue keeps its own.
    """

    #: Bytes of the range, from the start of this frame on.
    length: int
    #: The next half offset after the range; -1 if it assigned none.
    rows_end: int = -1
    #: The next queue offset of each queue in which the range assigned offsets.
    queue_ends: list[tuple[int, int]] = []


class DecidedMany(msgspec.Struct, frozen=True, array_like=True, tag=15, gc=False):
    """The op record of many transactions of one half message each, none of which waits.

    Each is decided on its own: they only share a frame.
    """

    by: str
    #: Half offsets, 8 bytes each, little-endian.
    committed: bytes
    rolled_back: bytes
    #: One run per queue, in the order of ``committed``.
    given: list[Span]

    @property
    def ranges(self) -> list[tuple[int, int]]:
        """Rows ``(first, count)`` that this decides, the committed ones first."""
        return [(row, 1) for row in (*unpack_rows(self.committed), *unpack_rows(self.rolled_back))]


class Began(msgspec.Struct, frozen=True, array_like=True, tag=16, gc=False):
    """A broker started: from this frame on, the log is written under this epoch."""

    epoch: str
    #: The boot clock at the frame's time, and the id of the boot that it counts from.
    boot_ms: int = 0
    boot_id: str = ""


class TimeMoved(msgspec.Struct, frozen=True, array_like=True, tag=17, gc=False):
    """Store time moves to ``to_ms``, or the wall clock is there and store time does not follow.

    ``why`` tells the reason. No record has the new time before this one.
    """

    #: Store time before; then the new store time, or the wall clock that is not followed.
    from_ms: int
    to_ms: int
    why: str
    #: The person who confirmed it, if one did.
    by: str
    #: The boot clock at that moment, and the id of the boot that it counts from.
    boot_ms: int = 0
    boot_id: str = ""
    #: If the wall clock is behind: the store time since which it has been this far behind or more.
    since_ms: int = 0


class TopicPut(msgspec.Struct, frozen=True, array_like=True, tag=18):
    """The topic is created, or changed if this incarnation exists."""

    topic: Topic
    #: Never reused; 0 for a topic from before the log kept topics.
    incarnation: int
    #: A topic of this name was deleted before, and its consumers may still come.
    is_remade: bool = False
    #: A message or a consumer made it, and no operator has changed it since.
    is_made_by_use: bool = False


class TopicRemoved(msgspec.Struct, frozen=True, array_like=True, tag=19):
    """The topic and these queues are removed; their messages are never delivered again."""

    name: str
    incarnation: int
    queues: list[int]
    #: ``deleted`` or ``expired``.
    reason: str
    by: str
    #: The queues with messages that are not yet visible: they keep their names.
    held: list[int] = []


class GroupPut(msgspec.Struct, frozen=True, array_like=True, tag=20):
    """The consumer group is created, or changed."""

    group: Group
    #: A member made it, and no operator has changed it since.
    is_made_by_use: bool = False


class GroupRemoved(msgspec.Struct, frozen=True, array_like=True, tag=21):
    """The consumer group and its offsets are removed."""

    name: str
    reason: str
    by: str


class SettingPut(msgspec.Struct, frozen=True, array_like=True, tag=22):
    """A value is set, or removed."""

    setting: Setting
    is_removed: bool = False


class CatalogMarked(msgspec.Struct, frozen=True, array_like=True, tag=23, gc=False):
    """A mark about all topics and groups: ``kept`` or ``offsets_lost``."""

    #: ``kept``: from here on the log has every topic and group. ``offsets_lost``: the offsets of
    #: some consumer groups, or of all, are lost.
    mark: str
    detail: str = ""


class OriginsExpired(msgspec.Struct, frozen=True, array_like=True, tag=24):
    """These origins expire: they are unused, and none of their half messages is undecided."""

    numbers: list[int]


class QueriesExpired(msgspec.Struct, frozen=True, array_like=True, tag=25):
    """These queries of Spark sinks expire because they are unused: pairs of app and query."""

    queries: list[tuple[str, str]]


class NamesUsed(msgspec.Struct, frozen=True, array_like=True, tag=26):
    """These consumer groups and topics were used since the last note."""

    groups: list[str]
    topics: list[str]


def unpack_rows(packed: bytes) -> memoryview[int]:
    """Return the half offsets that a record holds as bytes."""
    return memoryview(packed).cast("q")


NameRecord = NamedQueue | NamedOrigin | OriginsExpired | QueriesExpired | NamesUsed
"""Records about names: the numbers that stand for them, their uses, their expiry."""

NewRecord = Stored | Scheduled | Prepared
"""Records of new messages."""

MessageRecord = NewRecord | Carried
"""Records with messages in their frame; at most one per frame."""

Op = Decided | BatchDecided | DecidedMany
"""Records that decide."""

CheckRecord = Asked | Answered | Parked | Resumed
"""Records about the back-checks of an undecided transaction."""

CatalogRecord = (
    TopicPut
    | TopicRemoved
    | GroupPut
    | GroupRemoved
    | SettingPut
    | CatalogMarked
    | UserPut
    | UserRemoved
    | AccessWasOn
)
"""Records of the catalog, which users belong to."""

HistoryRecord = Began | TimeMoved | Lost
"""Records about the log itself: its epochs, its time, its damage."""

PopRecord = PopPlaced | PopAcknowledged
"""Records of pop positions."""

QuietRecord = NameRecord | CheckRecord | CatalogRecord | HistoryRecord | PopRecord | Recalled
"""Records that neither bring messages nor make any visible."""

Record = MessageRecord | Op | Released | QuietRecord
"""Every record. Each reader matches over this union up to ``assert_never``."""

BRINGS_MESSAGES = frozenset(get_args(MessageRecord))


def request_in(records: Iterable[Record], first: int) -> Prepared | CarriedRow | None:
    """Return what these records say about the request that starts at this row, or None."""
    for record in records:
        if isinstance(record, Prepared) and record.first == first:
            return record
        if isinstance(record, Carried) and record.rows[0].half_offset == first:
            return record.rows[0]
    return None


Reader = TypeVar("Reader")


def readers_by_type(choose: Callable[[Record], Reader]) -> dict[type[Record], Reader]:
    """Return the reader of each type of record, for code that reads very many.

    ``choose`` is a match over all records that looks at nothing but the type. A match takes up to
    3 us per record, a lookup by type 0.06 us.
    """
    # ``choose`` looks only at the type of these records, so their values do not matter.
    return {kind: choose(kind(*kind.__struct_fields__)) for kind in get_args(Record)}
