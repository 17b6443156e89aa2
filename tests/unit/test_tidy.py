"""Style rules that ruff cannot check."""

from __future__ import annotations

import ast
import re
import tokenize
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.unit.repository import (
    CODE,
    ROOT,
    headings,
    imported,
    links,
    modules,
    pages,
    parse,
    relative,
)

MODULE_LINES_MAX = 400
PIPELINE_MODULE_LINES_MAX = 250
FUNCTION_LINES_MAX = 70

#: Modules that may exceed the line limit, each with the reason.
LONG_MODULES: dict[str, str] = {
    "src/escrowmq/transaction/records.py": "every record of the log, one short class each",
    "tests/unit/store/test_key_index.py": "one index, all of its promises",
    "tests/unit/store/test_meta.py": "one file, all of its promises",
}

#: Folders whose tests plain pytest does not run, each with the reason.
NOT_BY_DEFAULT: dict[str, str] = {
    "tests/cluster": "a Spark cluster of processes needs minutes",
    "tests/interop": "stock clients need a JDK, Maven, Go and minutes",
    "tests/package": "a whole installation needs a package index and minutes",
}

FUNCTION = ast.FunctionDef | ast.AsyncFunctionDef

TESTS = modules("tests")


def lines_max(path: Path) -> int:
    return PIPELINE_MODULE_LINES_MAX if "pipeline" in path.parts else MODULE_LINES_MAX


def test_modules_are_short() -> None:
    long = {
        relative(path)
        for path in CODE
        if len(path.read_text(encoding="utf-8").splitlines()) > lines_max(path)
    }
    assert long == LONG_MODULES.keys(), "split it, or list it with its reason"


def test_functions_are_short() -> None:
    long = [
        f"{relative(path)}:{node.lineno} {node.name}"
        for path in CODE
        for node in ast.walk(parse(path))
        if isinstance(node, FUNCTION)
        and (node.end_lineno or node.lineno) - node.lineno >= FUNCTION_LINES_MAX
    ]
    assert long == []


def test_every_open_task_in_the_code_has_an_issue() -> None:
    marker = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")
    with_issue = re.compile(r"\bTODO\(#\d+\): \S")
    loose = [
        f"{relative(path)}:{token.start[0]}"
        for path in CODE
        for token in comments(path)
        if marker.search(token.string) and not with_issue.search(token.string)
    ]
    assert loose == [], "write it as TODO(#12): what"


def comments(path: Path) -> Iterator[tokenize.TokenInfo]:
    with path.open("rb") as file:
        yield from (
            token for token in tokenize.tokenize(file.readline) if token.type == tokenize.COMMENT
        )


def test_no_test_patches_the_core_the_codecs_or_the_store() -> None:
    """Tests use the doubles in escrowmq.testing, which are public classes for users as well."""
    guarded = tuple(f"escrowmq.{part}" for part in ("transaction", "protocol", "store"))
    found = [
        relative(path)
        for path in TESTS
        for names in [list(imported(parse(path), ""))]
        if any(name.startswith(guarded) for name in names)
        and any(name.startswith(("unittest.mock", "mock")) for name in names)
    ]
    assert found == []


def test_no_test_sleeps() -> None:
    found = [
        f"{relative(path)}: {ast.unparse(node)}"
        for path in TESTS
        for node in ast.walk(parse(path))
        if is_sleep(node)
    ]
    assert found == [], "wait for the event itself, or move a ManualClock"


def is_sleep(node: ast.AST) -> bool:
    match node:
        case ast.Attribute(value=ast.Name(id="time"), attr="sleep"):
            return True
        case ast.ImportFrom(module="time", names=names):
            return any(alias.name == "sleep" for alias in names)
    return False


def test_every_folder_of_tests_is_run_by_default_or_has_a_reason() -> None:
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    run = set(settings["tool"]["pytest"]["ini_options"]["testpaths"])
    found = {
        f"tests/{path.relative_to(ROOT / 'tests').parts[0]}"
        for path in TESTS
        if path.name.startswith("test_")
    }
    assert run <= found
    assert found - run <= NOT_BY_DEFAULT.keys()
    assert not run & NOT_BY_DEFAULT.keys()


def test_no_test_asserts_a_constant() -> None:
    found = [
        f"{relative(path)}:{node.lineno}"
        for path in TESTS
        for node in ast.walk(parse(path))
        if isinstance(node, ast.Assert) and isinstance(node.test, ast.Constant) and node.test.value
    ]
    assert found == []


@pytest.mark.parametrize("page", pages(), ids=relative)
def test_a_page_has_one_title(page: Path) -> None:
    assert len(headings(page, 1)) == 1


@pytest.mark.parametrize("page", pages(), ids=relative)
def test_links_lead_somewhere(page: Path) -> None:
    targets = [target for target in links(page) if not re.match(r"[a-z]+:", target)]
    for target in targets:
        path, _, anchor = target.partition("#")
        file = (page.parent / path).resolve() if path else page
        assert file.exists(), f"{target} does not exist"
        assert not anchor or anchor in anchors(file), f"{target}: no such heading"


def anchors(page: Path) -> set[str]:
    """Return the anchors of a page: its headings, or the functions of a module."""
    if page.suffix == ".py":
        return {node.name for node in parse(page).body if isinstance(node, FUNCTION)}
    titles = [title for level in range(1, 5) for title in headings(page, level)]
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_committed_files_name_no_machine_and_no_package_index() -> None:
    """The lock files must work on every machine."""
    for path in sorted((ROOT / "requirements").glob("*.txt")):
        text = path.read_text(encoding="utf-8")
        assert not re.search(
            r"://|^ *--(?!hash=)|(?<![\w.])/(root|home|tmp|work|opt)/", text, re.MULTILINE
        )
