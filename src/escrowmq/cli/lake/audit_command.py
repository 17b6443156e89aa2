"""``escrowmq audit``: prove that the brokers, the lake, the ledgers and a user's table agree.

Modules that need Spark are imported when the command runs.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from escrowmq.cli import options
from escrowmq.cli.asking import instant_ms
from escrowmq.cli.config import load
from escrowmq.look_up.ledger_config import LedgerConfig, expand
from escrowmq.model.errors import RequestRefused
from escrowmq.pipeline.config import PipelineConfig, addresses_of, user_cache
from escrowmq.pipeline.spark.version import require_pipeline_spark

if TYPE_CHECKING:
    from escrowmq.pipeline.audit.business import BusinessTable
    from escrowmq.pipeline.audit.compare import AuditRequest
    from escrowmq.pipeline.audit.report import AuditReport

VIOLATED = 1
INCOMPLETE = 8
"""Exit code: nothing was found, but a requested comparison failed, so there is no proof."""

PAGE, DATA = "audit.html", "audit.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class BusinessOptions:
    """Options that describe the user's business table."""

    business_table: Annotated[
        str | None,
        typer.Option(metavar="TABLE", help="A table of yours; each of its rows has a message."),
    ] = None
    key: Annotated[
        str | None,
        typer.Option(metavar="COLUMN", help="The column of the table that has the messages' keys."),
    ] = None
    where: Annotated[
        str | None, typer.Option(metavar="SQL", help="The condition for rows that have a message.")
    ] = None
    business_url: Annotated[
        str | None,
        typer.Option(
            metavar="URL|LEDGER", help="The database of the table, or the ledger in that database."
        ),
    ] = None
    message_key: Annotated[
        str | None,
        typer.Option(
            metavar="keys|property:NAME", help="The part of a message that holds the row's key."
        ),
    ] = None
    events: Annotated[
        list[str] | None,
        typer.Option(
            "--event",
            metavar="EVENT",
            help="A row has one message of each event: 'tag:paid' or 'property:NAME=VALUE', also"
            " with ' where SQL' for its rows; may be repeated.",
        ),
    ] = None

    def business(
        self, ledgers: Mapping[str, LedgerConfig], environ: Mapping[str, str]
    ) -> BusinessTable | None:
        """Return the business table, or None if ``--business-table`` is not given."""
        from escrowmq.pipeline.audit.business import BusinessTable
        from escrowmq.pipeline.audit.business_events import business_event

        events = self.events or ()
        if self.business_table is None:
            needless = {
                "--key": self.key,
                "--where": self.where,
                "--business-url": self.business_url,
                "--message-key": self.message_key,
                "--event": next(iter(events), None),
            }
            for option, value in needless.items():
                if value is not None:
                    allowed = "is of no use without --business-table"
                    raise options.bad_option(option, allowed, value)
            return None
        if not self.key:
            allowed = "the column of --business-table that has the messages' keys"
            raise options.bad_option("--key", allowed)
        return BusinessTable(
            url=self._url(ledgers, environ),
            table=self.business_table,
            key=self.key,
            where=self.where or "",
            message_key=self.message_key or "keys",
            events=tuple(map(business_event, events)),
        )

    def _url(self, ledgers: Mapping[str, LedgerConfig], environ: Mapping[str, str]) -> str:
        # Most users keep their rows in the database that holds their ledger.
        name = self.business_url or (next(iter(ledgers)) if len(ledgers) == 1 else "")
        if name in ledgers:
            return ledgers[name].url
        allowed = "a URL such as postgresql://host/database"
        if ledgers:
            allowed += f", or a ledger of the config: {', '.join(ledgers)}"
        if "://" not in name:
            raise options.bad_option("--business-url", allowed, name)
        try:
            return LedgerConfig(url=expand(name, environ)).url
        except RequestRefused as error:
            # The error leaves out the value, which may hold a password.
            raise RequestRefused(
                "bad_option", error.message or allowed, option="--business-url"
            ) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class AuditOptions(BusinessOptions):
    """Options of ``escrowmq audit``."""

    brokers: Annotated[
        list[str] | None,
        typer.Option(
            "--broker",
            "-b",
            metavar="HOST:PORT",
            envvar="ESCROWMQ_BROKER",
            help="A broker to audit; may be repeated. The default is those of the config.",
        ),
    ] = None
    data: options.LakeDataOption = None
    lake_uri: options.LakeOption = None
    without_lake: Annotated[
        bool, typer.Option("--without-lake", help="Do not compare the lake.")
    ] = False
    topics: Annotated[
        list[str] | None,
        typer.Option(
            "--topic", help="Audit only this topic's messages and consumers; may be repeated."
        ),
    ] = None
    since: Annotated[
        str | None, typer.Option(metavar="TIME", help="Leave out messages that were stored before.")
    ] = None
    report: Annotated[
        Path | None, typer.Option(metavar="DIR", help=f"Write {PAGE} and {DATA} there.")
    ] = None
    plain: Annotated[
        bool, typer.Option("--plain", help="Compare with plain joins, which are slower.")
    ] = False
    master: options.MasterOption = None
    output: options.OutputOption = options.Output.TABLE
    file: options.FileOption = None
    set_: options.SetOption = None


