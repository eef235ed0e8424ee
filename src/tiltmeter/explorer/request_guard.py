"""Who may ask: only this machine, only under this name, only with the token of this start.

A page on 127.0.0.1 can be reached by every web page that the same browser shows, and by every other
user of the machine. So a stranger's page is kept out by the Host header (a name that was rebound to
127.0.0.1 is not ours) and by Sec-Fetch-Site; everybody else by a token that cannot be guessed.
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

#: Scripts, styles and images from here and nowhere else, none of them inline.
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = (
    ("content-security-policy", POLICY),
    ("x-content-type-options", "nosniff"),
    ("x-frame-options", "DENY"),
    ("referrer-policy", "no-referrer"),  # the token stands in the address
    ("cross-origin-opener-policy", "same-origin"),
    ("cross-origin-resource-policy", "same-origin"),
    ("cache-control", "no-store"),
)
OWN = ("same-origin", "none")  # of Sec-Fetch-Site: from this page, or typed by the user
LONGEST_PATH = 4096


def new_token() -> str:
    """A name for one start of the server that nobody guesses: 192 random bits."""
    return secrets.token_urlsafe(24)


class Guard:
    """An application that answers those who may ask; every answer carries HEADERS."""

    def __init__(self, app: App, *, token: str, hosts: Iterable[str]) -> None:
        self.app = app
        self.token = token
        self.hosts = frozenset(hosts)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        begun = False

        async def guarded(message: Message) -> None:
            nonlocal begun
            if message["type"] == "http.response.start":
                begun = True
                ours = [(name.encode(), value.encode()) for name, value in HEADERS]
                names = {name for name, _ in ours}
                theirs = [one for one in message.get("headers", []) if one[0].lower() not in names]
                message = {**message, "headers": [*theirs, *ours]}
            await send(message)

        refusal = self.refusal(scope)
        if refusal is not None:
            await refuse(guarded, *refusal)
            return
        try:
            await self.app(scope, receive, guarded)
        except Exception as error:  # whatever it is, no stack trace leaves this machine
            print(f"error: {type(error).__name__}: {error}", file=sys.stderr)
            if not begun:
                await refuse(guarded, 500, "something went wrong here; the terminal says what")

    def refusal(self, scope: Scope) -> tuple[int, str] | None:
        """Status and reason, or None where the request may pass."""
        headers = [(name.lower(), value) for name, value in scope["headers"]]
        hosts = [value.decode("latin-1").lower() for name, value in headers if name == b"host"]
        if len(hosts) != 1 or hosts[0] not in self.hosts:
            return 403, "this page answers to 127.0.0.1 and localhost only"
        told = {name: value.decode("latin-1") for name, value in headers}
        followed = scope["method"] == "GET" and told.get(b"sec-fetch-dest") == "document"
        if told.get(b"sec-fetch-site", "none") not in OWN and not followed:
            return 403, "this page answers to itself only"  # a link to it may lead from anywhere
        path = scope["path"]
        if len(path) > LONGEST_PATH or len(scope.get("query_string", b"")) > 16 * LONGEST_PATH:
            return 414, "the address is too long"
        given = path.split("/", 2)[1] if path.startswith("/") else ""
        if not secrets.compare_digest(given.encode(errors="replace"), self.token.encode()):
            return 403, "the address lacks the token: take the one that the terminal shows"
        return None


async def refuse(send: Send, status: int, reason: str) -> None:
    """An answer that says why there is none."""
    body = json.dumps({"error": reason}).encode()
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
