"""TLS contexts of clients, from the files that a user named."""

from __future__ import annotations

import os
import ssl
from functools import lru_cache
from pathlib import Path

from escrowmq.model.errors import RequestRefused
from escrowmq.model.tls import Tls, tls_of

CONTEXTS_MAX = 8
REFUSED = "the TLS connection failed: does the certificate name this address, and is its CA known?"
NO_CERTIFICATE = (
    "the broker refused the TLS connection: it may want a client certificate of its own CA"
    " (cert_file, key_file)"
)


def chosen_tls(tls: Tls | None) -> Tls | None:
    """Return the TLS to use: the given one, else what the environment asks for, else none."""
    return tls if tls is not None else tls_of(os.environ)


def client_context(tls: Tls) -> ssl.SSLContext:
    """Return the context for new connections. Changed files are read again."""
    try:
        files = [Path(path) for path in (tls.ca_file, tls.cert_file, tls.key_file) if path]
        stamps = tuple(path.stat().st_mtime_ns for path in files)
        return _context(tls, stamps)
    except (OSError, ValueError) as error:
        # Errors of ssl are OSErrors.
        raise RequestRefused(
            "tls_unusable",
            "name PEM files of the CA, and of the client's certificate and its key",
            ca_file=str(tls.ca_file),
            cert_file=str(tls.cert_file),
            key_file=str(tls.key_file),
            reason=str(error),
        ) from None


@lru_cache(maxsize=CONTEXTS_MAX)
def _context(tls: Tls, stamps: tuple[int, ...]) -> ssl.SSLContext:
    del stamps
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    if not tls.verify:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    elif tls.ca_file:
        # So that the file may hold the broker's own certificate.
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        context.load_verify_locations(tls.ca_file)
    else:
        context.load_default_certs()
    if tls.cert_file:
        # Without a password, OpenSSL would ask for one on the terminal.
        context.load_cert_chain(tls.cert_file, tls.key_file, password="")
    return context


def tls_failed(address: str, message: str, error: Exception) -> RequestRefused:
    """Return the error for a connection that cannot be secured."""
    return RequestRefused("tls_failed", message, address=address, cause=str(error))
