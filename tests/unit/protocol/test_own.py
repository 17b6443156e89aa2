"""The table of our own requests is complete and consistent, and headers survive a round trip."""

from __future__ import annotations

import pytest

from escrowmq.protocol.codes import RequestCode
from escrowmq.protocol.headers import read_header, write_fields
from escrowmq.protocol.own import FIRST_CODE, LAST_CODE, OWN_REQUESTS, OwnCode, OwnRequest, is_own
from escrowmq.protocol.own_forms import Form, columns_of
from escrowmq.protocol.own_hand_headers import SettleHeader
from escrowmq.protocol.own_headers import HoldHeader, ListTransactionsHeader, PagedHeader

REQUESTS = list(OWN_REQUESTS.values())


def name(request: OwnRequest) -> str:
    return request.code.name


def test_every_code_has_its_line() -> None:
    assert list(OWN_REQUESTS) == list(OwnCode)


def test_our_codes_are_nobody_elses() -> None:
    assert all(map(is_own, OwnCode))
    assert not any(map(is_own, RequestCode))
    assert not is_own(FIRST_CODE - 1)
    assert not is_own(LAST_CODE + 1)


@pytest.mark.parametrize("request_", REQUESTS, ids=name)
def test_rows_have_a_limit(request_: OwnRequest) -> None:
    assert (request_.rows is None) == (request_.rows_max == 0)
    assert (request_.answer_rows is None) == (request_.answer_rows_max == 0)
    for kind in (request_.rows, request_.answer_rows):
        assert kind is None or columns_of(kind)


@pytest.mark.parametrize("request_", REQUESTS, ids=name)
def test_whoever_answers_in_pages_takes_a_cursor(request_: OwnRequest) -> None:
    assert request_.is_paged == issubclass(request_.header, PagedHeader)
    assert not (request_.is_paged and request_.changes)


@pytest.mark.parametrize(
    "header",
    [
        HoldHeader(
            form=Form.ARROW,
            producer_group="pay",
            transaction_id="t",
            number=3,
            is_bulk=True,
            check_after_ms=0,
        ),
        ListTransactionsHeader(start=5, states="parked", with_ids=True, cursor="7"),
        SettleHeader(half_offset=2, by="ops", resolution="commit", reason="seen"),
    ],
)
def test_a_header_comes_back_as_it_was(
    header: HoldHeader | ListTransactionsHeader | SettleHeader,
) -> None:
    assert read_header(type(header), write_fields(header)) == header
