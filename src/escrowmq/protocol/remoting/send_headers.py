"""Headers of producers' requests and of back-checks."""

from __future__ import annotations

from typing import cast

import msgspec
from msgspec import field

from escrowmq.model.errors import ProtocolViolation
from escrowmq.protocol.message.limits import Name
from escrowmq.protocol.message.properties import MSG_REGION, TRACE_ON
from escrowmq.protocol.remoting.codes import RequestCode
from escrowmq.protocol.remoting.headers import ExtFields, Header, Int32, Int64, read_header


class SendHeader(Header, frozen=True, kw_only=True):
    """SEND_MESSAGE_V2 and SEND_BATCH_MESSAGE, whose wire names are single letters to save bytes.

    SEND_MESSAGE from old clients has long names and is converted to this class.
    """

    producer_group: Name = field(name="a")
    topic: Name = field(name="b")
    #: For a topic that does not exist yet: the topic to take settings from, and its queue count.
    default_topic: Name = field(name="c")
    default_queue_count: Int32 = field(name="d")
    queue_id: Int32 = field(name="e")
    sys_flag: Int32 = field(name="f")
    born_at_ms: Int64 = field(name="g")
    flag: Int32 = field(name="h")
    properties: str = field(name="i", default="")
    reconsume_times: Int32 = field(name="j", default=0)
    is_unit_mode: bool = field(name="k", default=False)
    max_reconsume_times: Int32 | None = field(name="l", default=None)
    is_batch: bool = field(name="m", default=False)
    broker_name: Name = field(name="n", default="")


#: Wire names of SEND_MESSAGE that are not our names in camel case.
_LONG_NAMES = {
    "default_queue_count": "defaultTopicQueueNums",
    "born_at_ms": "bornTimestamp",
    "is_unit_mode": "unitMode",
    "is_batch": "batch",
    "broker_name": "bname",
}
#: SEND_MESSAGE: the fields of ``SendHeader`` with long wire names.
LongSendHeader = cast(
    "type[Header]",
    msgspec.defstruct(
        "LongSendHeader",
        [
            (one.name, one.type, field(name=_LONG_NAMES.get(one.name), default=one.default))
            for one in msgspec.structs.fields(SendHeader)
        ],
        bases=(Header,),
        module=__name__,
        frozen=True,
        kw_only=True,
    ),
)


class SendResponseHeader(Header, frozen=True, kw_only=True):
    """Where a message is stored. A half message's queue offset is its row in the state table."""

    #: The offset message id; comma-separated ids for a batch.
    offset_message_id: str = field(name="msgId")
    queue_id: Int32
    queue_offset: Int64
    transaction_id: str | None = None
    #: With it, the sender of a delayed message takes the message back.
    recall_handle: str | None = None
    region: str | None = field(name=MSG_REGION, default=None)
    is_traced: bool | None = field(name=TRACE_ON, default=None)


class EndTransactionHeader(Header, frozen=True, kw_only=True):
    """END_TRANSACTION: a producer's resolution, by itself or as answer to a back-check."""

    topic: Name = ""
    producer_group: Name
    half_offset: Int64 = field(name="tranStateTableOffset")
    log_offset: Int64 = field(name="commitLogOffset")
    #: The sys flag bits of a stored message: 0x8 commit, 0xC rollback, 0 unknown.
    resolution_bits: Int32 = field(name="commitOrRollback")
    is_check_answer: bool = field(name="fromTransactionCheck", default=False)
    unique_key: Name = field(name="msgId")
    transaction_id: Name = ""
    broker_name: Name = field(name="bname", default="")


class EndTransactionResponseHeader(Header, frozen=True, kw_only=True):
    """The one decision of a transaction."""

    state: str
    by: str
    at_ms: Int64
    #: The transaction was decided before this request.
    is_repeated: bool = False


class RecallHeader(Header, frozen=True, kw_only=True):
    """RECALL_MESSAGE: the sender of a delayed message takes it back."""

    producer_group: Name = ""
    topic: Name
    handle: str = field(name="recallHandle")
    broker_name: Name = field(name="bname", default="")


class RecallResponseHeader(Header, frozen=True, kw_only=True):
    """The message that never becomes visible."""

    message_id: str = field(name="msgId")
    region: str | None = field(name=MSG_REGION, default=None)


class CheckTransactionHeader(Header, frozen=True, kw_only=True):
    """CHECK_TRANSACTION_STATE: a back-check. The half message is the body."""

    topic: str | None = None
    half_offset: Int64 = field(name="tranStateTableOffset")
    log_offset: Int64 = field(name="commitLogOffset")
    unique_key: str | None = field(name="msgId", default=None)
    transaction_id: str | None = None
    offset_message_id: str | None = field(name="offsetMsgId", default=None)
    broker_name: str | None = field(name="bname", default=None)
    #: For half messages with a ledger: the broker's lineage, and the ends of its log and table.
    lineage: str | None = field(name="escrowLineage", default=None)
    log_end: Int64 | None = field(name="escrowLogEnd", default=None)
    half_end: Int64 | None = field(name="escrowHalfEnd", default=None)
    #: The broker's store time, on which the half message's time and its deadline are based.
    now_ms: Int64 | None = field(name="escrowNow", default=None)


class ResumeCheckHeader(Header, frozen=True, kw_only=True):
    """RESUME_CHECK_HALF_MESSAGE: restart the back-checks of a parked transaction."""

    topic: Name = ""
    offset_message_id: Name = field(name="msgId")


def read_send_header(code: int, ext: ExtFields) -> SendHeader:
    """Decode the header of a message or a batch, with short or long names."""
    if code == RequestCode.SEND_MESSAGE:
        return _from_long(read_header(LongSendHeader, ext))
    try:
        return read_header(SendHeader, ext)
    except ProtocolViolation as violation:
        if code != RequestCode.SEND_BATCH_MESSAGE:
            raise
        # Some clients send batches with the long names.
        try:
            return _from_long(read_header(LongSendHeader, ext))
        except ProtocolViolation:
            raise violation from None


def _from_long(header: Header) -> SendHeader:
    return SendHeader(**msgspec.structs.asdict(header))
