"""The third level of scenarios: a broker behind sockets, called as its clients call it.

It uses stock requests where a stock client has one, and native requests otherwise. Only two things
bypass the sockets: parking by hand, for which there is no request, and reading the rows.
"""

from __future__ import annotations

import ast
import asyncio
import re
from collections.abc import Coroutine, Sequence
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from escrowmq.broker.server import Server
from escrowmq.client.network.native_calls import NativeCalls
from escrowmq.model.errors import RequestRefused
from escrowmq.model.message import SentMessage
from escrowmq.model.resolution import Resolution
from escrowmq.model.verdict_outcome import VerdictOutcome
from escrowmq.protocol.message.ids import offset_message_id
from escrowmq.protocol.message.stored_message import StoredMessage, decode_many
from escrowmq.protocol.native import headers
from escrowmq.protocol.native.frames import NativeReply
from escrowmq.protocol.native.requests import NativeCode
from escrowmq.protocol.native.row_forms import NativeRow
from escrowmq.protocol.native.rows import AttemptRow, SentRow, VerdictRow
from escrowmq.protocol.native.sink_headers import DecideBatchAnswer, DecideBatchHeader
from escrowmq.protocol.remoting.bodies import encode_body
from escrowmq.protocol.remoting.client_bodies import Heartbeat, ProducerMembership
from escrowmq.protocol.remoting.codes import RequestCode, ResponseCode
from escrowmq.protocol.remoting.frames import RemotingFrame
from escrowmq.protocol.remoting.send_headers import EndTransactionHeader, ResumeCheckHeader
from escrowmq.testing.calls import Calls
from escrowmq.testing.settler import CheckableTransaction
from escrowmq.transaction.commands import (
    Append,
    Appended,
    BatchReply,
    Command,
    DecideBatch,
    Decision,
    End,
    EndReply,
    HoldReply,
    Prepare,
    Reply,
    Resume,
    Verdict,
)
from escrowmq.transaction.core import Transactions
from escrowmq.transaction.records import NEVER
from escrowmq.transaction.states import State
from tests.conformance.talk import pulling
from tests.unit.broker.wire import (
    COMMIT,
    END,
    ROLLBACK,
    SEND,
    UNKNOWN,
    Peer,
    eventually,
    facts,
    sending,
    serving,
)
from tests.unit.store.helpers import releasable

BITS = {Resolution.COMMIT: COMMIT, Resolution.ROLLBACK: ROLLBACK, Resolution.UNKNOWN: UNKNOWN}
CONTRADICTED = (ResponseCode.TRANSACTION_SHOULD_COMMIT, ResponseCode.TRANSACTION_SHOULD_ROLLBACK)
GROUPS = ("producers", "others")
ROWS_MAX = 1_000
_FACT = re.compile(r"(\w+)=('[^']*'|-?\d+)")

T = TypeVar("T")


