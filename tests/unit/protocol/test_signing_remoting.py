"""Signatures of remoting clients, against HMAC computed by hand and against a recorded frame."""

from __future__ import annotations

import base64
import hashlib

import pytest

from escrowmq.protocol.signing import remoting

KEY = b"correct-horse-battery"


def by_hand(key: bytes, content: bytes) -> str:
    """HMAC as RFC 2104 writes it, without the module that the broker uses."""
    padded = key.ljust(64, b"\0")
    inner = hashlib.sha1(bytes(one ^ 0x36 for one in padded) + content).digest()
    outer = hashlib.sha1(bytes(one ^ 0x5C for one in padded) + inner).digest()
    return base64.b64encode(outer).decode()


FIELDS = {"topic": "orders", "AccessKey": "shop", "b": "é", "a": "7", "_UNIQUE_KEY_QUERY": "true"}
#: Upper case comes before the underscore, which comes before lower case.
SIGNED = "shoptrue7éorders".encode()
SIGNED_BY_OLD = "shop7éorders".encode()


def test_the_content_is_the_values_in_the_order_of_their_names_and_the_body() -> None:
    assert remoting.content_of({**FIELDS, "Signature": "x"}, b"body") == SIGNED + b"body"


def test_a_signature_is_the_one_of_rfc_2104() -> None:
    assert remoting.sign(KEY, FIELDS, b"body") == by_hand(KEY, SIGNED + b"body")
    # Computed with `openssl dgst -sha1 -hmac`.
    assert by_hand(b"key", b"The quick brown fox jumps over the lazy dog") == (
        base64.b64encode(bytes.fromhex("de7c9b85b8b78aa6bc8a7a36f70a90701c9db4d9")).decode()
    )


@pytest.mark.parametrize("signed", [SIGNED, SIGNED_BY_OLD], ids=["from 4.9.4", "up to 4.9.3"])
def test_the_unique_key_query_is_signed_or_not(signed: bytes) -> None:
    fields = {**FIELDS, "Signature": by_hand(KEY, signed + b"body")}
    assert remoting.is_signed([KEY], fields, b"body")


def test_each_of_two_secrets_is_valid() -> None:
    fields = {**FIELDS, "Signature": remoting.sign(KEY, FIELDS, b"")}
    assert remoting.is_signed([b"new", KEY], fields, b"")
    assert remoting.is_signed([KEY, b"old"], fields, b"")
    assert not remoting.is_signed([b"new", b"old"], fields, b"")


@pytest.mark.parametrize(
    ("changes", "body"),
    [
        ({"topic": "other"}, b"body"),
        ({}, b"other"),
        ({"more": "1"}, b"body"),
        ({"AccessKey": "ann"}, b"body"),
        ({"Signature": ""}, b"body"),
        ({"Signature": "\ud800"}, b"body"),
    ],
)
def test_a_changed_request_is_not_signed(changes: dict[str, str], body: bytes) -> None:
    signature = remoting.sign(KEY, FIELDS, b"body")
    fields = {**FIELDS, "Signature": signature, **changes}
    assert not remoting.is_signed([KEY], fields, body)


def test_a_request_without_a_signature_is_not_signed() -> None:
    assert not remoting.is_signed([KEY], FIELDS, b"body")
    assert not remoting.is_signed([], {**FIELDS, "Signature": ""}, b"body")


@pytest.mark.parametrize("names", [{"x" * 5_000: "1"}, {f"n{at}": "1" for at in range(100)}])
def test_names_of_strangers_are_not_kept(names: dict[str, str]) -> None:
    kept = remoting._kept_order.cache_info().currsize
    assert remoting.content_of({**names, "Signature": "x"}, b"") == b"1" * len(names)
    assert remoting._kept_order.cache_info().currsize == kept
