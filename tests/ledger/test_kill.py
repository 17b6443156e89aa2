"""A short run of ``kill``: one death at every step, and a few at random times."""

from __future__ import annotations

from pathlib import Path
from random import Random

import pytest

from tests.ledger.kill import Checks, kill_anywhere, kill_everywhere, scene
from tests.ledger.shops import Shop


@pytest.mark.parametrize("checks", Checks)
def test_wherever_a_producer_is_killed_orders_and_messages_agree(
    shop: Shop, tmp_path: Path, checks: Checks
) -> None:
    with scene(shop, tmp_path, checks=checks) as there:
        kill_everywhere(there)
        kill_anywhere(there, Random(1), lives=3)
        assert len(there.heard()) > 3
