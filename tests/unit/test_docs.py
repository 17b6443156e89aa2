"""Run the code blocks of the pages, so that they stay true.

The kind of a fenced block says how it is tested. ``python`` is executed. ``toml`` is loaded as
config and left as escrowmq.toml for later blocks; ``properties``, the file of a RocketMQ broker, is
left as broker.conf. In ``console`` and ``sh``, each escrowmq command after ``$`` is run, and its
output is compared with the output shown (a line ``...`` stands for any lines). Commands that ask a
broker get one with only the messages that the page sends. Commands that run forever are only asked
for their help, and tests are only collected. A make line must name existing targets. ``json`` must
be JSON, and ``py``, a sketch, must be Python. ``text`` and ``mermaid`` are not run.
"""

from __future__ import annotations

import ast
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import get_args

import pytest

from escrowmq.cli.config import SECTIONS, load
from escrowmq.model.verdict_outcome import VerdictOutcome
from escrowmq.testing import InProcessBroker
from tests.unit.repository import (
    PACKAGE,
    ROOT,
    Block,
    blocks,
    modules,
    pages,
    parse,
    prose,
    relative,
)
from tools.reference import pages as generated
from tools.reference import settings
from tools.reference.comments import describe

EXEMPT = {"text", "mermaid"}
SHELL = {"console", "sh"}
NOT_RUN = {"git", "pip", "cd"}
OUR_PYTHON = ".venv/bin/python"
ASKING = {"group", "message", "status", "topic", "txn"}
LASTING = {"pipeline", "serve", "up"}

#: tests/spark runs the Python of these pages, because it has a Spark session.
SPARK_PAGES = [page for page in pages() if page.name.startswith(("spark", "lake"))]
TOP_PAGES = {ROOT / "CONTRIBUTING.md", ROOT / "README.md"}
RUN_PAGES = [page for page in pages() if page in TOP_PAGES or ROOT / "docs" in page.parents]
RUN_PAGES = [page for page in RUN_PAGES if list(blocks(page)) and page not in SPARK_PAGES]


