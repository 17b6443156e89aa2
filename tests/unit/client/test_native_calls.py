"""The blocking client: answers, pages, refusals, and connections that break."""

from __future__ import annotations

import socket
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import pytest

from escrowmq.client.network.native_calls import NativeCalls
from escrowmq.model.errors import (
    OutcomeUnknown,
    ProtocolViolation,
    RequestRefused,
    StoreCorrupt,
    Unavailable,
)
from escrowmq.protocol.native.headers import NativeRefusal, PagedAnswer, PagedHeader
from escrowmq.protocol.native.requests import NativeCode
from escrowmq.protocol.native.row_forms import RowForm, encode_rows
from escrowmq.protocol.native.rows import TopicRow
from escrowmq.protocol.remoting.codes import ResponseCode
from escrowmq.protocol.remoting.frames import (
    FrameSplitter,
    RemotingFrame,
    encode_request,
    encode_response,
)

Reply = Callable[[RemotingFrame], bytes | None]


@contextmanager
def answering(*replies: Reply) -> Iterator[str]:
    """Run a server with one reply per request. It closes the connection if a reply gives None."""
    listener = socket.create_server(("127.0.0.1", 0))
    left = deque(replies)

    def serve() -> None:
        with listener:
            while left:
                peer, _ = listener.accept()
                with peer:
                    talk(peer)

    def talk(peer: socket.socket) -> None:
        splitter = FrameSplitter()
        while data := peer.recv(65_536):
            for frame in splitter.feed(data):
                answer = left.popleft()(frame)
                if answer is None:
                    return
                peer.sendall(answer)

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    yield f"127.0.0.1:{listener.getsockname()[1]}"
    thread.join(10)


def topic(name: str) -> TopicRow:
    return TopicRow(
        topic=name,
        read_queue_count=1,
        write_queue_count=1,
        perm=6,
        message_type="NORMAL",
        is_system=False,
        created_at_ms=0,
    )


def page(name: str, cursor: str | None = None, form: RowForm = RowForm.MSGPACK) -> Reply:
    body = encode_rows(form, TopicRow, 1, [topic(name)])
    header = PagedAnswer(form=form, row_count=1, cursor=cursor)
    return lambda frame: encode_response(frame, ResponseCode.SUCCESS, header=header, body=body)


def refusing(error: str, kind: str, retry_after_ms: int | None = None) -> Reply:
    header = NativeRefusal(error=error, kind=kind, retry_after_ms=retry_after_ms)
    remark = f"{error}: because, fact=1"
    return lambda frame: encode_response(frame, 1, header=header, remark=remark)


def hang_up(_frame: RemotingFrame) -> None:
    return None


@pytest.mark.parametrize("form", list(RowForm))
def test_pages_are_asked_for_up_to_the_last(form: RowForm) -> None:
    with (
        answering(page("a", "1", form), page("b", "2", form), page("c", form=form)) as address,
        NativeCalls(address) as calls,
    ):
        rows = list(calls.rows(NativeCode.LIST_TOPICS, PagedHeader(form=form)))
        assert rows == [topic("a"), topic("b"), topic("c")]


def test_rows_may_stay_as_arrow_has_them() -> None:
    with (
        answering(page("a", "1", RowForm.ARROW), page("b", form=RowForm.ARROW)) as address,
        NativeCalls(address) as calls,
    ):
        answers = list(calls.arrow_pages(NativeCode.LIST_TOPICS))
    assert [answer.batch["topic"].to_pylist() for answer in answers] == [["a"], ["b"]]
    assert answers[0].batch.schema.names == list(TopicRow.__struct_fields__)


@pytest.mark.parametrize(
    ("reply", "kind", "code"),
    [
        (refusing("topic_unknown", "RequestRefused"), RequestRefused, "topic_unknown"),
        (refusing("inbox_full", "Unavailable", 5), Unavailable, "inbox_full"),
        (refusing("frame_damaged", "StoreCorrupt"), StoreCorrupt, "frame_damaged"),
        # An error class that only a newer broker has.
        (refusing("something", "SomethingNew"), RequestRefused, "something"),
        # A broker that is not EscrowMQ.
        (
            lambda frame: encode_response(frame, 3, remark="request type 30040 not supported"),
            RequestRefused,
            "request_unsupported",
        ),
    ],
)
def test_a_refusal_is_raised_as_the_broker_raised_it(
    reply: Reply, kind: type[Exception], code: str
) -> None:
    with answering(reply) as address, NativeCalls(address) as calls:
        with pytest.raises(kind) as raised:
            calls.call(NativeCode.LIST_TOPICS)
        assert raised.value.code == code  # type: ignore[attr-defined]
        if isinstance(raised.value, Unavailable):
            assert raised.value.retry_after_ms == 5
            assert raised.value.message == "because, fact=1"


@pytest.mark.parametrize(
    ("remark", "told"),
    [
        (" request type 30040 not supported", "is not EscrowMQ's"),
        ("request code 30040 is not known here", "the broker is older"),
    ],
    ids=["Apache RocketMQ", "an older broker of ours"],
)
def test_a_peer_that_does_not_know_a_request_is_told_from_an_older_broker(
    remark: str, told: str
) -> None:
    with (
        answering(lambda frame: encode_response(frame, 3, remark=remark)) as address,
        NativeCalls(address) as calls,
        pytest.raises(RequestRefused, match=f"request_unsupported: .*{told}") as raised,
    ):
        calls.call(NativeCode.LIST_TOPICS)
    assert remark.strip() in str(raised.value)


