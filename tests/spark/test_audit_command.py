"""``escrowmq audit`` with a real broker, lake and databases: its output and exit codes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from escrowmq.cli.lake.audit_command import INCOMPLETE, VIOLATED
from escrowmq.cli.main import main
from escrowmq.pipeline.audit.findings import ComparedEvidence
from tests.spark.audit_shop import PAID, Shop, opened_shop
from tests.unit.cli.schema_check import checked

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

EVIL = "<script>alert(1)</script>"


@pytest.fixture(autouse=True)
def _one_session(spark: SparkSession, monkeypatch: pytest.MonkeyPatch) -> None:
    """Give the command this session, because it would start its own Spark."""
    starting = "escrowmq.pipeline.spark.start_cache.quick_session"
    monkeypatch.setattr(starting, lambda *_, **__: spark)


def run(*arguments: object) -> object:
    with pytest.raises(SystemExit) as stopped:
        main(["audit", *(str(argument) for argument in arguments)])
    return stopped.value.code


def configured(shop: Shop, folder: Path, **more: str) -> Path:
    """Write a config with the shop's ledger, and others."""
    file = folder / "escrowmq.toml"
    ledgers = {"shop": shop.url, **more}
    text = "\n".join(f'[ledger.{name}]\nurl = "{url}"' for name, url in ledgers.items())
    file.write_text(text, encoding="utf-8")
    return file


def comparison(
    report: dict[str, Any], compared: ComparedEvidence, which: str = ""
) -> dict[str, Any]:
    (found,) = [
        one
        for one in report["comparisons"]
        if one["compared"] == compared and one["which"] == which
    ]
    told: dict[str, Any] = found
    return told


