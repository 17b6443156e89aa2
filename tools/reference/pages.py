"""Lists the generated pages, and writes them.

The pages of settings, RocketMQ's settings, metrics, JSON output and native requests are generated
as a whole. In other pages, the blocks between ``<!-- NAME: generated -->`` and
``<!-- NAME: end -->`` are generated. Neither is edited by hand, and tests compare
both with the code.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from tools.reference import disk, life_cycle, metrics, native, output, rocketmq, settings, states


def fill(text: str, blocks: Mapping[str, str]) -> str:
    """Return the page with these blocks between their marks."""
    for name, block in blocks.items():
        before, begin, rest = text.partition(f"<!-- {name}: generated -->\n")
        _, end, after = rest.partition(f"\n<!-- {name}: end -->")
        assert begin, f"the page has no block {name}"
        assert end, f"the block {name} has no end"
        text = f"{before}{begin}{block}{end}{after}"
    return text


def blocks_of() -> dict[str, dict[str, str]]:
    """Return the generated blocks, by page."""
    return {
        "transaction-states.md": {
            "diagram": f"```mermaid\n{states.mermaid()}\n```",
            "rules": states.dues_table(),
        },
        "life-cycle.md": {"stages": life_cycle.stages_table()},
        "disk-format.md": disk.blocks(),
    }


def whole_pages() -> dict[str, str]:
    """Return the pages that are generated as a whole, by file name."""
    return {
        output.PAGE: output.page(),
        output.SCHEMA: output.schema_document(),
        "config.md": settings.page(),
        "metrics.md": metrics.page(),
        "native-requests.md": native.page(),
        rocketmq.PAGE: rocketmq.page(),
    }


def write(folder: Path) -> None:
    """Write all pages in the folder."""
    for name, text in whole_pages().items():
        (folder / name).write_text(text, encoding="utf-8")
    for name, blocks in blocks_of().items():
        path = folder / name
        path.write_text(fill(path.read_text(encoding="utf-8"), blocks), encoding="utf-8")
