"""The table of native requests is complete and consistent, and headers survive a round trip."""

from __future__ import annotations

import pytest

from escrowmq.protocol.native.headers import (
    HoldHeader,
    ListTransactionsHeader,
    PagedAnswer,
    PagedHeader,
)
from escrowmq.protocol.native.operator_headers import DecideByHandHeader
from escrowmq.protocol.native.requests import (
    FIRST_CODE,
    LAST_CODE,
    NATIVE_REQUESTS,
    NativeCode,
    NativeRequest,
    is_native,
)
from escrowmq.protocol.native.row_forms import RowForm, columns_of
from escrowmq.protocol.remoting.codes import RequestCode
from escrowmq.protocol.remoting.headers import read_header, write_fields

REQUESTS = list(NATIVE_REQUESTS.values())


def name(request: NativeRequest) -> str:
    return request.code.name


def test_every_code_has_its_line() -> None:
    assert list(NATIVE_REQUESTS) == list(NativeCode)


def test_our_codes_are_not_rocketmqs() -> None:
    assert all(map(is_native, NativeCode))
    assert not any(map(is_native, RequestCode))
    assert not is_native(FIRST_CODE - 1)
    assert not is_native(LAST_CODE + 1)


def test_a_binary_header_can_carry_each_of_our_codes() -> None:
    assert max(NativeCode) <= 32_767


@pytest.mark.parametrize("request_", REQUESTS, ids=name)
def test_rows_have_a_limit(request_: NativeRequest) -> None:
    assert (request_.rows is None) == (request_.rows_max == 0)
    assert request_.answer_rows_max > 0
    for kind in (request_.rows, request_.answer_rows):
        assert kind is None or columns_of(kind)


@pytest.mark.parametrize("request_", REQUESTS, ids=name)
def test_a_request_that_is_answered_in_pages_takes_a_cursor(request_: NativeRequest) -> None:
    is_paged = issubclass(request_.answer, PagedAnswer)
    assert is_paged == issubclass(request_.header, PagedHeader)
    assert not (is_paged and request_.changes)


@pytest.mark.parametrize(
    "header",
    [
        HoldHeader(
            form=RowForm.ARROW,
            producer_group="pay",
            transaction_id="t",
            number=3,
            is_bulk=True,
            check_after_ms=0,
        ),
        ListTransactionsHeader(start=5, states="parked", with_ids=True, cursor="7"),
        DecideByHandHeader(half_offset=2, by="ops", resolution="commit", reason="seen"),
    ],
)
def test_a_header_comes_back_as_it_was(
    header: HoldHeader | ListTransactionsHeader | DecideByHandHeader,
) -> None:
    assert read_header(type(header), write_fields(header)) == header
