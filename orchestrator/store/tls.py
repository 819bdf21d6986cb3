"""Checks the files that TLS needs, and explains why a server and this program do not accept each other.

The messages name settings, never text of a URL or of a file.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING, Final

from orchestrator.core.bounded_files import CERTIFICATES_BYTES, read_bounded
from orchestrator.core.errors import ConfigError
from orchestrator.core.redis_url import TLS_CA, TLS_CERT, TLS_KEY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from orchestrator.core.redis_url import RedisUrl

_ALERTS: Final = {
    "CERTIFICATE_REQUIRED": "Redis asks programs for a certificate; set redis.tls_cert and redis.tls_key",
    "UNKNOWN_CA": "Redis does not know who signed the certificate in redis.tls_cert",
    "BAD_CERTIFICATE": "Redis refuses the certificate in redis.tls_cert",
    "UNSUPPORTED_CERTIFICATE": "Redis refuses the certificate in redis.tls_cert",
    "CERTIFICATE_EXPIRED": "the certificate in redis.tls_cert has expired",
    "WRONG_VERSION_NUMBER": "the server speaks no TLS at this port; write redis:// in redis.url, or name its TLS port",
    "RECORD_LAYER_FAILURE": "the server speaks no TLS at this port; write redis:// in redis.url, or name its TLS port",
}
"""By a part of the reason that OpenSSL gives."""
_REASON: Final = re.compile("|".join(_ALERTS))


def check_files(place: RedisUrl) -> None:
    """Check that the files which connections will read are there and of the right kind.

    Raises:
        ConfigError: one is not; the message names the setting and the file.
    """
    import ssl  # loaded late: a command that uses no TLS does without

    files = dict(place.options)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if (path := files.get(TLS_CA)) is not None:
        _load("redis.tls_ca", path, lambda: context.load_verify_locations(path))
    if (path := files.get(TLS_CERT)) is not None:
        key, password = files.get(TLS_KEY), files.get("ssl_password", "")
        if key is not None:
            _load("redis.tls_key", key, lambda: None)
        _load("redis.tls_cert and redis.tls_key", path, lambda: context.load_cert_chain(path, key, password))
    elif TLS_KEY in files:
        raise ConfigError("redis.tls_key needs redis.tls_cert, the certificate that belongs to the key")


def _load(setting: str, path: str, load: Callable[[], object]) -> None:
    import ssl

    try:
        read_bounded(Path(path), CERTIFICATES_BYTES)
        load()
    except ssl.SSLError as wrong:
        what = "the certificate and the key do not belong together" if "MISMATCH" in str(wrong) else "not in PEM"
        raise ConfigError(f"{setting}: {path}: {what}") from wrong
    except OSError as wrong:
        raise ConfigError(f"{setting}: {path}: {wrong.strerror or wrong}") from wrong


def explain_refusal(error: BaseException) -> str:
    """Return why TLS failed for good, as a sentence; empty if something else failed."""
    import ssl

    for one in _causes(error):
        if isinstance(one, ssl.SSLCertVerificationError):
            return (
                f"the certificate of Redis is not accepted ({one.verify_message.rstrip('.')}); "
                "check redis.tls_ca and the host in redis.url"
            )
        if isinstance(one, ssl.SSLError) and (alert := _REASON.search(str(one))):
            return _ALERTS[alert[0]]
    return ""


def ended_early(error: BaseException, *, over_tls: bool) -> bool:
    """Return whether the server ended a TLS connection. A refusal that it sent before may be lost in that."""
    import ssl

    ends: tuple[type[OSError], ...] = (ssl.SSLEOFError, ssl.SSLZeroReturnError)
    if over_tls:
        ends += (ConnectionResetError, BrokenPipeError)
    return any(isinstance(one, ends) for one in _causes(error))


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Yield an exception and those that led to it; redis-py raises its own in place of those of the connection."""
    seen: set[int] = set()
    one: BaseException | None = error
    while one is not None and id(one) not in seen:
        seen.add(id(one))
        yield one
        one = one.__cause__ or one.__context__
