"""The tables of states and transitions, written out a second time because they are a promise."""

from __future__ import annotations

from itertools import product

import pytest

from escrowmq.model.resolution import Resolution
from escrowmq.transaction.states import MOVES, RESOLVES, TRANSITIONS, State, Transition


@pytest.mark.parametrize(
    ("state", "code", "label"),
    [
        (State.PREPARED, 0, "prepared"),
        (State.COMMITTED, 1, "committed"),
        (State.ROLLED_BACK, 2, "rolled_back"),
        (State.PARKED, 3, "parked"),
    ],
)
def test_codes_and_labels_are_those_on_disk_and_in_refusals(
    state: State, code: int, label: str
) -> None:
    assert state == code
    assert State(code) is state
    assert state.label == label


def test_there_are_four_states_and_three_answers() -> None:
    assert len(State) == 4
    assert [str(resolution) for resolution in Resolution] == ["commit", "rollback", "unknown"]


ANSWERS = [
    # The first decision wins.
    (State.PREPARED, Resolution.COMMIT, State.COMMITTED),
    (State.PREPARED, Resolution.ROLLBACK, State.ROLLED_BACK),
    # An unknown outcome changes nothing.
    (State.PREPARED, Resolution.UNKNOWN, None),
    # A repeat gets the same answer.
    (State.COMMITTED, Resolution.COMMIT, State.COMMITTED),
    # The opposite of a decision is refused.
    (State.COMMITTED, Resolution.ROLLBACK, None),
    # An unknown outcome does not undo a decision.
    (State.COMMITTED, Resolution.UNKNOWN, None),
    # The opposite of a decision is refused.
    (State.ROLLED_BACK, Resolution.COMMIT, None),
    # A repeat gets the same answer.
    (State.ROLLED_BACK, Resolution.ROLLBACK, State.ROLLED_BACK),
    # An unknown outcome does not undo a decision.
    (State.ROLLED_BACK, Resolution.UNKNOWN, None),
    # Parked is not a decision: a late answer decides it.
    (State.PARKED, Resolution.COMMIT, State.COMMITTED),
    (State.PARKED, Resolution.ROLLBACK, State.ROLLED_BACK),
    # An unknown outcome does not resume it either.
    (State.PARKED, Resolution.UNKNOWN, None),
]


@pytest.mark.parametrize(("state", "resolution", "target"), ANSWERS)
def test_an_answer_leads_where_the_table_says(
    state: State, resolution: Resolution, target: State | None
) -> None:
    assert RESOLVES.get((state, resolution)) is target


def test_the_answers_above_are_all_pairs() -> None:
    pairs = [(state, resolution) for state, resolution, _ in ANSWERS]
    assert sorted(pairs) == sorted(product(State, Resolution))


def test_other_moves_are_prepare_ask_park_and_resume() -> None:
    assert MOVES == (
        (None, "prepare", State.PREPARED),
        (State.PREPARED, "ask", State.PREPARED),
        (State.PREPARED, "park", State.PARKED),
        (State.PARKED, "resume", State.PREPARED),
    )


def test_transitions_are_the_moves_and_the_answers_and_nothing_else() -> None:
    answers = {
        Transition(state, str(resolution), target)
        for state, resolution, target in ANSWERS
        if target is not None
    }
    assert set(TRANSITIONS) == set(MOVES) | answers
    assert len(TRANSITIONS) == len(set(TRANSITIONS)) == 10


def test_an_event_in_a_state_leads_to_one_state_only() -> None:
    assert len({(row.source, row.event) for row in TRANSITIONS}) == len(TRANSITIONS)


def test_no_move_leaves_a_decision() -> None:
    decided = {State.COMMITTED, State.ROLLED_BACK}
    leaving = [row for row in TRANSITIONS if row.source in decided and row.target != row.source]
    assert leaving == []


def test_every_undecided_state_can_be_committed_rolled_back_and_left_for_people() -> None:
    reachable = {
        state: {row.target for row in TRANSITIONS if row.source is state}
        for state in (State.PREPARED, State.PARKED)
    }
    assert reachable[State.PREPARED] == set(State)
    assert reachable[State.PARKED] == {State.PREPARED, State.COMMITTED, State.ROLLED_BACK}