def test_a_shop_whose_parts_agree_is_clean_until_one_does_not(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with opened_shop(spark, tmp_path) as shop:
        shop.day.hold("evil", group=EVIL)
        shop.day.commit("evil")
        shop.book("booked")
        shop.sell("sold")
        shop.archive()
        told = ("-b", shop.broker.broker_address, "--lake", shop.lake.uri, "--topic", PAID)
        table = ("--business-table", "orders", "--key", "id", "--where", "paid = 1")
        asked = (*told, *table, "--config", configured(shop, tmp_path))
        reports = tmp_path / "reports"
        assert run(*asked, "--report", reports) == 0
        out = capsys.readouterr().out
        assert out.splitlines()[-1] == "nothing was found: what was compared agrees"
        assert "FAILED" not in out
        assert "not asked for" not in out
        assert json.loads((reports / "audit.json").read_bytes())["is_clean"] is True
        assert "what was compared agrees" in (reports / "audit.html").read_text(encoding="utf-8")

        shop.sql("DELETE FROM orders WHERE id = 'sold'")
        shop.sql("UPDATE escrowmq_ledger SET outcome = 'rolled_back'")
        shop.day.hold("again", group=EVIL, ledger=shop.ledger)
        shop.row("again", "rolled_back")
        shop.day.commit("again")
        assert run(*asked, "--report", reports) == VIOLATED
        out = capsys.readouterr().out
        assert "message_without_business_row: 1" in out
        assert "its key is sold" in out
        assert "ledger_contradicts: 2" in out
        assert out.splitlines()[-1] == "violated: 1 phantom, 2 contradictory"
        page = (reports / "audit.html").read_text(encoding="utf-8")
        assert EVIL not in page
        assert "&lt;script&gt;" in page


def test_evidence_that_cannot_be_compared_is_reported_and_proves_nothing(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with opened_shop(spark, tmp_path) as shop:
        shop.book("booked")
        shop.sell("sold")
        no_ledger = tmp_path / "empty.db"
        no_ledger.touch()
        file = configured(
            shop,
            tmp_path,
            gone=f"sqlite:///{tmp_path / 'gone.db'}",
            bare=f"sqlite:///{no_ledger}",
            away="postgresql://postgres@127.0.0.1:9/shop",
        )
        table = ("--business-table", "no_orders", "--key", "id", "--business-url", "shop")
        asked = ("-b", shop.broker.broker_address, "--config", file, "--lake", tmp_path / "no")
        assert run(*asked, *table, "-o", "json") == INCOMPLETE
        report = checked("audit", capsys.readouterr().out)
        assert report["findings"] == []
        assert report["has_failed"] is True
        reasons = {
            (ComparedEvidence.LAKE, ""): "lake_missing",
            (ComparedEvidence.LEDGER, "gone"): "ledger_unreachable",
            (ComparedEvidence.LEDGER, "bare"): "ledger_unreachable",
            (ComparedEvidence.LEDGER, "away"): "ledger_unreachable",
            (ComparedEvidence.BUSINESS, "no_orders"): "business_table_unreadable",
        }
        for (compared, which), reason in reasons.items():
            one = comparison(report, compared, which)
            assert one["is_failed"], one
            assert one["not_compared"].startswith(reason), one
        # The other parts were compared anyway.
        assert comparison(report, ComparedEvidence.LEDGER, "shop")["counts"]["rows"] == 1
        assert comparison(report, ComparedEvidence.RECORDS)["counts"]["transactions"] == 2
        assert run(*asked, "-o", "csv") == INCOMPLETE
        assert "comparison,lake,,FAILED,," in capsys.readouterr().out


def test_parts_left_out_of_an_audit_are_named_and_do_no_harm(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    with opened_shop(spark, tmp_path) as shop:
        shop.sell("sold")
        assert run("-b", shop.broker.broker_address, "-o", "json", "--plain") == 0
        report = checked("audit", capsys.readouterr().out)
        left_out = {
            one["compared"]: one["not_compared"]
            for one in report["comparisons"]
            if one["not_compared"]
        }
        assert left_out == {
            ComparedEvidence.LAKE: "no lake was given",
            ComparedEvidence.LEDGER: "no ledger is in the config",
            ComparedEvidence.BUSINESS: "no table was given",
        }


WRONG = [
    (("--key", "id"), "--key", "is of no use without --business-table"),
    (("--where", "paid"), "--where", "is of no use without --business-table"),
    (("--business-table", "orders"), "--key", "the column of --business-table"),
    (("--business-table", "o; DROP", "--key", "id", "--business-url", "a"), "--business-", "a URL"),
    (("--business-table", "orders", "--key", "id"), "--business-url", "a URL such as"),
    (
        ("--business-table", "x y", "--key", "id", "--business-url", "sqlite:///a"),
        "--business-table",
        "a plain name",
    ),
    (
        ("--business-table", "x", "--key", "id)", "--business-url", "sqlite:///a"),
        "--key",
        "a plain name",
    ),
    (
        (
            *("--business-table", "x", "--key", "id", "--business-url", "sqlite:///a"),
            *("--message-key", "body"),
        ),
        "--message-key",
        "keys or property:NAME",
    ),
    (("--since", "yesterday"), "--since", "milliseconds since 1970, or a time as in"),
    (("-b", "nowhere"), "--broker", "HOST:PORT"),
    (("--lake", "x", "--without-lake"), "--without-lake", "not together with --lake"),
    (("--report", "/dev/null/x"), "--report", "a directory that can be written"),
]


@pytest.mark.parametrize(("arguments", "option", "allowed"), WRONG)
def test_a_wrong_option_is_named_with_what_is_allowed(
    arguments: tuple[str, ...], option: str, allowed: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(*arguments) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith("escrowmq: bad_option: ")
    assert option in line
    assert allowed in line


def test_no_password_of_a_wrong_url_is_repeated(capsys: pytest.CaptureFixture[str]) -> None:
    url = "oracle://me:secret@host/orders"
    assert run("--business-table", "orders", "--key", "id", "--business-url", url) == 2
    assert "secret" not in capsys.readouterr().err


def test_a_broker_that_is_away_is_an_error_and_no_report() -> None:
    assert run("-b", "127.0.0.1:9") == 3
