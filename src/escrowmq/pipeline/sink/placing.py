"""Chooses the broker of each row if there are several.

Rows with the same key go to the same broker in every batch, so that their order holds. The choice
depends only on the brokers' names. It does not depend on their order and, for most keys, not on a
broker that is added or removed. The rows of a task without a key stay together.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import blake2b

import numpy as np
import pyarrow as pa  # type: ignore[import-untyped]  # it brings no types
import pyarrow.compute as pc  # type: ignore[import-untyped]

from escrowmq.pipeline.sink.columns import KEY
from escrowmq.pipeline.sink.rows import Numbers, SinkRows

#: Steps of a mixing function: a change of one input bit flips about half of the output bits.
#: Without mixing, similar keys or names would get similar weights.
_STEPS = ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB))
_LAST_SHIFT = 31


class Placing:
    """Places the rows of one partition."""

    def __init__(self, brokers: Sequence[str], partition: int) -> None:
        #: A seed for each broker, made from its name.
        self._seeds = np.array([_seed(name) for name in brokers], dtype=np.uint64)
        self._keyless = brokers.index(sorted(brokers)[partition % len(brokers)])

    def places(self, batch: pa.RecordBatch) -> Numbers:
        """The index of the broker for each row."""
        rows = SinkRows(batch, 0)
        keyless = np.full(rows.count, self._keyless)
        if KEY not in rows:
            return keyless
        hashes, indices = rows.key_hashes(KEY)
        if not hashes:
            return keyless
        of_key = _best(np.array(hashes, dtype=np.uint64), self._seeds)
        has_key = pc.is_valid(indices).to_numpy(zero_copy_only=False)
        places = pc.fill_null(indices, 0).to_numpy(zero_copy_only=False)
        return np.where(has_key, of_key[places], keyless)


def _best(hashes: Numbers, seeds: Numbers) -> Numbers:
    """For each key, the index of the broker with the highest weight of key and name together."""
    weights: Numbers = hashes[:, np.newaxis] ^ seeds
    for shift, factor in _STEPS:
        weights = (weights ^ (weights >> np.uint64(shift))) * np.uint64(factor)
    best: Numbers = np.argmax(weights ^ (weights >> np.uint64(_LAST_SHIFT)), axis=1)
    return best


def _seed(name: str) -> int:
    return int.from_bytes(blake2b(name.encode(), digest_size=8).digest())
