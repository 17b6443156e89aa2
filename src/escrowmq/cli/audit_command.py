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

from escrowmq.cli.config import load
from escrowmq.cli.options import FileOption, SetOption, instant_ms
from escrowmq.cli.output import Output, OutputOption
from escrowmq.model.errors import RequestRefused
from escrowmq.pipeline.config import PipelineConfig, addresses_of, user_cache
from escrowmq.pipeline.ledger_config import LedgerConfig, expand
from escrowmq.pipeline.spark.version import require_pipeline_spark

if TYPE_CHECKING:
    from escrowmq.pipeline.audit.business import BusinessTable
    from escrowmq.pipeline.audit.compare import AuditRequest
    from escrowmq.pipeline.audit.report import AuditReport

VIOLATED = 1
INCOMPLETE = 8
"""Exit code: nothing was found, but a requested comparison failed, so there is no proof."""

PAGE, DATA = "audit.html", "audit.json"

BrokersOption = Annotated[
    list[str] | None,
    typer.Option(
        "--broker",
        "-b",
        metavar="HOST:PORT",
        envvar="ESCROWMQ_BROKER",
        help="Whom to audit; may be repeated. Else those of the config.",
    ),
]
DataOption = Annotated[
    Path | None, typer.Option("--data-dir", metavar="DIR", help="The broker's: its lake is in it.")
]
LakeOption = Annotated[
    str | None, typer.Option("--lake", metavar="URI", help="The lake, if it is elsewhere.")
]
NoLakeOption = Annotated[bool, typer.Option("--without-lake", help="Leave the lake alone.")]
TableOption = Annotated[
    str | None,
    typer.Option("--business-table", metavar="TABLE", help="A table of yours: a message per row."),
]
KeyOption = Annotated[
    str | None, typer.Option("--key", metavar="COLUMN", help="Its column with messages' keys.")
]
WhereOption = Annotated[
    str | None, typer.Option("--where", metavar="SQL", help="Which of its rows have a message.")
]
UrlOption = Annotated[
    str | None,
    typer.Option("--business-url", metavar="URL|LEDGER", help="Its database, or whose it is."),
]
MessageKeyOption = Annotated[
    str | None,
    typer.Option("--message-key", metavar="keys|property:NAME", help="Where messages have it."),
]
EventsOption = Annotated[
    list[str] | None,
    typer.Option(
        "--event",
        metavar="EVENT",
        help="A row has one message of each: 'tag:paid', 'property:NAME=VALUE', also with"
        " ' where SQL' for its rows; may be repeated.",
    ),
]
TopicsOption = Annotated[
    list[str] | None,
    typer.Option("--topic", help="Whose messages and consumers count; may be repeated."),
]
SinceOption = Annotated[
    str | None, typer.Option("--since", metavar="TIME", help="Leave out what was stored before.")
]
ReportOption = Annotated[
    Path | None, typer.Option("--report", metavar="DIR", help=f"Write {PAGE} and {DATA} there.")
]


@dataclass(frozen=True)
class _Business:
    """Options that describe the user's business table."""

    table: str | None
    key: str | None
    where: str | None
    url: str | None
    message_key: str | None
    events: tuple[str, ...]

    def given(
        self, ledgers: Mapping[str, LedgerConfig], environ: Mapping[str, str]
    ) -> BusinessTable | None:
        """Return the business table, or None if ``--business-table`` is not given."""
        from escrowmq.pipeline.audit.business import BusinessTable
        from escrowmq.pipeline.audit.business_events import business_event

        options = {
            "--key": self.key,
            "--where": self.where,
            "--business-url": self.url,
            "--message-key": self.message_key,
            "--event": next(iter(self.events), None),
        }
        if self.table is None:
            for option, value in options.items():
                if value is not None:
                    raise _bad(option, "is of no use without --business-table", value)
            return None
        if not self.key:
            raise _bad("--key", "the column of --business-table that has the messages' keys", "")
        return BusinessTable(
            url=self._url(ledgers, environ),
            table=self.table,
            key=self.key,
            where=self.where or "",
            message_key=self.message_key or "keys",
            events=tuple(map(business_event, self.events)),
        )

    def _url(self, ledgers: Mapping[str, LedgerConfig], environ: Mapping[str, str]) -> str:
        # Most users keep their rows in the database that holds their ledger.
        name = self.url or (next(iter(ledgers)) if len(ledgers) == 1 else "")
        if name in ledgers:
            return ledgers[name].url
        allowed = "a URL such as postgresql://host/database"
        if ledgers:
            allowed += f", or a ledger of the config: {', '.join(ledgers)}"
        if "://" not in name:
            raise _bad("--business-url", allowed, name)
        try:
            return LedgerConfig(url=expand(name, environ)).url
        except RequestRefused as error:
            # The error leaves out the value, which may hold a password.
            raise RequestRefused(
                "bad_option", error.message or allowed, option="--business-url"
            ) from None