@options.grouped
def audit(given: AuditOptions) -> None:
    """Prove that brokers, lake, ledgers and your table agree.

    The proof starts from the half and op records. Exit code 1: something is lost, doubled, phantom,
    contradictory or stuck. 8: nothing was found, but a requested comparison failed. Write times as
    2026-11-16T12:00:00Z, or in milliseconds.
    """
    config = load(file=given.file, environ=os.environ, flags=given.set_ or ())
    settings = config.section(PipelineConfig)
    require_pipeline_spark()
    if given.lake_uri and given.without_lake:
        raise options.bad_option("--without-lake", "not together with --lake")
    in_data = str(given.data / "lake") if given.data else settings.lake_uri
    lake = "" if given.without_lake else given.lake_uri or in_data
    from escrowmq.pipeline.audit.compare import AuditRequest

    request = AuditRequest(
        brokers=_addresses(given.brokers) or settings.broker_addresses,
        since_ms=instant_ms("--since", given.since) if given.since else 0,
        topics=tuple(given.topics or ()),
        ledgers={name: ledger.url for name, ledger in config.ledgers.items()},
        lake=lake,
        business=given.business(config.ledgers, os.environ),
        is_plain=given.plain,
    )
    if given.report is not None:
        options.make_report_directory(given.report, DATA)
    done = _run(request, _settings(settings, given.master, lake), given.data)
    if given.report is not None:
        _write(done, given.report)
    from escrowmq.cli.lake.audit_text import show

    show(done, given.output)
    if not done.is_clean:
        raise typer.Exit(VIOLATED)
    if done.has_failed:
        raise typer.Exit(INCOMPLETE)


def _addresses(brokers: list[str] | None) -> tuple[str, ...]:
    if not brokers:
        return ()
    try:
        found = addresses_of(",".join(brokers))
    except RequestRefused as error:
        value = str(error.fields.get("value", ""))
        allowed = "HOST:PORT, and the option again for each further one"
        raise options.bad_option("--broker", allowed, value) from None
    return tuple(dict.fromkeys(found))


def _settings(config: PipelineConfig, master: str | None, lake: str) -> PipelineConfig:
    if master is None:
        return config
    # A cluster's config must name both places, but an audit uses no checkpoints.
    return replace(
        config,
        master=master,
        lake_uri=config.lake_uri or lake or "none",
        checkpoint_uri=config.checkpoint_uri or "none",
    )


def _run(request: AuditRequest, config: PipelineConfig, data: Path | None) -> AuditReport:
    from escrowmq.pipeline.audit.job import run_audit
    from escrowmq.pipeline.spark.scratch import scratch_in
    from escrowmq.pipeline.spark.start_cache import quick_session

    cache = data / "pipeline" / "cache" if data else user_cache()
    cache = Path(config.cache_dir) if config.cache_dir else cache
    with scratch_in(cache) as scratch:
        return run_audit(quick_session(config, cache=cache, scratch=scratch), request)


def _write(done: AuditReport, folder: Path) -> None:
    from escrowmq.pipeline.audit.html import as_html
    from escrowmq.pipeline.audit.report import as_json

    (folder / DATA).write_bytes(as_json(done))
    (folder / PAGE).write_text(as_html(done), encoding="utf-8")
