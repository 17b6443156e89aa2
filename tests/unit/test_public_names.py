"""Names that users rely on do not change without notice.

``public_names.json`` records them. A module, class or function may move, but its public path works
for one more release, with a DeprecationWarning.
"""

from __future__ import annotations

import re
import sys
import warnings
from pathlib import Path

import pytest

from tests.unit.public_names import SECTIONS_OF_NAMES, recorded, resolve, shown_imports

#: Old paths of imports in guides, and their new paths: ``package.module:name`` or
#: ``package.module``. An entry stays for one release.
MOVED: dict[str, str] = {
    "escrowmq.client.ledger_table:ddl": "escrowmq.client.ledger.table:ddl",
}

IMPORTS = "imports in guides"
KEEP = (
    "Users rely on these names. Keep them; or keep the old name for one release, with a"
    " DeprecationWarning, and write the change into CHANGELOG.md, and then record it with"
    " `python -m tests.unit.public_names`. If only the name of an internal type in a signature"
    " changed, record it."
)
RECORD = "These names are new: record it with `python -m tests.unit.public_names`."


@pytest.mark.parametrize("section", SECTIONS_OF_NAMES)
def test_recorded_names_stay_and_new_names_are_recorded(section: str) -> None:
    then, now = recorded()[section], SECTIONS_OF_NAMES[section]()
    moved = MOVED if section == IMPORTS else {}
    missing = [f"{name}: {text}" for name, text in then.items() if name not in {**now, **moved}]
    changed = [
        f"{name}: {text}\n  now: {now[name]}"
        for name, text in then.items()
        if now.get(name, text) != text
    ]
    new = [f"{name}: {text}" for name, text in now.items() if name not in then]
    assert not missing, "\n".join([KEEP, "Missing:", *missing])
    assert not changed, "\n".join([KEEP, "Changed:", *changed])
    assert not new, "\n".join([RECORD, *new])


def test_no_section_is_recorded_that_is_not_compared() -> None:
    assert recorded().keys() == SECTIONS_OF_NAMES.keys()


@pytest.mark.parametrize("shown", sorted({*recorded()[IMPORTS], *MOVED}))
def test_a_recorded_import_works_and_only_a_moved_one_warns(
    shown: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if shown in MOVED:
        check_moved(shown, MOVED[shown], monkeypatch)
    else:
        with warnings.catch_warnings():
            warnings.simplefilter("error", DeprecationWarning)
            resolve(shown)


def test_guides_do_not_show_an_old_path() -> None:
    assert sorted(shown_imports().keys() & MOVED.keys()) == []


def check_moved(old: str, new: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Check that the old path names the new one in a warning and leads to the same object."""
    # A module that was imported before does not warn again.
    monkeypatch.delitem(sys.modules, old.partition(":")[0], raising=False)
    with pytest.warns(DeprecationWarning, match=re.escape(new.partition(":")[0])):
        found = resolve(old)
    if ":" in old:
        assert found is resolve(new), f"{old} is not {new}"


WARNING = "import warnings; warnings.warn('see json', DeprecationWarning)\n"


@pytest.mark.parametrize(
    ("body", "failure"),
    [
        (f"{WARNING}from json import loads", ""),
        ("from json import loads", "DID NOT WARN"),
        (f"{WARNING}loads = 1", "is not json"),
    ],
    ids=["warns", "does not warn", "another object"],
)
def test_an_old_path_must_warn_and_lead_to_the_new_one(
    body: str, failure: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "old_home_of_loads.py").write_text(body, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    if failure:
        with pytest.raises((AssertionError, pytest.fail.Exception), match=failure):
            check_moved("old_home_of_loads:loads", "json:loads", monkeypatch)
    else:
        check_moved("old_home_of_loads:loads", "json:loads", monkeypatch)
