"""The store that the audit's benchmark reads is the one that commands would have made."""

from __future__ import annotations

import shutil
from pathlib import Path

from bench.figures.audit_fill import COMMANDED, PART, command, fill
from bench.figures.common import NOW_MS, opened

COUNT = COMMANDED + 2 * PART + 7


def test_a_filled_store_has_the_bytes_that_commands_write(tmp_path: Path) -> None:
    """Compare every file: the log, the state table, the queues, the keys and the checkpoint."""
    store, _ = opened(tmp_path / "commanded", durability="os")
    command(store, range(COUNT), NOW_MS)
    store.close()
    # Checksums start from a seed that is chosen with the store.
    (tmp_path / "filled").mkdir()
    shutil.copy(tmp_path / "commanded" / "format", tmp_path / "filled")
    fill(tmp_path / "filled", COUNT, NOW_MS)
    commanded = _contents(tmp_path / "commanded")
    assert {name.split("/")[0] for name in commanded} >= {"commitlog", "consumequeue", "statetable"}
    assert _contents(tmp_path / "filled") == commanded


def _contents(store: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(store)): path.read_bytes()
        for path in sorted(store.rglob("*"))
        if path.is_file()
    }