def test_requests_of_the_broker_during_a_call_are_passed_over() -> None:
    def noisy(frame: RemotingFrame) -> bytes:
        other = encode_request(40, frame.opaque, is_one_way=True)
        answer = page("a")(frame)
        assert answer is not None
        return other + answer

    with answering(noisy) as address, NativeCalls(address) as calls:
        assert calls.call(NativeCode.LIST_TOPICS).rows == [topic("a")]


def test_a_broken_connection_is_made_anew_by_the_next_call() -> None:
    with answering(hang_up, page("a")) as address, NativeCalls(address) as calls:
        with pytest.raises(Unavailable, match="broker_unreachable"):
            calls.call(NativeCode.LIST_TOPICS)
        assert calls.call(NativeCode.LIST_TOPICS).rows == [topic("a")]


def test_a_lost_answer_to_an_order_leaves_a_doubt() -> None:
    with (
        answering(hang_up) as address,
        NativeCalls(address) as calls,
        pytest.raises(OutcomeUnknown, match=r"answer_lost.*DECIDE_MANY"),
    ):
        calls.call(NativeCode.DECIDE_MANY)


def cut_off_with_a_length_as_of_http2(frame: RemotingFrame) -> bytes:
    answer = encode_response(frame, ResponseCode.SUCCESS, body=bytes(0x1204))
    whole = 0x1204.to_bytes(4) + answer[4:]
    return whole[:100]


def test_an_answer_that_breaks_off_leaves_a_doubt_whatever_its_length() -> None:
    replies = (cut_off_with_a_length_as_of_http2, page("a"))
    with answering(*replies) as address, NativeCalls(address, answer_s=0.5) as calls:
        with pytest.raises(OutcomeUnknown, match=r"answer_lost.*DECIDE_MANY"):
            calls.call(NativeCode.DECIDE_MANY)
        assert calls.call(NativeCode.LIST_TOPICS).rows == [topic("a")]


GARBAGE = (b"\x00\x00\x00\x00", b"\x7f\xff\xff\xff", b"HTTP")


@pytest.mark.parametrize("garbage", GARBAGE)
@pytest.mark.parametrize("code", [NativeCode.LIST_TOPICS, NativeCode.DECIDE_MANY])
def test_a_peer_that_never_sent_a_frame_is_not_a_broker(garbage: bytes, code: NativeCode) -> None:
    with answering(lambda _: garbage, page("a")) as address, NativeCalls(address) as calls:
        with pytest.raises(ProtocolViolation, match="peer_not_broker") as refused:
            calls.call(code)
        assert refused.value.fields["address"] == address
        assert calls.call(NativeCode.LIST_TOPICS).rows == [topic("a")]


@pytest.mark.parametrize("garbage", GARBAGE)
def test_garbage_from_a_broker_ends_the_connection(garbage: bytes) -> None:
    replies = (page("a"), lambda _: garbage, page("b"), lambda _: garbage)
    with answering(*replies) as address, NativeCalls(address) as calls:
        calls.call(NativeCode.LIST_TOPICS)
        with pytest.raises(Unavailable):
            calls.call(NativeCode.LIST_TOPICS)
        assert calls.call(NativeCode.LIST_TOPICS).rows == [topic("b")]
        with pytest.raises(OutcomeUnknown, match="answer_lost"):
            calls.call(NativeCode.DECIDE_MANY)


def test_a_silent_peer_may_be_a_broker_that_hangs() -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"127.0.0.1:{silent.getsockname()[1]}"
        with NativeCalls(address, answer_s=0.05) as calls:
            with pytest.raises(Unavailable, match=r"another program uses this address") as away:
                calls.call(NativeCode.LIST_TOPICS)
            with pytest.raises(OutcomeUnknown, match="answer_lost") as lost:
                calls.call(NativeCode.DECIDE_MANY)
    assert (away.value.fields["address"], lost.value.fields["address"]) == (address, address)


def test_a_call_waits_no_longer_than_its_timeout() -> None:
    with (
        socket.create_server(("127.0.0.1", 0)) as silent,
        NativeCalls(f"127.0.0.1:{silent.getsockname()[1]}", answer_s=0.05) as calls,
        pytest.raises(Unavailable, match="broker_unreachable"),
    ):
        calls.call(NativeCode.STATUS)


def test_a_slow_trickle_does_not_extend_the_wait() -> None:
    other = encode_request(40, 77, is_one_way=True)

    def trickle(frame: RemotingFrame) -> bytes:
        del frame
        return other

    with (
        answering(trickle) as address,
        NativeCalls(address, answer_s=0.05) as calls,
        pytest.raises(Unavailable),
    ):
        calls.call(NativeCode.STATUS)


def test_a_broker_that_is_not_there_is_unavailable() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with (
        NativeCalls(f"[127.0.0.1]:{port}") as calls,
        pytest.raises(Unavailable, match="is it running"),
    ):
        calls.call(NativeCode.STATUS)


def test_the_client_imports_neither_arrow_nor_numpy() -> None:
    code = (
        "import sys, escrowmq.client.network.native_calls;"
        "assert not {'pyarrow', 'numpy'} & sys.modules.keys(), 'heavy'"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
