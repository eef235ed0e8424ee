"""A folder behind the S3 protocol, as far as reading goes: what an object store answers on HTTP.

The client is the real one, Arrow's: ListObjectsV2, HeadObject and GetObject with ranges, by path.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

from tiltmeter.io import filesystems as sources

DATE = "Sun, 15 Nov 2026 00:00:00 GMT"


class _Answers(BaseHTTPRequestHandler):
    root: Path  # its folders are the buckets
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def do_HEAD(self) -> None:
        self._answer(body=False)

    def do_GET(self) -> None:
        self._answer(body=True)

    def _answer(self, *, body: bool) -> None:
        url = urlsplit(self.path)
        bucket, _, key = unquote(url.path).strip("/").partition("/")
        asked = {name: values[0] for name, values in parse_qs(url.query).items()}
        file = self.root / bucket / key
        if not key and (self.root / bucket).is_dir():
            self._send(200, self._listed(bucket, asked) if body else b"", body)
        elif file.is_file():
            self._send_file(file, body)
        else:
            self._send(404, b"<Error><Code>NoSuchKey</Code></Error>", body)

    def _listed(self, bucket: str, asked: dict[str, str]) -> bytes:
        prefix, delimiter = asked.get("prefix", ""), asked.get("delimiter", "")
        keys, folders = [], set()
        for path in sorted((self.root / bucket).rglob("*")):
            key = path.relative_to(self.root / bucket).as_posix()
            if not path.is_file() or not key.startswith(prefix):
                continue
            head, cut, _ = key[len(prefix) :].partition(delimiter) if delimiter else (key, "", "")
            if cut:
                folders.add(prefix + head + delimiter)
            else:
                keys.append((key, path.stat().st_size))
        inside = "".join(
            f"<Contents><Key>{escape(key)}</Key><Size>{size}</Size>"
            "<LastModified>2026-11-15T00:00:00.000Z</LastModified></Contents>"
            for key, size in keys
        ) + "".join(
            f"<CommonPrefixes><Prefix>{escape(one)}</Prefix></CommonPrefixes>"
            for one in sorted(folders)
        )
        return (
            '<?xml version="1.0"?><ListBucketResult>'
            f"<Name>{bucket}</Name><KeyCount>{len(keys) + len(folders)}</KeyCount>"
            f"<IsTruncated>false</IsTruncated>{inside}</ListBucketResult>"
        ).encode()

    def _send_file(self, file: Path, body: bool) -> None:
        data = file.read_bytes()
        first, last, total = 0, len(data) - 1, len(data)
        given = self.headers.get("Range", "")
        if given:
            start, _, end = given.removeprefix("bytes=").partition("-")
            first, last = int(start), min(int(end or last), last)
        told = {"Content-Range": f"bytes {first}-{last}/{total}"} if given else {}
        self._send(206 if given else 200, data[first : last + 1], body, told)

    def _send(self, code: int, data: bytes, body: bool, told: dict[str, str] | None = None) -> None:
        self.send_response(code)
        heads = {"Content-Length": str(len(data)), "Last-Modified": DATE, "ETag": '"x"'}
        for name, value in {**heads, **(told or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if body:
            self.wfile.write(data)

    def log_message(self, *_: Any) -> None:
        pass


@contextmanager
def served(root: Path) -> Iterator[dict[str, str]]:
    """Serves the folders under `root` as buckets; yields what the environment must hold."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Answers", (_Answers,), {"root": root}))
    Thread(target=server.serve_forever, daemon=True).start()
    sources._system.cache_clear()  # clients of a server before this one
    try:
        yield environment(server.server_address[1])
    finally:
        server.shutdown()
        server.server_close()


def environment(port: int) -> dict[str, str]:
    """Where Arrow's client looks for S3, and as whom it asks."""
    return {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}",
        "AWS_ACCESS_KEY_ID": "reader",
        "AWS_SECRET_ACCESS_KEY": "reader",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
