"""Which brokers a write uses, which one decides, and which broker gets each row."""

from __future__ import annotations

from collections import Counter

import pyarrow as pa  # type: ignore[import-untyped]
import pytest

from escrowmq.model.errors import RequestRefused
from escrowmq.pipeline.sink.brokers import KnownApp, home_of
from escrowmq.pipeline.sink.placing import Placing
from escrowmq.pipeline.sink.written import SinkBroker
from escrowmq.protocol.native.requests import NativeCode
from escrowmq.testing import InProcessBroker
from tests.unit.pipeline.losing import LosingProxy
from tests.unit.pipeline.several import brokers, commit, keyed, new_attempt, rows, several, write

A, B, C = SinkBroker("a", "a:1"), SinkBroker("b", "b:1"), SinkBroker("c", "c:1")
KEYS = [f"order-{number}" for number in range(3_000)]


def known(broker: SinkBroker, *homes: str, is_home: bool = False) -> KnownApp:
    return KnownApp(broker, is_home, frozenset(homes))


# Home.


def test_the_broker_that_decided_before_goes_on_wherever_it_stands_in_the_list() -> None:
    assert home_of("app", [known(A), known(B)]).broker == A
    assert home_of("app", [known(B), known(A)]).broker == B
    assert home_of("app", [known(A), known(B, is_home=True)]).broker == B
    assert home_of("app", [known(A, "b"), known(B, is_home=True), known(C, "b")]).broker == B


def test_a_home_that_knows_nothing_of_what_another_broker_holds_was_set_back() -> None:
    with pytest.raises(RequestRefused, match="home_broker_set_back") as refused:
        home_of("app", [known(A, "b"), known(B)])
    assert refused.value.fields["brokers"] == ["b"]


def test_two_brokers_that_know_an_app_id_are_refused() -> None:
    with pytest.raises(RequestRefused, match=r"app_id_at_two_brokers.*app_id='app'.*'a', 'c'"):
        home_of("app", [known(A, is_home=True), known(B), known(C, is_home=True)])


def test_a_list_without_the_broker_that_decided_before_is_refused() -> None:
    with pytest.raises(RequestRefused, match=r"home_broker_missing.*'a'"):
        home_of("app", [known(B, "a"), known(C)])


def test_a_broker_that_holds_something_for_an_app_id_is_its_home() -> None:
    with brokers("a", "b", "c") as (a, b, c):
        assert several([b, a, c]).home.name == "b"
        write(several([b, a, c]), new_attempt(), iter([rows("x")]))
        for order in ([a, b, c], [c, a, b]):
            to = several(order)
            assert to.home.name == "b"
            assert [one.name for one in to.others] == ["a", "c"]
        assert several([a, b, c], app_id="other").home.name == "a"


def test_a_broker_that_decided_a_batch_without_rows_is_home_too() -> None:
    with brokers("a", "b") as (a, b):
        assert commit(several([b, a])) == "decided"
        assert several([a, b]).home.name == "b"
        assert commit(several([a])) == "decided"
        with pytest.raises(RequestRefused, match="app_id_at_two_brokers"):
            several([a, b])


def test_a_home_that_is_left_out_is_missed_by_those_that_hold_its_parts() -> None:
    with brokers("a", "b", "c") as (a, b, c):
        write(several([a, b]), new_attempt(), iter([keyed(*"0123456789")]))
        for without in ([b, c], [b]):
            with pytest.raises(RequestRefused, match=r"home_broker_missing.*'a'"):
                several(without)
        assert several([b, c], app_id="other").home.name == "b"
        assert several([b], app_id="other").all == (SinkBroker("", b.broker_address),)


def test_without_an_app_id_the_first_broker_decides_whatever_others_know() -> None:
    with brokers("a", "b") as (a, b):
        for order in ([a, b], [b, a]):
            assert several(order, app_id=None).home.address == order[0].broker_address


def test_one_broker_is_asked_once_whether_another_one_decides() -> None:
    with (
        brokers("a") as (a,),
        LosingProxy(a.broker_address, lambda _code, _number: False) as way,
    ):
        to = several([way.address])
        assert to.all == (SinkBroker("", way.address),)
        written = write(to, new_attempt(), iter([keyed(*"abc"), rows("d")]), rows_max=2)
        assert commit(to, written) == "decided"
        assert way.brought == {
            NativeCode.FIND_ATTEMPTS: 1,
            NativeCode.LIST_TOPICS: 1,
            NativeCode.HOLD_HALVES: 3,
            NativeCode.DECIDE_BATCH: 1,
        }


def test_two_brokers_with_one_name_are_refused() -> None:
    with (
        brokers("a", "a") as (one, other),
        pytest.raises(RequestRefused, match=r"broker_named_twice.*'a'"),
    ):
        several([one, other])


def test_a_topic_that_one_of_them_lacks_is_refused_with_the_broker_s_name() -> None:
    with brokers("a") as (a,), InProcessBroker(name="b", auto_create=False) as b:
        with pytest.raises(RequestRefused, match=r"topic_unknown.*'orders'.*broker='b'"):
            several([a, b])
        b.create_topic("orders")
        assert several([a, b]).home.name == "a"


# Placing.


def placed(names: list[str], keys: list[str | None], partition: int = 0) -> list[str]:
    batch = pa.record_batch({"body": ["x"] * len(keys), "key": pa.array(keys, pa.string())})
    return [names[place] for place in Placing(names, partition).places(batch).tolist()]


def test_keys_are_spread_evenly() -> None:
    counts = Counter(placed(["a", "b", "c"], list(KEYS)))
    assert all(900 <= counts[name] <= 1_100 for name in "abc")


def test_a_key_s_broker_depends_on_names_and_not_on_their_order_or_the_partition() -> None:
    first = placed(["a", "b", "c"], list(KEYS))
    assert placed(["c", "a", "b"], list(KEYS), partition=5) == first
    # Other rows in the batch make no difference.
    assert placed(["a", "b", "c"], [None, *reversed(KEYS)])[1:] == first[::-1]


def test_a_broker_that_comes_takes_keys_and_moves_no_others() -> None:
    before, after = placed(["a", "b"], list(KEYS)), placed(["a", "b", "c"], list(KEYS))
    moved = [new for old, new in zip(before, after, strict=True) if old != new]
    assert 900 <= len(moved) <= 1_100
    assert set(moved) == {"c"}


def test_rows_without_a_key_of_one_task_stay_together_and_tasks_take_turns() -> None:
    names = ["c", "a", "b"]
    for partition in range(6):
        assert placed(names, [None, "", None], partition) == ["abc"[partition % 3]] * 3
        no_keys = Placing(names, partition).places(pa.record_batch({"body": ["x", "y"]}))
        assert [names[place] for place in no_keys.tolist()] == ["abc"[partition % 3]] * 2
