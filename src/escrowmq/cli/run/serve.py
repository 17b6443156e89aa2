"""``escrowmq serve``: run a broker and its name server in this process until it is stopped."""

from __future__ import annotations

import typer

from escrowmq.broker.config import AccessConfig, TlsConfig
from escrowmq.cli.data.data_directory import refuse_foreign_directory
from escrowmq.cli.options import grouped
from escrowmq.cli.output import note
from escrowmq.cli.run.process_options import (
    BrokerOptions,
    trust_served_certificate,
    use_local_admin,
)
from escrowmq.model.log_lines import BROKER_LEVEL, LogConfig, log_to_stderr

EXIT_FAILED = 1


@grouped
def serve(given: BrokerOptions) -> None:
    """Run a broker and its name server until SIGTERM or Ctrl-C.

    The broker checks undecided transactions by itself while no pipeline does.
    """
    from escrowmq.cli.run.serving import run

    given.end_with_parent()
    config = given.load(given.flags)
    log_to_stderr(BROKER_LEVEL, config.section(LogConfig))
    refuse_foreign_directory(given.data)
    trust_served_certificate(config.section(TlsConfig), given.data)
    use_local_admin(config.section(AccessConfig), given.data)
    failure = run(
        given.data,
        config,
        insecure=given.insecure,
        is_alone=given.parent is None,
        output=given.output,
    )
    if failure is not None:
        note(f"escrowmq: the store has failed: {failure!r}; start again to recover", given.output)
        raise typer.Exit(EXIT_FAILED)