@pytest.mark.parametrize("page", RUN_PAGES, ids=relative)
def test_a_page_shows_what_is_true(
    page: Path, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    if any(map(asks, blocks(page))):
        broker: InProcessBroker = request.getfixturevalue("escrowmq_broker")
        monkeypatch.setenv("ESCROWMQ_BROKER", broker.broker_address)
    for block in blocks(page):
        try_block(block, tmp_path)


GUIDES = ("getting-started", "transactions", "consuming", "fastapi", "sqlalchemy", "from-an-outbox")
FIRST_PAGES = [ROOT / "README.md", *(ROOT / f"docs/guide/{name}.md" for name in GUIDES)]


def test_a_reader_can_run_the_programs_in_one_folder_and_twice(tmp_path: Path) -> None:
    for _ in range(2):
        for page in FIRST_PAGES:
            programs = [
                one for one in blocks(page) if "sqlite" in one.body and one.kind == "python"
            ]
            assert programs, page
            for program in programs:
                try_block(program, tmp_path)


def test_the_first_page_says_how_to_install() -> None:
    first, *_ = blocks(ROOT / "docs/guide/getting-started.md")
    assert (first.kind, first.body.strip()) == ("console", "$ pip install .")


@pytest.mark.parametrize("page", [page for page in pages() if page not in RUN_PAGES], ids=relative)
def test_sketches_are_at_least_python(page: Path) -> None:
    for block in blocks(page):
        assert block.kind in {"python", *EXEMPT}, str(block)
        if block.kind == "python":
            ast.parse(block.body, filename=str(block))


def test_modules_that_contributors_are_sent_to_exist() -> None:
    named = re.findall(r"`([\w./*]+\.(?:py|toml))`", prose(ROOT / "CONTRIBUTING.md"))
    assert len(named) > 40
    missing = [
        path
        for path in named
        if not any(any(top.glob(path.replace("...", "**"))) for top in (ROOT, PACKAGE))
        # A name alone stands beside the path before it.
        and ("/" in path or not any(any(top.rglob(path)) for top in (ROOT / "tests", PACKAGE)))
    ]
    assert missing == []


def try_block(block: Block, folder: Path) -> None:
    if needs_spark(block):
        return  # tests/spark runs it.
    if block.kind == "python":
        done = run([sys.executable, "-c", block.body], folder)
        assert done.returncode == 0, f"{block}\n{done.stdout}"
    elif block.kind == "toml":
        file = folder / "escrowmq.toml"
        file.write_text(block.body, encoding="utf-8")
        load(file=file, environ=dict.fromkeys(re.findall(r"\$\{(\w+)\}", block.body), "secret"))
    elif block.kind == "properties":
        (folder / "broker.conf").write_text(block.body, encoding="utf-8")
    elif block.kind == "py":
        ast.parse(block.body, filename=str(block))
    elif block.kind == "json":
        json.loads(block.body)
    elif block.kind in SHELL:
        for command, shown in commands(block):
            try_command(block, command, shown, folder)
    else:
        assert block.kind in EXEMPT, f"{block}: say which kind of block this is"


def asks(block: Block) -> bool:
    """Return whether the block has a command that asks a broker."""
    asking = re.compile(rf"^\$ escrowmq ({'|'.join(ASKING)})\b", re.MULTILINE)
    return block.kind in SHELL and asking.search(block.body) is not None


def needs_spark(block: Block) -> bool:
    """Return whether the block uses a Spark session that it does not create."""
    return block.kind == "python" and re.search(r"\bspark\.", block.body) is not None


def commands(block: Block) -> Iterator[tuple[str, str]]:
    """Yield each command of a shell block with the output shown under it."""
    assert block.body.startswith("$ "), f"{block}: a command starts with $"
    for part in re.split(r"^\$ ", block.body, flags=re.MULTILINE)[1:]:
        command, _, shown = part.partition("\n")
        yield command, shown.rstrip("\n")


def try_command(block: Block, command: str, shown: str, folder: Path) -> None:
    words = shlex.split(command, comments=True)
    environ = {}
    while "=" in words[0]:
        name, _, value = words.pop(0).partition("=")
        environ[name] = value
    if words[0] == "make":
        named = [word for word in words[1:] if "=" not in word]
        assert set(named) <= make_targets(), f"{block}: {command}"
    elif words[:3] == [OUR_PYTHON, "-m", "pytest"]:
        flags = ["--collect-only", "-q", "-p", "no:cacheprovider"]
        done = run([sys.executable, *words[1:], *flags], ROOT)
        assert done.returncode == 0, f"{block}: {command}\n{done.stdout}"
    elif words[:2] == [OUR_PYTHON, "-m"]:
        assert find_spec(words[2]), f"{block}: {command}"
    elif words[:2] == ["escrowmq", "demo"]:
        return  # Needs 90 seconds, and Spark; tests/package/test_demo.py compares it with a run.
    elif words[0] == "escrowmq":
        words += ["--help"] if words[1] in LASTING else []
        done = run([sys.executable, "-m", "escrowmq.cli.main", *words[1:]], folder, environ)
        if shown:
            assert matches(shown, done.stdout), f"{block}: {command}\n{done.stdout}"
        else:
            assert done.returncode == 0, f"{block}: {command}\n{done.stdout}"
    else:
        assert words[0] in NOT_RUN, f"{block}: no test knows how to run {words[0]}"


def run(
    words: list[str], folder: Path, environ: dict[str, str] | None = None
) -> subprocess.CompletedProcess[str]:
    kept = ("ESCROWMQ_BROKER",)
    clean = {
        name: value
        for name, value in os.environ.items()
        if name in kept or not name.startswith("ESCROWMQ_")
    }
    return subprocess.run(
        words,
        cwd=folder,
        env={**clean, **(environ or {})},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=60,
        check=False,
    )


def matches(shown: str, printed: str) -> bool:
    pattern = "\n".join(
        ".*" if line.strip() == "..." else re.escape(line.rstrip()) for line in shown.splitlines()
    )
    text = "\n".join(line.rstrip() for line in printed.splitlines())
    return re.fullmatch(pattern, text, flags=re.DOTALL) is not None


def make_targets() -> set[str]:
    return set(
        re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    )


@pytest.mark.parametrize(
    ("shown", "same"),
    [
        ("one\ntwo", True),
        ("one\n...", True),
        ("one", False),
        ("one\nthree", False),
    ],
)
def test_shown_output_is_compared(shown: str, same: bool) -> None:  # noqa: FBT001
    assert matches(shown, "one\ntwo\n") is same


@pytest.mark.parametrize(("name", "text"), generated.whole_pages().items())
def test_generated_pages_are_what_the_code_says(name: str, text: str) -> None:
    page = (ROOT / "docs/reference" / name).read_text(encoding="utf-8")
    assert page == text, "run make docs"


@pytest.mark.parametrize(("name", "blocks"), generated.blocks_of().items())
def test_generated_blocks_are_what_the_code_says(name: str, blocks: dict[str, str]) -> None:
    page = (ROOT / "docs/reference" / name).read_text(encoding="utf-8")
    assert page == generated.fill(page, blocks), "run make docs"


def test_the_pages_are_written_where_they_are(tmp_path: Path) -> None:
    for name in (*generated.whole_pages(), *generated.blocks_of()):
        page = (ROOT / "docs/reference" / name).read_text(encoding="utf-8")
        (tmp_path / name).write_text(page.replace("|", "?"), encoding="utf-8")
    generated.write(tmp_path)
    config = (tmp_path / "config.md").read_text(encoding="utf-8")
    assert config == settings.page()
    states = (tmp_path / "transaction-states.md").read_text(encoding="utf-8")
    assert "stateDiagram-v2" in states


def test_every_record_is_on_the_page_of_the_disk_format() -> None:
    from escrowmq.transaction.records import Record

    page = (ROOT / "docs/reference/disk-format.md").read_text(encoding="utf-8")
    for kind in get_args(Record):
        tag = kind.__struct_config__.tag
        assert f"| {tag} | `{kind.__name__}` |" in page


def test_every_outcome_of_a_verdict_is_on_the_page_of_states() -> None:
    page = (ROOT / "docs" / "reference" / "transaction-states.md").read_text(encoding="utf-8")
    assert [one for one in VerdictOutcome if f"| `{one}` |" not in page] == []


def test_every_setting_is_described() -> None:
    for kind in SECTIONS.values():
        assert all(comment for _, comment in describe(kind)), kind


def test_the_errors_page_lists_exactly_the_errors_that_are_raised() -> None:
    page = (ROOT / "docs/reference/errors.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| `(\w+)` \| `(\w+)` \|", page, re.MULTILINE)
    assert listed == sorted(set(listed)), "in order, each once"
    assert set(listed) == raised()


DOCUMENTS = ("group", "setting", "topic", "user")
#: Error codes that are built from parts, and their possible values.
FAMILIES = {
    "already(half.state.label)": ["already_committed", "already_parked", "already_rolled_back"],
    "f'{table}_limit'": [f"{kind}s_limit" for kind in DOCUMENTS],
    "f'bad_{what}'": [f"bad_{kind}" for kind in DOCUMENTS],
    "f'{what}_too_large'": [f"{kind}_too_large" for kind in DOCUMENTS],
}
#: These functions get the code from their callers, so the callers are checked instead. A broker's
#: refusal keeps its code.
REFUSALS = {
    "refuse": "RequestRefused",
    "read_private": "RequestRefused",
    "read_rows": "StoreCorrupt",
    "rows_damaged": "StoreCorrupt",
}
PASSED_ON = {"code", "refused.code", "row.refused"}


def raised() -> set[tuple[str, str]]:
    """Return each (code, class) of the errors and refusals that the source creates."""
    trees = [parse(path) for path in modules("src")]
    kinds = {kind: kind for kind in error_classes(trees)} | REFUSALS
    return {
        (code, kinds[name])
        for tree in trees
        for node in ast.walk(tree)
        for name, argument in made(node)
        if name in kinds
        for code in codes(argument)
    }


def made(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """Yield a class and its code, from a call or from a table of errors."""
    match node:
        case ast.Call(args=[first, *_]):
            yield called(node), first
        case ast.Tuple(elts=[ast.Name(id=name), ast.Constant(value=str()) as second, *_]):
            yield name, second


def codes(argument: ast.expr) -> list[str]:
    text = ast.unparse(argument)
    if isinstance(argument, ast.Constant):
        return [str(argument.value)]
    if isinstance(argument, ast.IfExp):
        return [*codes(argument.body), *codes(argument.orelse)]
    assert text in FAMILIES or text in PASSED_ON, f"list what {text} can become"
    return FAMILIES.get(text, [])


def called(call: ast.Call) -> str:
    match call.func:
        case ast.Name(id=name) | ast.Attribute(attr=name):
            return name
    return ""


def error_classes(trees: list[ast.Module]) -> set[str]:
    classes = [node for tree in trees for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]
    kinds = {"EscrowError"}
    while True:
        more = {
            node.name
            for node in classes
            if any(isinstance(base, ast.Name) and base.id in kinds for base in node.bases)
        }
        if more <= kinds:
            return kinds
        kinds |= more
