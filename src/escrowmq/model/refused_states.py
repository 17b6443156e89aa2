"""Codes of refusals that name the state of a transaction, such as ``already_committed``.

The decisions refuse with them, and clients compare with them, so that neither writes them out.
"""

from __future__ import annotations


def already(state: str) -> str:
    """Return the code that refuses a request because the transaction is in this state."""
    return f"already_{state}"
