"""Options of a read of messages: their meaning, and the errors for wrong ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import pytest

from escrowmq.model.errors import RequestRefused
from escrowmq.pipeline.source.message_options import (
    MessageOptions,
    any_options,
    batch_options,
    stream_options,
)
from escrowmq.pipeline.source.offsets import OffsetRange, QueueKey

A = QueueKey("broker-a", "orders", 0)
B = QueueKey("broker-b", "orders", 0)


def options(**given: str) -> MessageOptions:
    # Spark passes option names in lower case.
    named = {"broker": "127.0.0.1:1", "topic": "orders", **given}
    return any_options({name.lower(): value for name, value in named.items() if value})


@pytest.mark.parametrize(
    ("given", "option", "allowed"),
    [
        ({"topic": ""}, "topic", "give topic names .*or topicPattern"),
        ({"topicPattern": "x"}, "topic", "not both"),
        ({"topic": "", "topicPattern": "("}, "topicPattern", "a regular expression"),
        ({"startingOffsets": "soon"}, "startingOffsets", "earliest, latest, or JSON"),
        ({"startingOffsets": "5"}, "startingOffsets", "JSON"),
        ({"startingOffsets": '{"orders": 5}'}, "startingOffsets", "JSON"),
        ({"endingOffsets": '{"orders": {"0": "x"}}'}, "endingOffsets", "JSON"),
        ({"endingOffsets": '{"orders": {"first": 1}}'}, "endingOffsets", "JSON"),
        ({"endingOffsets": '{"orders": {"0": -3}}'}, "endingOffsets", "JSON"),
        ({"endingTimestamp": "tomorrow"}, "endingTimestamp", "milliseconds since 1970"),
        ({"endingTimestamp": "5", "endingOffsets": "latest"}, "endingOffsets", "not both"),
        ({"startingTimestamp": "5", "endingTimestamp": "4"}, "endingTimestamp", "not before"),
        (
            {"startingOffsets": '{"orders": {"0": 5}}', "endingOffsets": '{"orders": {"0": 4}}'},
            "endingOffsets",
            "not before startingOffsets",
        ),
        ({"tags": "||".join(map(str, range(4_097)))}, "tags", "at most 4096"),
        ({"retryMs": "-1"}, "retryMs", "from 0 to"),
        ({"includeProperties": "1"}, "includeProperties", "one of true, false"),
        ({"broker": ""}, "broker", "it must be given: host:port"),
        ({"columns": "body,colour"}, "columns", "some of broker, topic"),
        ({"maxRowsPerPartition": "0"}, "maxRowsPerPartition", "from 1 to"),
        ({"maxRowsPerBatch": "many"}, "maxRowsPerBatch", "from 1 to"),
        ({"failOnDataLoss": "perhaps"}, "failOnDataLoss", "one of true, false"),
        ({"bodyOnly": "true"}, "bodyonly", "not an option here; there are availableNow, broker"),
        ({"startingOffset": "latest"}, "startingoffset", r"did you mean startingOffsets\? there"),
        ({"broker": "nowhere"}, "broker", "host:port"),
    ],
)
def test_a_wrong_option_is_named_with_what_it_may_be(
    given: dict[str, str], option: str, allowed: str
) -> None:
    with pytest.raises(RequestRefused, match=allowed) as raised:
        options(**given)
    assert raised.value.code == "bad_option"
    assert raised.value.fields["option"] == option


@pytest.mark.parametrize(
    ("read", "option"),
    [
        # A stream has no end, and a batch read is not split into micro-batches.
        (stream_options, "endingOffsets"),
        (stream_options, "endingTimestamp"),
        (batch_options, "maxRowsPerBatch"),
    ],
)
def test_an_option_of_the_other_kind_of_read_is_refused(
    read: Callable[[Mapping[str, str]], MessageOptions], option: str
) -> None:
    given = {"broker": "127.0.0.1:1", "topic": "orders", option.lower(): "1"}
    with pytest.raises(
        RequestRefused, match=r"there are (availableNow, )?broker, columns"
    ) as raised:
        read(given)
    assert raised.value.fields["option"] == option.lower()
    assert option not in raised.value.message


def test_a_bound_is_a_word_or_offsets_by_queue() -> None:
    there = {A: OffsetRange(3, 9), B: OffsetRange(0, 4)}
    assert options().start.all(there) == {A: 3, B: 0}
    assert options().end.all(there) == {A: 9, B: 4}
    assert options(startingOffsets="Latest").start.all(there) == {A: 9, B: 4}
    of_all = options(startingOffsets='{"orders": {"0": 4}}')
    assert of_all.start.all(there) == {A: 4, B: 4}
    of_one = options(startingOffsets='{"broker-b": {"orders": {"0": -1}}}')
    assert of_one.start.all(there) == {A: 3, B: 4}


@pytest.mark.parametrize(
    "given",
    ["1700000000000", "2023-11-14T22:13:20Z", "2023-11-14T23:13:20+01:00", "2023-11-14T22:13:20"],
)
def test_an_instant_is_a_number_or_a_time(given: str) -> None:
    assert options(startingTimestamp=given).start.at_ms == 1_700_000_000_000
