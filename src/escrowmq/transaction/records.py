"""What a frame says besides the messages in it: the facts that recovery applies again.

Records hold absolute values (check number 3), never increments, so applying one twice, or on top
of a state that already contains it, gives the same state.  On disk each is a MessagePack array
that starts with its tag; a later version may only add fields at the end, with defaults.
"""

from __future__ import annotations

import msgspec

from escrowmq.model.catalog import Group, Setting, Topic

NEVER = 2**63 - 1
"""The next check of a half message that nobody needs to look at again."""

PLAIN = 2**32 - 1
"""The origin of a row that is no half message: an ordinary one waiting for its time."""

NOWHERE = -1
"""The queue offset of a message whose topic was deleted before its time came."""

UNNUMBERED = -1
"""The part number of a stock client's half message."""


BOOT_CLOCK = "boot_clock"
KERNEL = "kernel"
CLIENTS = "clients"
PERSON = "person"
"""Why store time moves ahead: who vouches for it."""

BEHIND = "behind"
"""The wall clock is behind store time, which stays."""

AGREES = "agrees"
"""The wall clock is no longer behind."""


class Span(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Queue offsets ``[first, first + count)`` given in one queue."""

    queue: int
    first: int
    count: int


class NamedQueue(msgspec.Struct, frozen=True, array_like=True, tag=1, gc=False):
    """From here on ``id`` stands for this queue."""

    id: int
    topic: str
    queue_id: int
    #: Of the topic; 0 in a log that does not keep topics.
    incarnation: int = 0


class NamedOrigin(msgspec.Struct, frozen=True, array_like=True, tag=2, gc=False):
    """From here on ``id`` stands for this producer group, ledger and time allowed."""

    id: int
    group: str
    ledger: str
    allowed_ms: int


class Placed(msgspec.Struct, array_like=True):
    """The messages that a record brings, one item each; they stand in its frame in this order.

    Recovery takes everything it needs from here, so it never parses a message.  The core knows
    the queues; the store fills in the rest when it encodes the messages.
    """

    queues: list[int]
    sizes: list[int] = []
    crcs: list[int] = []
    tags: list[int] = []
    #: Hashes of the unique keys, one per message.
    unique: list[int] = []
    #: Hashes of further keys under which messages can be found, and which message each is of.
    keys: list[int] = []
    keyed: list[int] = []


class Stored(msgspec.Struct, frozen=True, array_like=True, tag=3):
    """Ordinary messages, visible at once."""

    queue_offsets: list[int]
    placed: Placed


class Scheduled(msgspec.Struct, frozen=True, array_like=True, tag=4):
    """Ordinary messages that become visible at their own times.  They take rows like halves."""

    first: int
    deliver_at_ms: list[int]
    placed: Placed


class Prepared(msgspec.Struct, frozen=True, array_like=True, tag=5):
    """Half messages: one request of one transaction."""

    first: int
    #: The transaction's first half message, in whichever request it came.
    head: int
    origin: int
    transaction_id: str
    number: int
    next_check_at_ms: int
    #: How long after the commit each becomes visible; empty when none waits.
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
    #: A person decided it by force, whatever its ledger said.
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
    #: What the writer says of all its rows, to recognize them; empty if it says nothing.
    content: str = ""
    #: Whether the query decides every number, so that a gap shows that decisions were lost.
    is_gapless: bool = False


class Asked(msgspec.Struct, frozen=True, array_like=True, tag=8, gc=False):
    """A live producer was asked for the state of its transaction."""

    head: int
    checks_sent: int
    next_check_at_ms: int
    client: str


class Answered(msgspec.Struct, frozen=True, array_like=True, tag=9, gc=False):
    """A producer answered that it does not know yet, and perhaps why."""

    head: int
    checks_sent: int
    client: str
    #: The producer's words, such as the error that its check raised.
    remark: str = ""


class Parked(msgspec.Struct, frozen=True, array_like=True, tag=10, gc=False):
    """Nobody asks about this transaction any more until it is resumed or decided."""

    head: int
    reason: str


class Resumed(msgspec.Struct, frozen=True, array_like=True, tag=11, gc=False):
    """A parked transaction is asked about again, from the first check."""

    head: int
    next_check_at_ms: int
    by: str


class Released(msgspec.Struct, frozen=True, array_like=True, tag=12):
    """Messages whose time has come: ``rows[i]`` is now at ``queue_offsets[i]`` of its queue.

    At ``NOWHERE`` if its topic was deleted while it waited: it will never be visible.
    """

    rows: list[int]
    queues: list[int]
    queue_offsets: list[int]


class MovedRow(msgspec.Struct, frozen=True, array_like=True):
    """All that the state table knows of one half message that was carried forward."""

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


class Moved(msgspec.Struct, frozen=True, array_like=True, tag=13):
    """Half messages carried forward, by retention or because they become visible very late.

    They are of one request, or ordinary messages that were sent alone.  Their bytes are in this
    frame, unchanged, and they keep their identity.
    """

    rows: list[MovedRow]
    placed: Placed
    #: When the first part of the request was carried; 0 if it was not carried in parts.
    since_ms: int = 0


class Lost(msgspec.Struct, frozen=True, array_like=True, tag=14):
    """Repair found these bytes damaged and put this frame in their place.

    What they said is gone.  Numbers that they gave are given nevertheless, so that every half
    message and every message in a queue keeps its own.
    """

    #: Bytes of the log, from the start of this frame on.
    length: int
    #: The next half offset after it; -1 if it gave none.
    rows_end: int = -1
    #: The next queue offset of each queue in which it gave places.
    queue_ends: list[tuple[int, int]] = []


class DecidedMany(msgspec.Struct, frozen=True, array_like=True, tag=15, gc=False):
    """The op record of many transactions of one half message each, none of which waits.

    Each is decided on its own: they only share a frame.
    """

    by: str
    #: Half offsets, 8 bytes each, little-endian.
    committed: bytes
    rolled_back: bytes
    #: In each queue a run, in the order of those committed.
    given: list[Span]

    @property
    def ranges(self) -> list[tuple[int, int]]:
        """Rows ``(first, count)`` that this decides: those committed first."""
        return [(row, 1) for row in (*unpack_rows(self.committed), *unpack_rows(self.rolled_back))]


class Began(msgspec.Struct, frozen=True, array_like=True, tag=16, gc=False):
    """A broker started: from this frame on, the log is written under this epoch."""

    epoch: str
    #: The boot clock at the frame's time, and which boot of which machine it counts from.
    boot_ms: int = 0
    boot_id: str = ""


class TimeMoved(msgspec.Struct, frozen=True, array_like=True, tag=17, gc=False):
    """Store time moves to ``to_ms``, or the wall clock is there and store time does not follow.

    For what happened see the reasons above.  Nothing is written at the new time before this.
    """

    #: Store time before, and what the wall clock said.
    from_ms: int
    to_ms: int
    why: str
    #: The person who confirmed it, if one did.
    by: str
    #: The boot clock at that moment, and which boot of which machine it counts from.
    boot_ms: int = 0
    boot_id: str = ""
    #: If the wall clock is behind: the store time since which it is, by this much or more.
    since_ms: int = 0


class TopicPut(msgspec.Struct, frozen=True, array_like=True, tag=18):
    """The topic is made, or changed if it is there in this incarnation."""

    topic: Topic
    #: Numbers are never used twice; 0 is what was there before the log kept topics.
    incarnation: int
    #: A topic of this name was deleted before, and its consumers may still come.
    is_remade: bool = False
    #: A message or a consumer made it, and no operator has changed it since.
    is_made_by_use: bool = False


class TopicRemoved(msgspec.Struct, frozen=True, array_like=True, tag=19):
    """The topic is gone, with everything in these queues; nobody sees their messages again."""

    name: str
    incarnation: int
    queues: list[int]
    #: ``deleted`` or ``expired``.
    reason: str
    by: str
    #: Those of the queues that have messages which are not visible yet: they keep their names.
    held: list[int] = []


class GroupPut(msgspec.Struct, frozen=True, array_like=True, tag=20):
    """The consumer group is made, or changed."""

    group: Group
    #: A member made it, and no operator has changed it since.
    is_made_by_use: bool = False


class GroupRemoved(msgspec.Struct, frozen=True, array_like=True, tag=21):
    """The consumer group is gone, and how far it was."""

    name: str
    reason: str
    by: str


class SettingPut(msgspec.Struct, frozen=True, array_like=True, tag=22):
    """A value is set, or forgotten."""

    setting: Setting
    is_removed: bool = False


class CatalogMarked(msgspec.Struct, frozen=True, array_like=True, tag=23, gc=False):
    """Something about all topics and groups: ``kept`` or ``offsets_lost``."""

    #: ``kept``: from here on the log has every topic and group.  ``offsets_lost``: how far
    #: consumers were is not known any more, at least of some.
    mark: str
    detail: str = ""


class OriginsExpired(msgspec.Struct, frozen=True, array_like=True, tag=24):
    """These origins are no longer used, and none of their half messages is undecided."""

    numbers: list[int]


class QueriesExpired(msgspec.Struct, frozen=True, array_like=True, tag=25):
    """These queries of Spark sinks decide nothing any more: pairs of app and query."""

    queries: list[tuple[str, str]]


class NamesUsed(msgspec.Struct, frozen=True, array_like=True, tag=26):
    """These consumer groups and topics were used not long ago."""

    groups: list[str]
    topics: list[str]


def unpack_rows(packed: bytes) -> memoryview[int]:
    """Half offsets as they stand in a record."""
    return memoryview(packed).cast("q")


Record = (
    NamedQueue
    | NamedOrigin
    | Stored
    | Scheduled
    | Prepared
    | Decided
    | BatchDecided
    | Asked
    | Answered
    | Parked
    | Resumed
    | Released
    | Moved
    | Lost
    | DecidedMany
    | Began
    | TimeMoved
    | TopicPut
    | TopicRemoved
    | GroupPut
    | GroupRemoved
    | SettingPut
    | CatalogMarked
    | OriginsExpired
    | QueriesExpired
    | NamesUsed
)

CatalogRecord = TopicPut | TopicRemoved | GroupPut | GroupRemoved | SettingPut | CatalogMarked
"""Records of the catalog."""

CATALOG_RECORDS = frozenset(
    (TopicPut, TopicRemoved, GroupPut, GroupRemoved, SettingPut, CatalogMarked)
)

Op = Decided | BatchDecided | DecidedMany
"""Records that decide."""

BRINGS_MESSAGES = frozenset((Stored, Scheduled, Prepared, Moved))
"""Records with messages in their frame: at most one to a frame."""
