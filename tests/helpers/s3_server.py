"""An HTTP server with the five requests of S3 that a payload store sends, in path style."""

from __future__ import annotations

import re
import threading
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import md5
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

if TYPE_CHECKING:
    from collections.abc import Iterator

_PAGE = 2
"""Objects per page of a list, so that a list of three needs two requests."""


@dataclass
class S3Server:
    """A running server.

    Attributes:
        buckets: objects by bucket and key.
        requests: method and path of each request.
        key_id: access key that requests must name.
        refuses: answers every request with 403.
    """

    url: str = ""
    buckets: dict[str, dict[str, bytes]] = field(default_factory=dict)
    requests: list[tuple[str, str]] = field(default_factory=list)
    key_id: str = "key-of-the-test"
    refuses: bool = False
    modified: datetime = field(default_factory=lambda: datetime.now(UTC))


@contextmanager
def run_s3_server(*buckets: str) -> Iterator[S3Server]:
    """Run a server with these buckets."""
    server = S3Server(buckets={bucket: {} for bucket in buckets})

    class Handler(_Handler):
        state = server

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as http:
        server.url = f"http://127.0.0.1:{http.server_port}"
        thread = threading.Thread(target=http.serve_forever, kwargs={"poll_interval": 0.02})
        thread.start()
        try:
            yield server
        finally:
            http.shutdown()
            thread.join()


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    state: S3Server

    def log_message(self, format: str, *args: Any) -> None:  # noqa: A002 - its name in the standard library
        """Print nothing."""

    def _objects(self) -> tuple[dict[str, bytes] | None, str, bytes]:
        url = urlsplit(self.path)
        self.state.requests.append((self.command, self.path))
        body = self.rfile.read(int(self.headers.get("content-length", 0)))
        bucket, _, key = unquote(url.path).lstrip("/").partition("/")
        if self.state.refuses or f"Credential={self.state.key_id}/" not in self.headers.get("authorization", ""):
            self._error(403, "AccessDenied")
            return None, "", b""
        if bucket not in self.state.buckets:
            self._error(404, "NoSuchBucket")
            return None, "", b""
        return self.state.buckets[bucket], key, body

    def do_PUT(self) -> None:
        """Store an object."""
        objects, key, body = self._objects()
        if objects is not None:
            objects[key] = body
            self._reply(200, b"", ETag=_etag(body))

    def do_GET(self) -> None:
        """Return an object, a part of one, or a page of a list."""
        objects, key, _ = self._objects()
        if objects is None:
            return
        if not key:
            self._list(objects)
        elif key not in objects:
            self._error(404, "NoSuchKey")
        elif part := re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("range", "")):
            first, last = int(part[1]), int(part[2])
            data, whole = objects[key][first : last + 1], len(objects[key])
            self._reply(206, data, ETag=_etag(data), Content_Range=f"bytes {first}-{first + len(data) - 1}/{whole}")
        else:
            self._reply(200, objects[key], ETag=_etag(objects[key]))

    def do_POST(self) -> None:
        """Delete several objects."""
        objects, _, body = self._objects()
        if objects is not None:
            keys = re.findall(r"<Key>(.*?)</Key>", body.decode())
            for key in keys:
                objects.pop(key, None)
            deleted = "".join(f"<Deleted><Key>{escape(key)}</Key></Deleted>" for key in keys)
            self._reply(200, f"<DeleteResult>{deleted}</DeleteResult>".encode())

    def _list(self, objects: dict[str, bytes]) -> None:
        query = {name: values[0] for name, values in parse_qs(urlsplit(self.path).query).items()}
        prefix, after = query.get("prefix", ""), query.get("continuation-token", "")
        names = [name for name in sorted(objects) if name.startswith(prefix) and name > after]
        page, more = names[:_PAGE], len(names) > _PAGE
        rows = "".join(
            f"<Contents><Key>{escape(name)}</Key><LastModified>{self.state.modified:%Y-%m-%dT%H:%M:%S.000Z}"
            f"</LastModified><Size>{len(objects[name])}</Size><ETag>{_etag(objects[name])}</ETag></Contents>"
            for name in page
        )
        token = f"<NextContinuationToken>{escape(page[-1])}</NextContinuationToken>" if more else ""
        text = f"<ListBucketResult><IsTruncated>{str(more).lower()}</IsTruncated>{token}{rows}</ListBucketResult>"
        self._reply(200, text.encode())

    def _error(self, status: int, code: str) -> None:
        self._reply(status, f"<Error><Code>{code}</Code><Message>{code}</Message></Error>".encode())

    def _reply(self, status: int, body: bytes, **headers: str) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Last-Modified", f"{self.state.modified:%a, %d %b %Y %H:%M:%S GMT}")
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.end_headers()
        self.wfile.write(body)


def _etag(data: bytes) -> str:
    return f'"{md5(data).hexdigest()}"'
