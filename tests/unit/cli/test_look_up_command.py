"""The broker's look-up process is started without a secret, and logs as the broker does."""

from __future__ import annotations

import sys
from pathlib import Path

from escrowmq.cli.config import load
from escrowmq.cli.run.look_up_command import ledger_urls, look_up_command

CONFIG = """
[log]
format = "json"
level = "info"

[ledger.shop]
url = "postgresql://shop:${PASSWORD}@db/orders"
"""


def test_the_command_has_the_log_and_no_secret(tmp_path: Path) -> None:
    file = tmp_path / "escrowmq.toml"
    file.write_text(CONFIG, encoding="utf-8")
    config = load(file=file, environ={"PASSWORD": "open sesame"})
    *command, log = look_up_command(config)
    assert command == [sys.executable, "-m", "escrowmq.look_up.child"]
    assert log == '{"format":"json","level":"info"}'
    assert ledger_urls(config) == {"shop": "postgresql://shop:open%20sesame@db/orders"}
