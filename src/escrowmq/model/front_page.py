"""The page at ``/`` of an HTTP port: says which process listens there and links its other pages."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape

_STYLE = (
    "body{font:16px/1.5 system-ui,sans-serif;max-width:40rem;margin:3rem auto;padding:0 1rem}"
    "dt{font-weight:600}dd{margin:0 0 .8rem}"
    ":root{color-scheme:light dark}"
)


def front_page(title: str, facts: Mapping[str, str], pages: Mapping[str, str]) -> bytes:
    """Return HTML with the facts about a process, and a described link to each page."""
    told = "".join(
        f"<tr><th scope=row align=left>{escape(name)}</th><td>{escape(value)}</td></tr>"
        for name, value in facts.items()
    )
    linked = "".join(
        f'<dt><a href="{escape(path)}">{escape(path)}</a></dt><dd>{escape(about)}</dd>'
        for path, about in pages.items()
    )
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}'
        f'</title><meta name="viewport" content="width=device-width"><style>{_STYLE}</style></head>'
        f"<body><h1>{escape(title)}</h1><table>{told}</table><h2>Pages</h2><dl>{linked}</dl>"
        "</body></html>\n"
    ).encode()