class BrokerLevel(Calls):
    """A broker, its clients, and an event loop that runs only while a call waits for it."""

    #: Changed fields of the broker's config sections.
    changes: ClassVar[dict[str, Any]] = {}

    def __init__(self, data: Path) -> None:
        super().__init__(None, None)
        self._data = data
        self._runner = asyncio.Runner()
        #: Committed rows that wait for their delivery time. The broker releases them by itself.
        self._waiting: set[int] = set()
        self._start()

    def _start(self) -> None:
        self._serving: AbstractAsyncContextManager[Server] = serving(
            self._data, self.clock, **self.changes
        )
        self._server = self._run(self._serving.__aenter__())
        self._native = NativeCalls(self._server.broker_address)
        self._clients: dict[str, Peer] = {}
        self._producer: Peer | None = None

    def _stop(self) -> None:
        self._native.close()
        self._run(self._serving.__aexit__(None, None, None))

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return self._runner.run(work)

    def restart(self) -> BrokerLevel:
        """Stop the broker and start it again, as an operator would."""
        self._stop()
        self._start()
        return self

    def close(self) -> None:
        """Stop the broker."""
        self._stop()
        self._runner.close()

    # Reading state.

    @property
    def core(self) -> Transactions:
        """The transactions, for reading only."""
        return self._server.broker.store.core

    def due(self, until_ms: int, limit: int) -> list[int]:
        """Return the rows that are due by then."""
        return self._server.broker.store.table.due(until_ms, limit)

    def pull(self, topic: str, queue_id: int = 0) -> list[StoredMessage]:
        """Return the messages that a consumer of a queue gets."""
        header = pulling(topic=topic, queue_id=queue_id, messages_max=ROWS_MAX)
        answer = self._ask(RequestCode.PULL_MESSAGE, header)
        return decode_many(answer.body) if answer.code == ResponseCode.SUCCESS else []

    def release_due(self) -> list[int]:
        """Wait until all due rows are released; return those released since the last call."""
        table = self._server.broker.store.table
        self._run(eventually(lambda: not releasable(table, self.clock.now_ms(), 1)))
        left = self._rows_that_wait()
        released = sorted(self._waiting - left)
        self._waiting = left
        return released

    def _rows_that_wait(self) -> set[int]:
        rows = self.due(NEVER - 1, ROWS_MAX)
        return {row for row in rows if self.state(row) is State.COMMITTED}

    # Commands.

    def submit(self, command: Command) -> Decision:
        """Send the command as a client would; a refusal is in the decision."""
        try:
            decision = self._submit(command)
        except RequestRefused as refused:
            return Decision(refused=refused)
        self._waiting |= self._rows_that_wait()
        return decision

    def _submit(self, command: Command) -> Decision:
        reply: Reply | None = None
        match command:
            case Prepare(messages=[message], number=None, ledger=""):
                reply = self._hold(command, message)
            case Prepare():
                reply = self._hold_many(command)
            case Append():
                reply = self._send(command.messages)
            case End():
                reply = self._end(command, self._client(command.by))
            case DecideBatch():
                reply = self._decide_batch(command)
            case Resume():
                self._resume(command)
            case _:
                return self._run(self._server.broker.writer.submit(command))
        return Decision(reply=reply)

    def _hold(self, command: Prepare, message: SentMessage) -> HoldReply:
        """Send one half message as a stock client does."""
        properties = {
            "UNIQ_KEY": command.transaction_id,
            "TRAN_MSG": "true",
            "PGROUP": command.group,
        }
        if message.deliver_after_ms:
            properties["TIMER_DELAY_MS"] = str(message.deliver_after_ms)
        end = self.core.table.end
        told = facts(self._send_one(message, properties))
        return HoldReply(
            half_offset=int(told["queueOffset"]),
            count=1,
            log_offsets=[int(told["msgId"][16:], 16)],
            # The broker does not tell a stock client.
            repeated=self.core.table.end == end,
        )

    def _hold_many(self, command: Prepare) -> HoldReply:
        header = headers.HoldHeader(
            producer_group=command.group,
            transaction_id=command.transaction_id,
            number=command.number or 0,
            ledger=command.ledger,
        )
        answer = self._call(
            NativeCode.HOLD_HALVES, header, [_sent(one) for one in command.messages]
        )
        assert isinstance(answer.header, headers.HoldAnswer)
        return HoldReply(
            half_offset=answer.header.half_offset,
            count=len(answer.rows),
            log_offsets=[row.log_offset for row in answer.rows],
            repeated=answer.header.is_repeated,
        )

    def _send(self, messages: Sequence[SentMessage]) -> Appended:
        log_offsets = []
        for message in messages:
            at_ms = message.deliver_at_ms
            answer = self._send_one(message, {"TIMER_DELIVER_MS": str(at_ms)} if at_ms else {})
            log_offsets.append(int(facts(answer)["msgId"][16:], 16))
        return Appended(queue_offsets=[], log_offsets=log_offsets)

    def _send_one(self, message: SentMessage, properties: dict[str, str]) -> RemotingFrame:
        header = sending(message.topic, properties, queue_id=message.queue_id)
        answer = self._ask(SEND, header, message.body)
        if answer.code != ResponseCode.SUCCESS:
            raise refusal(answer.remark)
        return answer

    def _end(self, command: End, peer: Peer) -> EndReply | None:
        half = self.core.table.get(command.half_offset)
        header = EndTransactionHeader(
            producer_group=self.core.names.origins[half.origin].group if half else "producers",
            half_offset=command.half_offset,
            log_offset=half.log_offset if half else 0,
            resolution_bits=BITS[command.resolution],
            is_check_answer=command.from_check,
            unique_key="",
        )
        answer = self._run(peer.ask(END, header))
        told = facts(answer)
        if answer.code in CONTRADICTED:
            half_offset = command.half_offset
            raise RequestRefused(f"already_{told['state']}", half_offset=half_offset, by=told["by"])
        if answer.code != ResponseCode.SUCCESS:
            raise refusal(answer.remark)
        if "state" not in told:
            return None
        return EndReply(
            half_offset=command.half_offset,
            state=State[told["state"].upper()],
            by=told["by"],
            at_ms=int(told["atMs"]),
            repeated=told["isRepeated"] == "true",
        )

    def _resume(self, command: Resume) -> None:
        log_offset = self.core.row(command.half_offset).log_offset
        message_id = offset_message_id(self._server.broker.identity.store_host, log_offset)
        header = ResumeCheckHeader(offset_message_id=message_id)
        answer = self._ask(RequestCode.RESUME_CHECK_HALF_MESSAGE, header)
        if answer.code != ResponseCode.SUCCESS:
            raise refusal(answer.remark)

    def _decide_batch(self, command: DecideBatch) -> BatchReply:
        assert isinstance(command.batch_id, int)
        header = DecideBatchHeader(
            app_id=command.app_id,
            query_id=command.query_id,
            batch_number=command.batch_id,
            by=command.by,
        )
        rows = [
            AttemptRow(one.transaction_id, one.last_number, one.rows) for one in command.attempts
        ]
        answer = self._call(NativeCode.DECIDE_BATCH, header, rows).header
        assert isinstance(answer, DecideBatchAnswer)
        assert answer.outcome in ("decided", "already_done")
        return BatchReply(outcome=answer.outcome, rows=answer.messages)  # type: ignore[arg-type]

    # The pipeline's requests.

    def undecided(self, limit: int = ROWS_MAX) -> list[CheckableTransaction]:
        """Return every transaction that may be checked."""
        header = headers.ListTransactionsHeader(states="prepared", with_ids=True, limit=limit)
        rows = self._call(NativeCode.LIST_TRANSACTIONS, header).rows
        return [
            CheckableTransaction(
                half_offset=row.half_offset,
                transaction_id=row.transaction_id,
                group=row.producer_group,
                ledger=row.ledger,
                allowed_ms=row.allowed_ms,
                state=State(row.state),
                age_ms=row.age_ms,
                wait_ms=row.wait_ms,
                checks_sent=row.checks_sent,
            )
            for row in rows
        ]

    def obey(
        self, verdicts: Sequence[Verdict], resolution: Resolution | None
    ) -> list[VerdictOutcome]:
        """Apply the verdicts; asked producers answer ``resolution``, or are offline for None."""
        producer = self._producer_that_is(online=resolution is not None)
        rows = [
            VerdictRow(
                one.half_offset,
                one.kind.value,
                one.state.value,
                one.checks_sent,
                one.reason or None,
            )
            for one in verdicts
        ]
        told = self._call(NativeCode.OBEY_VERDICTS, None, rows).rows
        outcomes = [VerdictOutcome(row.outcome) for row in told]
        self._answer_checks(outcomes.count(VerdictOutcome.ASKED), producer, resolution)
        return outcomes

    def _answer_checks(
        self, count: int, producer: Peer | None, resolution: Resolution | None
    ) -> list[int]:
        """Answer this many back-checks as the producer; return their half offsets."""
        asked = []
        for _ in range(count):
            assert producer is not None
            assert resolution is not None
            check = facts(self._run(producer.until(_is_check)))
            asked.append(int(check["tranStateTableOffset"]))
            said = End(half_offset=asked[-1], resolution=resolution, by="", from_check=True)
            self._end(said, producer)
        return asked

    def _producer_that_is(self, *, online: bool) -> Peer | None:
        clients = self._server.broker.clients
        if not online:
            if self._producer is not None:
                self._producer.close()
                self._producer = None
            self._run(eventually(lambda: not clients.producer_groups()))
        elif self._producer is None:
            self._producer = self._connected("producer", GROUPS)
        return self._producer

    # Connections.

    def _client(self, name: str) -> Peer:
        if name not in self._clients:
            self._clients[name] = self._connected(name)
        return self._clients[name]

    def _connected(self, name: str, groups: Sequence[str] = ()) -> Peer:
        members = tuple(ProducerMembership(group=group) for group in groups)
        body = encode_body(Heartbeat(client_id=name, producers=members))

        async def connect() -> Peer:
            peer = await Peer.to(self._server.broker_address)
            await peer.ask(RequestCode.HEART_BEAT, body=body)
            return peer

        return self._run(connect())

    def _ask(self, code: int, header: Any, body: bytes = b"") -> RemotingFrame:  # noqa: ANN401
        return self._run(self._client("client").ask(code, header, body))

    def _call(
        self, code: NativeCode, header: headers.NativeHeader | None, rows: Sequence[NativeRow] = ()
    ) -> NativeReply:
        try:
            return self._run(asyncio.to_thread(self._native.call, code, header, rows))
        except RequestRefused as refused:
            raise refusal(str(refused)) from None


def refusal(text: str) -> RequestRefused:
    """Parse the refusal in the text of a broker's answer."""
    code, _, rest = text.partition(": ")
    told = {name: ast.literal_eval(value) for name, value in _FACT.findall(rest)}
    return RequestRefused(code, **told)


def _sent(message: SentMessage) -> SentRow:
    delay_ms = message.deliver_after_ms
    properties = f"TIMER_DELAY_MS\x01{delay_ms}\x02" if delay_ms else ""
    return SentRow(message.topic, message.queue_id, message.body, properties, 0, 0, 0)


def _is_check(frame: RemotingFrame) -> bool:
    return not frame.is_response and frame.code == RequestCode.CHECK_TRANSACTION_STATE