def audit(
    *,
    brokers: BrokersOption = None,
    data: DataOption = None,
    lake_uri: LakeOption = None,
    without_lake: NoLakeOption = False,
    business_table: TableOption = None,
    key: KeyOption = None,
    where: WhereOption = None,
    business_url: UrlOption = None,
    message_key: MessageKeyOption = None,
    events: EventsOption = None,
    topics: TopicsOption = None,
    since: SinceOption = None,
    report: ReportOption = None,
    plain: Annotated[bool, typer.Option("--plain", help="By plain joins: slower.")] = False,
    master: Annotated[str | None, typer.Option(help="Where Spark runs.")] = None,
    output: OutputOption = Output.TABLE,
    file: FileOption = None,
    set_: SetOption = None,
) -> None:
    """Prove from half and op records that everything else agrees with them.

    Exit code 1: something is lost, doubled, phantom, contradictory or stuck. 8: nothing was found,
    but a requested comparison failed. Write times as 2026-11-16T12:00:00Z, or in milliseconds.
    """
    config = load(file=file, environ=os.environ, flags=set_ or ())
    settings = config.section(PipelineConfig)
    require_pipeline_spark()
    if lake_uri and without_lake:
        raise _bad("--without-lake", "not together with --lake", "")
    in_data = str(data / "lake") if data else settings.lake_uri
    lake = "" if without_lake else lake_uri or in_data
    business = _Business(business_table, key, where, business_url, message_key, tuple(events or ()))
    from escrowmq.pipeline.audit.compare import AuditRequest

    request = AuditRequest(
        brokers=_addresses(brokers) or settings.broker_addresses,
        since_ms=instant_ms("--since", since) if since else 0,
        topics=tuple(topics or ()),
        ledgers={name: ledger.url for name, ledger in config.ledgers.items()},
        lake=lake,
        business=business.given(config.ledgers, os.environ),
        is_plain=plain,
    )
    if report is not None:
        _make(report)
    done = _run(request, _settings(settings, master, lake), data)
    if report is not None:
        _write(done, report)
    from escrowmq.cli.audit_text import show

    show(done, output)
    if not done.is_clean:
        raise typer.Exit(VIOLATED)
    if done.has_failed:
        raise typer.Exit(INCOMPLETE)


def _bad(option: str, allowed: str, value: str) -> RequestRefused:
    return RequestRefused("bad_option", allowed, option=option, value=value[:128])


def _addresses(brokers: list[str] | None) -> tuple[str, ...]:
    if not brokers:
        return ()
    try:
        found = addresses_of(",".join(brokers))
    except RequestRefused as error:
        value = str(error.fields.get("value", ""))
        raise _bad(
            "--broker", "HOST:PORT, and the option again for each further one", value
        ) from None
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


def _make(folder: Path) -> None:
    """Check that the report can be written before the audit, which may take an hour."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        (folder / DATA).touch()
    except OSError as error:
        raise _bad("--report", f"a directory that can be written: {error}", str(folder)) from None


def _write(done: AuditReport, folder: Path) -> None:
    from escrowmq.pipeline.audit.html import as_html
    from escrowmq.pipeline.audit.report import as_json

    (folder / DATA).write_bytes(as_json(done))
    (folder / PAGE).write_text(as_html(done), encoding="utf-8")
