"""The authorization header of gRPC clients."""

from __future__ import annotations

import calendar
import hashlib

import pytest

from escrowmq.model.errors import RequestRefused
from escrowmq.protocol.signing import grpc

KEY = b"correct-horse-battery"
#: What rocketmq-python-client 5.1.2 sent with this key.
DATE_TIME = "20261119T230103Z"
STOCK = (
    "MQv2-HMAC-SHA1 Credential=shop, SignedHeaders=x-mq-date-time, "
    "Signature=c292010879330c172b31ed38fe7a0e2a19c84d13"
)
NOON_MS = calendar.timegm((2026, 11, 19, 12, 0, 0)) * 1_000
MINUTE_MS = 60_000


def by_hand(key: bytes, content: bytes) -> str:
    """HMAC as RFC 2104 writes it, without the module that the broker uses."""
    padded = key.ljust(64, b"\0")
    inner = hashlib.sha1(bytes(one ^ 0x36 for one in padded) + content).digest()
    return hashlib.sha1(bytes(one ^ 0x5C for one in padded) + inner).hexdigest()


def test_the_header_of_a_stock_client_is_read_and_signed() -> None:
    told = grpc.read_authorization(STOCK)
    assert told.access_key == "shop"
    assert grpc.is_signed([KEY], told, DATE_TIME)
    assert not grpc.is_signed([b"wrong"], told, DATE_TIME)
    assert not grpc.is_signed([KEY], told, DATE_TIME.replace("T", "U"))
    assert grpc.header_of("shop", KEY, DATE_TIME) == STOCK
    assert grpc.sign(KEY, DATE_TIME) == by_hand(KEY, DATE_TIME.encode())


def test_digits_may_be_in_upper_case_and_a_region_may_follow_the_key() -> None:
    signature = by_hand(KEY, DATE_TIME.encode()).upper()
    header = (
        f"MQv2-HMAC-SHA1 Credential=shop/cn/RocketMQ,SignedHeaders=X-Mq-Date-Time,"
        f"Signature={signature}"
    )
    told = grpc.read_authorization(header)
    assert told.access_key == "shop"
    assert grpc.is_signed([KEY], told, DATE_TIME)


@pytest.mark.parametrize(
    "header",
    [
        "",
        "Basic c2hvcDpz",
        STOCK.replace("x-mq-date-time", "x-mq-client-id"),
        STOCK[:-1],
        STOCK + "0",
        STOCK.replace("Credential=shop", "Credential="),
        STOCK + ", Signature=" + "0" * 40,
        "MQv2-HMAC-SHA1 " + "Credential=" + "a" * 5_000,
    ],
)
def test_another_header_is_refused(header: str) -> None:
    with pytest.raises(RequestRefused, match="credentials_malformed"):
        grpc.read_authorization(header)


@pytest.mark.parametrize("zone_minutes", [0, 60, -300, 330, 345, 840, -840])
@pytest.mark.parametrize("off_s", [0, 299, -299])
def test_a_local_time_marked_as_utc_is_accepted(zone_minutes: int, off_s: int) -> None:
    now_ms = NOON_MS - zone_minutes * MINUTE_MS - off_s * 1_000
    until_ms = grpc.fresh_until_ms("20261119T120000Z", now_ms)
    assert until_ms == now_ms + (300 + off_s) * 1_000


@pytest.mark.parametrize("off_minutes", [6, -6, 7, 15 * 57, -15 * 57, 24 * 60])
def test_any_other_time_is_refused(off_minutes: int) -> None:
    with pytest.raises(RequestRefused, match="request_too_old"):
        grpc.fresh_until_ms("20261119T120000Z", NOON_MS - off_minutes * MINUTE_MS)


@pytest.mark.parametrize(
    "text",
    [
        "",
        "now",
        "20261119T120000",
        "20261319T120000Z",
        "20261119T250000Z",
        "\uff12\uff1061119T120000Z",
    ],
)
def test_a_text_that_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(RequestRefused, match="credentials_malformed"):
        grpc.fresh_until_ms(text, NOON_MS)
