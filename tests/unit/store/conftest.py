"""Fixtures for tests of the store."""

from __future__ import annotations

import pytest

from escrowmq.testing.disk_image import DiskImage
from escrowmq.testing.faulty_disk import FaultyDisk
from tests.unit.store.shop import Shop


@pytest.fixture(scope="module")
def shop() -> Shop:
    """All kinds of commands, over several segments, with a checkpoint in the middle."""
    shop = Shop(seed=3).run(80, checkpoints=0)
    shop.store.checkpoint()
    shop.run(80, checkpoints=0)
    assert len(shop.store.log.segments) > 3
    return shop


@pytest.fixture(scope="module")
def image(shop: Shop) -> DiskImage:
    return shop.image()


@pytest.fixture
def disk(image: DiskImage) -> FaultyDisk:
    return FaultyDisk(image)
