"""Signatures of native requests, and what the broker remembers against their repetition."""

from __future__ import annotations

import base64
import hashlib

import pytest

from escrowmq.model.errors import RequestRefused, Unavailable
from escrowmq.protocol.signing import native
from escrowmq.protocol.signing.native import SLACK_MS, Nonce
from escrowmq.protocol.signing.replays import Replays

KEY = b"correct-horse-battery"
SESSION = "0123456789abcdef" * 2
FIELDS = {
    "AccessKey": "shop",
    "form": "msgpack",
    native.NONCE: native.nonce_of(SESSION, 1),
    native.TIME: "1700000000000",
    "topic": "é",
}
T0 = 1_700_000_000_000


def by_hand(key: bytes, content: bytes) -> str:
    """HMAC as RFC 2104 writes it, without the module that the broker uses."""
    padded = key.ljust(64, b"\0")
    inner = hashlib.sha256(bytes(one ^ 0x36 for one in padded) + content).digest()
    outer = hashlib.sha256(bytes(one ^ 0x5C for one in padded) + inner).digest()
    return base64.b64encode(outer).decode()


def signed(code: int = 30_000, body: bytes = b"rows") -> dict[str, str]:
    return {**FIELDS, "Signature": native.sign(KEY, code, FIELDS, body)}


def test_the_content_is_code_fields_and_body() -> None:
    content = (
        b"EscrowMQ request 1\n30000\nAccessKey=4:shop\n"
        + f"escrowNonce=34:{SESSION}-1\n".encode()
        + b"escrowTime=13:1700000000000\nform=7:msgpack\ntopic=2:\xc3\xa9\nrows"
    )
    assert signed()["Signature"] == by_hand(KEY, content)
    assert native.is_signed([b"new", KEY], 30_000, signed(), b"rows")


@pytest.mark.parametrize(
    ("changes", "code", "body"),
    [
        ({}, 30_001, b"rows"),
        ({}, 30_000, b"Rows"),
        # The same values one after the other, with another border between them.
        ({"form": "msgpackt", "topic": "é"}, 30_000, b"rows"),
        ({"topic": "é\nrows"}, 30_000, b""),
        ({native.TIME: "1700000000001"}, 30_000, b"rows"),
        ({"more": ""}, 30_000, b"rows"),
    ],
)
def test_a_changed_request_is_not_signed(changes: dict[str, str], code: int, body: bytes) -> None:
    assert not native.is_signed([KEY], code, {**signed(), **changes}, body)


def test_the_nonce_and_the_time_are_read() -> None:
    assert native.read_nonce(FIELDS) == Nonce(SESSION, 1, T0)


@pytest.mark.parametrize(
    "changes",
    [
        {native.NONCE: ""},
        {native.NONCE: SESSION},
        {native.NONCE: f"{SESSION}-0"},
        {native.NONCE: f"{SESSION}--1"},
        {native.NONCE: f"{SESSION}-" + "9" * 30},
        {native.NONCE: f"{SESSION}-\uff11"},
        {native.TIME: ""},
        {native.TIME: "-1"},
        {native.TIME: "1e9"},
    ],
)
def test_a_request_without_nonce_or_time_is_refused(changes: dict[str, str]) -> None:
    with pytest.raises(RequestRefused, match="credentials_malformed"):
        native.read_nonce({**FIELDS, **changes})


def nonce(count: int, at_ms: int = T0, session: str = SESSION) -> Nonce:
    return Nonce(session, count, at_ms)


def test_a_request_is_accepted_once() -> None:
    replays = Replays()
    replays.accept("shop", nonce(1), T0)
    replays.accept("shop", nonce(2), T0)
    for count in (1, 2):
        with pytest.raises(RequestRefused, match="replayed"):
            replays.accept("shop", nonce(count), T0)
    replays.accept("shop", nonce(7), T0)
    # Sessions belong to their users: nobody can use up the counts of another.
    replays.accept("ann", nonce(1), T0)


@pytest.mark.parametrize("ahead_ms", [SLACK_MS + 1, -SLACK_MS - 1])
def test_an_old_time_is_refused(ahead_ms: int) -> None:
    replays = Replays()
    with pytest.raises(RequestRefused, match="request_too_old"):
        replays.accept("shop", nonce(1, T0 + ahead_ms), T0)
    assert len(replays) == 0


def test_a_forgotten_session_lets_nothing_in() -> None:
    replays = Replays()
    replays.accept("shop", nonce(5, T0 + SLACK_MS), T0)
    later = T0 + 2 * SLACK_MS + 1
    replays.accept("shop", nonce(1, later, "f" * 32), later)
    assert len(replays) == 1
    with pytest.raises(RequestRefused, match="request_too_old"):
        replays.accept("shop", nonce(5, T0 + SLACK_MS), later)


def test_the_newest_time_of_a_session_counts() -> None:
    replays = Replays()
    replays.accept("shop", nonce(1, T0 + SLACK_MS), T0)
    replays.accept("shop", nonce(2, T0 - SLACK_MS), T0)
    later = T0 + SLACK_MS + 2
    replays.accept("shop", nonce(1, later, "f" * 32), later)
    with pytest.raises(RequestRefused, match="replayed"):
        replays.accept("shop", nonce(1, T0 + SLACK_MS), later)


def test_sessions_are_limited() -> None:
    replays = Replays(sessions_max=3, of_one_max=2)
    for at in range(2):
        replays.accept("shop", nonce(1, T0, f"{at:032x}"), T0)
    with pytest.raises(Unavailable, match="too_many_sessions"):
        replays.accept("shop", nonce(1, T0, f"{2:032x}"), T0)
    replays.accept("ann", nonce(1), T0)
    with pytest.raises(Unavailable, match="too_many_sessions"):
        replays.accept("bob", nonce(1), T0)
    # Room comes back with time.
    later = T0 + SLACK_MS + 1
    replays.accept("bob", nonce(1, later), later)
    assert len(replays) == 1
