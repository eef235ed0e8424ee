"""Connections to the explorer: those without the token are few and short.

A client that opens connections and sends nothing, or one byte at a time, cannot keep the owner out:
a connection must send a request with the token within a few seconds, and where too many wait, the
oldest of them is closed. Connections that sent the token are not limited.
"""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol

from tiltmeter.explorer.request_guard import Guard

HEADER_SECONDS = 10.0  # for the first request with the token
MAX_STRANGERS = 128  # connections that have not sent the token


def connection_class(guard: Guard) -> type[H11Protocol]:
    """The protocol of a server that answers requests which `guard` does not refuse."""
    strangers: dict[Connection, None] = {}  # oldest first

    class Connection(H11Protocol):
        known = False
        timer: asyncio.TimerHandle

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            strangers[self] = None
            self.timer = self.loop.call_later(HEADER_SECONDS, self.close)
            if len(strangers) > MAX_STRANGERS:
                next(iter(strangers)).close()

        def connection_lost(self, exc: Exception | None) -> None:
            self.settle()
            super().connection_lost(exc)

        def handle_events(self) -> None:
            super().handle_events()
            if (
                not self.known
                and self.scope is not None
                and guard.refusal(dict(self.scope)) is None
            ):
                self.known = True
                self.settle()

        def settle(self) -> None:
            strangers.pop(self, None)
            self.timer.cancel()

        def close(self) -> None:
            self.settle()
            self.transport.abort()

    return Connection
