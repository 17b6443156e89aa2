"""Templates for the two most frequent responses: a message was stored, messages were found.

The result equals that of ``remoting.encode_response`` for the same header, except for the order of
the fields, and takes a quarter of the time.
"""

from __future__ import annotations

from struct import Struct
from typing import TYPE_CHECKING

import msgspec

from escrowmq.protocol.message.ids import offset_message_id
from escrowmq.protocol.remoting.codes import OUR_LANGUAGE, OUR_VERSION, ResponseCode
from escrowmq.protocol.remoting.consumer_headers import PullResponseHeader
from escrowmq.protocol.remoting.frames import FLAG_RESPONSE, encode_response
from escrowmq.protocol.remoting.send_headers import SendResponseHeader

if TYPE_CHECKING:
    from escrowmq.protocol.remoting.frames import RemotingFrame

#: The common start of all templates; ``opaque`` is filled in.
_START = (
    f'{{"code":{int(ResponseCode.SUCCESS)},"flag":{FLAG_RESPONSE},"language":"{OUR_LANGUAGE}",'
    f'"opaque":%d,"serializeTypeCurrentRPC":"JSON","version":{OUR_VERSION},'
)
_FOUND = (
    f'{_START}"remark":"found","extFields":{{"suggestWhichBrokerId":"0",'
    '"nextBeginOffset":"%d","minOffset":"%d","maxOffset":"%d"}}'
).encode()
_SIZES = Struct(">II")
_WORD_BYTES = 4

_encode_json = msgspec.json.Encoder().encode


class SentAnswers:
    """Encoder of one broker's answers to senders. The broker's host is part of each message id."""

    def __init__(self, store_host: bytes, region: str) -> None:
        self._store_host = store_host
        self._region = region
        start = (
            f'{_START}"extFields":{{"MSG_REGION":"{region}","TRACE_ON":"true",'
            f'"msgId":"{store_host.hex().upper()}%016X","queueId":"%d","queueOffset":"%d"'
        ).encode()
        self._stored = start + b"}}"
        self._held = start + b',"transactionId":%b}}'

    def encode(
        self,
        request: RemotingFrame,
        log_offset: int,
        queue_id: int,
        queue_offset: int,
        transaction_id: str | None = None,
    ) -> bytes:
        """Encode the location of a stored message and, for a half message, its transaction id."""
        if request.is_binary:
            header = SendResponseHeader(
                offset_message_id=offset_message_id(self._store_host, log_offset),
                queue_id=queue_id,
                queue_offset=queue_offset,
                transaction_id=transaction_id,
                region=self._region,
                is_traced=True,
            )
            return encode_response(request, ResponseCode.SUCCESS, header=header)
        if transaction_id is None:
            raw = self._stored % (request.opaque, log_offset, queue_id, queue_offset)
        else:
            named = _encode_json(transaction_id)
            raw = self._held % (request.opaque, log_offset, queue_id, queue_offset, named)
        return _SIZES.pack(_WORD_BYTES + len(raw), len(raw)) + raw


def encode_found(
    request: RemotingFrame, next_offset: int, start: int, end: int, messages: list[bytes]
) -> bytes:
    """Encode a pull response: messages, the next offset, and the queue's range of offsets."""
    if request.is_binary:
        header = PullResponseHeader(next_offset=next_offset, min_offset=start, max_offset=end)
        body = b"".join(messages)
        return encode_response(
            request, ResponseCode.SUCCESS, header=header, remark="found", body=body
        )
    raw = _FOUND % (request.opaque, next_offset, start, end)
    size = _WORD_BYTES + len(raw) + sum(map(len, messages))
    return b"".join((_SIZES.pack(size, len(raw)), raw, *messages))
