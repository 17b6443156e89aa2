"""RocketMQ's stages: each of our states has its own."""

from __future__ import annotations

from escrowmq.broker.state.life_cycle import LIFE_CYCLE
from escrowmq.transaction.states import State


def test_every_state_of_a_transaction_has_a_stage() -> None:
    named = {state for stage in LIFE_CYCLE for state in stage.states}
    assert named == {None, *State}


def test_the_names_are_those_of_rocketmq() -> None:
    assert [stage.name for stage in LIFE_CYCLE] == [
        "initialised",
        "pending",
        "rollback",
        "timing",
        "ready",
        "inflight",
        "acked",
        "deleted",
    ]


def test_stages_of_a_stored_message_can_be_told_apart() -> None:
    stored = [stage for stage in LIFE_CYCLE if stage.is_stored]
    assert len({(one.states, one.place, one.progress) for one in stored}) == len(stored)


def test_only_what_is_committed_is_ever_in_a_queue() -> None:
    for stage in LIFE_CYCLE:
        assert (stage.states == (State.COMMITTED,)) == (stage.place != "in no queue")
