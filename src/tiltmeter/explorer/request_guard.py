"""Access control of the local server: only this machine, this host name and this token.

A page on 127.0.0.1 can be reached by every web page in the same browser, and by every other user of
the machine. Other web pages are refused by the Host header (which prevents DNS rebinding) and by
Sec-Fetch-Site; everybody else by a token that cannot be guessed.
"""

from __future__ import annotations

import json
import secrets
import sys
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

#: Scripts, styles and images only from this server, none inline.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = (
    ("content-security-policy", POLICY),
    ("x-content-type-options", "nosniff"),
    ("x-frame-options", "DENY"),
    ("referrer-policy", "no-referrer"),  # the address contains the token
    ("cross-origin-opener-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),
    ("cache-control", "no-store"),
)
OWN = ("same-origin", "none")  # values of Sec-Fetch-Site: from this page, or typed by the user
LONGEST_PATH = 4096


def new_token() -> str:
    """A random token of 192 bits for one start of the server."""
    return secrets.token_urlsafe(24)


class Guard:
    """An ASGI application that checks requests, and adds HEADERS to every response."""

    def __init__(self, app: App, *, token: str, hosts: Iterable[str]) -> None:
        self.app = app
        self.token = token
        self.hosts = frozenset(hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        started = False

        async def guarded(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                own_headers = [(name.encode(), value.encode()) for name, value in HEADERS]
                names = {name for name, _ in own_headers}
                other_headers = [
                    header
                    for header in message.get("headers", [])
                    if header[0].lower() not in names
                ]
                message = {**message, "headers": [*other_headers, *own_headers]}
            await send(message)

        refusal = self.refusal(scope)
        if refusal is not None:
            await refuse(guarded, *refusal)
            return
        try:
            await self.app(scope, receive, guarded)
        except Exception as error:  # no stack trace is sent to the client
            print(f"error: {type(error).__name__}: {error}", file=sys.stderr)
            if not started:
                await refuse(guarded, 500, "internal error; see the terminal")

    def refusal(self, scope: Scope) -> tuple[int, str] | None:
        """Status and reason of a refusal, or None if the request is allowed."""
        headers = [(name.lower(), value) for name, value in scope["headers"]]
        hosts = [value.decode("latin-1").lower() for name, value in headers if name == b"host"]
        if len(hosts) != 1 or hosts[0] not in self.hosts:
            return 403, "this page is available at 127.0.0.1 and localhost only"
        by_name = {name: value.decode("latin-1") for name, value in headers}
        followed = scope["method"] == "GET" and by_name.get(b"sec-fetch-dest") == "document"
        if by_name.get(b"sec-fetch-site", "none") not in OWN and not followed:
            return 403, "requests from other pages are refused"  # but links to it are allowed
        path = scope["path"]
        if len(path) > LONGEST_PATH or len(scope.get("query_string", b"")) > 16 * LONGEST_PATH:
            return 414, "the address is too long"
        token = path.split("/", 2)[1] if path.startswith("/") else ""
        if not secrets.compare_digest(token.encode(errors="replace"), self.token.encode()):
            return 403, "the address has no valid token: use the address shown in the terminal"
        return None


async def refuse(send: Send, status: int, reason: str) -> None:
    """Send an error response with the reason."""
    body = json.dumps({"error": reason}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
