"""What the site needs besides docs/: the pages and the files of the repository that pages link to.

All links are written for the repository, where every page is a file among others.  For the site,
the pages at the top are taken in (README as the overview), a file that is no page becomes one that
shows it, and links are turned to where these are there.
"""

from __future__ import annotations

import ast
import posixpath
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from mkdocs.structure.files import File, Files

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[1]

#: Pages of the repository's top, by what the site calls them.
TOP = {
    f"{name}.md": f"{name}.md" for name in ("ARCHITECTURE", "CHANGELOG", "CONTRIBUTING", "STYLE")
}
TOP["README.md"] = "overview.md"

#: The theme would load this from a network, for the search of a site that is read from files.
_THEMES_WORKER = "https://unpkg.com/iframe-worker/shim"
_OUR_WORKER = "assets/file-worker.js"

_FENCE = re.compile(r"^(`{3,})[^`\n]*\n.*?^\1\s*$", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"(?P<text>\[[^\]]*\])\((?P<target>[^)\s]+)\)")
_LANGUAGES = {".toml": "toml", ".service": "ini"}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of the top, and a page for each file that pages link to."""
    for source, target in TOP.items():
        files.append(File.generated(config, target, abs_src_path=str(ROOT / source)))
    pages = [(place(file.src_uri), file.content_string) for file in files.documentation_pages()]
    shown = {linked for page, text in pages for linked in linked_files(page, text)}
    for path in sorted(shown):
        files.append(File.generated(config, site_uri(path), content=listing(path)))
    return files


def on_page_markdown(markdown: str, page: Page, **_: object) -> str:
    """Turn the links of a page to where their targets are on the site."""
    here = page.file.src_uri
    if here.startswith("source/"):
        return markdown

    def turned(link: re.Match[str]) -> str:
        path, mark, anchor = link["target"].partition("#")
        if is_elsewhere(link["target"]) or not path:
            return link[0]
        target = site_uri(resolved(place(here), path))
        return f"{link['text']}({posixpath.relpath(target, posixpath.dirname(here))}{mark}{anchor})"

    return _outside_of_fences(markdown, turned)


def on_post_page(output: str, page: Page, **_: object) -> str:
    """Have the page load our own script instead of one from a network."""
    return output.replace(_THEMES_WORKER, _relative(_OUR_WORKER, page.file.dest_uri))


def on_post_template(output_content: str, **_: object) -> str:
    """Do the same for pages that the theme makes by itself, which are at the top."""
    return output_content.replace(_THEMES_WORKER, _OUR_WORKER)


def _relative(target: str, page: str) -> str:
    return posixpath.relpath(target, posixpath.dirname(page))


def _outside_of_fences(markdown: str, turned: Callable[[re.Match[str]], str]) -> str:
    parts, end = [], 0
    for fence in _FENCE.finditer(markdown):
        parts += [_LINK.sub(turned, markdown[end : fence.start()]), fence[0]]
        end = fence.end()
    return "".join([*parts, _LINK.sub(turned, markdown[end:])])


def place(uri: str) -> str:
    """Where a page of the site is in the repository."""
    known = {target: source for source, target in TOP.items()}
    return known.get(uri, f"docs/{uri}")


def site_uri(path: str) -> str:
    """What the site calls a file of the repository."""
    if path in TOP:
        return TOP[path]
    return path.removeprefix("docs/") if path.startswith("docs/") else f"source/{path}.md"


def linked_files(page: str, text: str) -> set[str]:
    """Files, seen from the top, that a page links to and that are no pages."""
    targets = [link["target"].partition("#")[0] for link in _LINK.finditer(_FENCE.sub("", text))]
    paths = [resolved(page, target) for target in targets if target and not is_elsewhere(target)]
    return {path for path in paths if site_uri(path).startswith("source/")}


def resolved(page: str, target: str) -> str:
    """What a relative link of a page means, seen from the top."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(page), target))


def is_elsewhere(target: str) -> bool:
    """Whether a link leaves the repository."""
    return re.match(r"[a-z]+:", target) is not None


def listing(path: str) -> str:
    """Show a file as a page."""
    text = (ROOT / path).read_text(encoding="utf-8")
    if path.endswith(".py"):
        parts = [_part(name, "python", body) for name, body in functions(text)]
    else:
        parts = [_part("", _LANGUAGES.get(Path(path).suffix, "text"), text)]
    return "\n".join([f"---\ntitle: {path}\n---\n\n# `{path}`\n", *parts])


def _part(name: str, language: str, body: str) -> str:
    heading = f"## `{name}` {{ #{name} }}\n\n" if name else ""
    return f"{heading}`````{language}\n{body.strip()}\n`````\n"


def functions(source: str) -> Iterator[tuple[str, str]]:
    """Cut a module before each of its functions, so that links can lead to one."""
    lines = source.splitlines(keepends=True)
    starts = [(0, "")]
    for node in ast.parse(source).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = min([node.lineno, *(decorator.lineno for decorator in node.decorator_list)])
            starts.append((first - 1, node.name))
    for (start, name), end in zip(starts, [*(line for line, _ in starts[1:]), None], strict=True):
        if "".join(lines[start:end]).strip():
            yield name, "".join(lines[start:end])
