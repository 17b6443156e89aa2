"""The driver's end of a batch: one decision at home, forwarded to the other brokers.

Settle completes whatever is left undone after the decision: the name of a part tells which home to
ask.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from escrowmq.model.errors import EscrowError, RequestRefused
from escrowmq.model.event_log import event_log
from escrowmq.pipeline.sink.brokers import SinkBrokers
from escrowmq.pipeline.sink.calls import SinkCalls, by, decision
from escrowmq.pipeline.sink.fates import fate
from escrowmq.pipeline.sink.written import AttemptPart, SinkBatch, SinkBroker, Written
from escrowmq.protocol.native.rows import DecisionRow, FoundAttemptRow, SoughtAttemptRow
from escrowmq.transaction.states import State

log = event_log(__name__)

FORWARD_MS = 5_000
"""How long the driver tries to read and forward a decision. After that, settle does it."""
THREADS_MAX = 8

Parts = Mapping[SinkBroker, Sequence[AttemptPart]]


def decide(
    home: SinkCalls,
    made: SinkBatch,
    written: Sequence[Written],
    timeout_ms: int,
    brokers: SinkBrokers,
) -> str:
    """Commit these attempts, all or none.

    Return ``decided``, or ``already_done`` if not committed.
    """
    parts = _by_broker(written)
    refused = check(parts, timeout_ms) or forgotten(made, brokers, timeout_ms)
    judged = "new" if refused is None else home.judge(made)
    if judged == "done":
        # Settle was faster, and has begun to roll back superseded attempts.
        home.roll_back(written)
        outcome = "already_done"
    elif refused is None or judged in {"taken", "expired"}:
        # The home broker refuses a batch that another query decided or that may be decided already.
        outcome = home.decide(made, written)
    else:
        raise refused
    forward(home, written)
    return outcome


def give_up(home: SinkCalls, written: Sequence[Written]) -> None:
    """Roll back the undecided ones of these attempts. Committed ones stay committed everywhere."""
    home.roll_back(written)
    forward(home, written)


# The other brokers.


def check(parts: Parts, timeout_ms: int) -> RequestRefused | None:
    """Return an error if a part is not as its task reported it.

    A part cannot disappear between this check and the decision, because only the decision at home
    ends it.
    """
    for broker, its in parts.items():
        with SinkCalls(broker.address, timeout_ms) as calls:
            for part, found in zip(its, _found(calls, its), strict=True):
                refused = difference(part, found)
                if refused is not None:
                    return refused
    return None


def forgotten(made: SinkBatch, brokers: SinkBrokers, timeout_ms: int) -> RequestRefused | None:
    """Return an error if another broker has committed a part of this batch.

    It did so after the home had decided. If the home does not know the batch, it was restored
    since.
    """
    for broker in brokers.others:
        with SinkCalls(broker.address, timeout_ms) as calls:
            if calls.judge(made, brokers.home.name) not in ("new", ""):
                return RequestRefused(
                    "batch_committed_elsewhere",
                    "the home broker was restored or no longer knows this batch, but another "
                    "broker has committed it: continue with a new app id, and write the rows that "
                    "the home broker lost under another one",
                    app_id=made.run.app_id,
                    batch_id=made.batch,
                    home=brokers.home.name,
                    broker=broker.name,
                )
    return None


def difference(part: AttemptPart, found: FoundAttemptRow) -> RequestRefused | None:
    """Return why a batch with this part cannot be decided, or None if it can."""
    facts = {"attempt": part.held_as.transaction_id, "broker": part.broker.name}
    if found.state != State.PREPARED.label:
        facts["state"] = found.state or "unknown"
        return RequestRefused("attempt_not_prepared", "write the batch again", **facts)
    if (found.last_number, found.messages) != (part.last_number, part.rows):
        return RequestRefused(
            "attempt_differs",
            "the attempt does not hold what its writer reported",
            last_number=found.last_number,
            rows=found.messages,
            **facts,
        )
    return None


def forward(home: SinkCalls, written: Sequence[Written]) -> None:
    """End the parts at other brokers as the attempts ended at home, as far as possible.

    The home is asked, because the outcome is not reliable. After a lost answer, the repeated
    request reports that the batch was done before, and these attempts may be the ones that did it.
    """
    split = [one for one in written if one.elsewhere]
    if not split:
        return
    run = split[0].attempt.run
    sought = [SoughtAttemptRow(one.head, one.attempt.transaction_id) for one in split]
    try:
        with SinkCalls(home.address, FORWARD_MS) as asked:
            found = list(asked.find(run.producer_group, sought))
    except EscrowError as error:
        log.warning("decision_not_forwarded", extra={"attempts": len(split), "why": str(error)})
        return
    told = fates(split, found)
    with ThreadPoolExecutor(THREADS_MAX) as threads:
        sent = [threads.submit(forward_to, broker, its, by(run)) for broker, its in told.items()]
    for one in sent:
        one.result()


def fates(
    written: Sequence[Written], found: Iterable[FoundAttemptRow]
) -> dict[SinkBroker, list[DecisionRow]]:
    """The decisions for each broker, from the states of the attempts at home."""
    decisions: dict[SinkBroker, list[DecisionRow]] = defaultdict(list)
    for one, at_home in zip(written, found, strict=True):
        verdict = fate(at_home.state)
        if verdict is not None:
            for part in one.elsewhere:
                group = part.held_as.producer_group
                decisions[part.broker].append(decision(part.head, verdict.value, group))
    return decisions


def forward_to(broker: SinkBroker, decisions: Sequence[DecisionRow], who: str) -> None:
    """Send decisions to one broker for a limited time. After that, settle does it."""
    try:
        with SinkCalls(broker.address, FORWARD_MS) as calls:
            calls.decide_each(decisions, who)
    except EscrowError as error:
        facts = {"broker": broker.name, "attempts": len(decisions), "why": str(error)}
        log.warning("decision_not_forwarded", extra=facts)


def _by_broker(written: Sequence[Written]) -> Parts:
    parts: dict[SinkBroker, list[AttemptPart]] = defaultdict(list)
    for one in written:
        for part in one.elsewhere:
            parts[part.broker].append(part)
    return parts


def _found(calls: SinkCalls, parts: Sequence[AttemptPart]) -> Iterable[FoundAttemptRow]:
    sought = [SoughtAttemptRow(part.head, part.held_as.transaction_id) for part in parts]
    # All parts are of one write with one home, so they have one group.
    return calls.find(parts[0].held_as.producer_group, sought)
