from __future__ import annotations

import asyncio

import pytest

from escrowmq.client.producer import shared_requests as lanes
from escrowmq.client.producer.shared_requests import SharedRequests
from escrowmq.model.errors import EscrowError, OutcomeUnknown, RequestRefused, Unavailable


class Road:
    """The receiver of a lane: it keeps each batch, and holds it back while `open` is not set."""

    def __init__(self) -> None:
        self.came: list[list[str]] = []
        self.open = asyncio.Event()
        self.open.set()
        self.lane = SharedRequests(
            self.send, len, lambda item: item.startswith("later"), shared_max=3
        )

    async def send(self, items: list[str]) -> list[str | EscrowError]:
        self.came.append(items)
        await self.open.wait()
        if "bad" in items:
            raise RequestRefused("bad_item")
        if "lost" in items:
            raise OutcomeUnknown("lost_item")
        return [RequestRefused("odd") if item == "odd" else f"{item}!" for item in items]


async def test_a_lone_item_leaves_at_once() -> None:
    road = Road()
    assert await road.lane.put("a") == "a!"
    assert road.came == [["a"]]


async def test_items_of_one_turn_or_during_a_request_share_the_next_request() -> None:
    road = Road()
    road.open.clear()
    first = [road.lane.put("a"), road.lane.put("b")]
    await asyncio.sleep(0)
    rest = [road.lane.put(item) for item in "cdef"]
    road.open.set()
    assert await asyncio.gather(*first, *rest) == ["a!", "b!", "c!", "d!", "e!", "f!"]
    assert road.came == [["a", "b"], ["c", "d", "e"], ["f"]]


async def test_only_items_of_a_kind_share_and_order_is_kept() -> None:
    road = Road()
    dones = [road.lane.put(item) for item in ("a", "later-b", "later-c", "d")]
    await asyncio.gather(*dones)
    assert road.came == [["a"], ["later-b", "later-c"], ["d"]]


async def test_one_that_is_refused_does_not_spoil_the_others() -> None:
    road = Road()
    good, bad, also = road.lane.put("a"), road.lane.put("bad"), road.lane.put("c")
    assert await good == "a!"
    with pytest.raises(RequestRefused, match="bad_item"):
        await bad
    assert await also == "c!"
    assert road.came == [["a", "bad", "c"], ["a"], ["bad"], ["c"]]


async def test_a_refusal_of_one_among_answers_is_only_its_own() -> None:
    road = Road()
    good, odd = road.lane.put("a"), road.lane.put("odd")
    assert await good == "a!"
    with pytest.raises(RequestRefused, match="odd"):
        await odd


async def test_a_lost_answer_leaves_all_in_doubt() -> None:
    road = Road()
    dones = [road.lane.put("a"), road.lane.put("lost")]
    for done in dones:
        with pytest.raises(OutcomeUnknown, match="lost_item"):
            await done


async def test_one_whose_sender_gave_up_does_not_leave() -> None:
    road = Road()
    road.open.clear()
    first = road.lane.put("a")
    await asyncio.sleep(0)
    given_up, last = road.lane.put("b"), road.lane.put("c")
    given_up.cancel()
    road.open.set()
    assert [await first, await last] == ["a!", "c!"]
    assert road.came == [["a"], ["c"]]
    await road.lane.close()


async def test_too_much_that_waits_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes, "WAITING_BYTES_MAX", 3)
    road = Road()
    done = road.lane.put("abc")
    with pytest.raises(Unavailable, match="too_much_to_send"):
        road.lane.put("d")
    assert await done == "abc!"
