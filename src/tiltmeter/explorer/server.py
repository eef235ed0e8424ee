"""The local server: one page, one endpoint (`rank`), and thumbnails if images are shown."""

from __future__ import annotations

import json
import socket
import sys
import time
from collections.abc import Callable
from functools import partial
from importlib import resources
from typing import Any

import anyio
import anyio.to_thread
import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import BaseRoute, Mount, Route, Router

from tiltmeter.errors import InputError, TiltmeterError
from tiltmeter.explorer.connections import connection_class
from tiltmeter.explorer.gather import ExplorerData
from tiltmeter.explorer.queries import LONGEST, QueryRunner
from tiltmeter.explorer.ranking import answer
from tiltmeter.explorer.request_guard import Guard, new_token
from tiltmeter.explorer.thumbnails import Thumbnails
from tiltmeter.pages.plots import drawing

HOST = "127.0.0.1"
MAX_BODY = 2**15  # bytes of a request
MAX_DRAINED = 2**23  # bytes of a too large request, read before it is refused
MAX_PARALLEL = 2  # requests processed in parallel
MOST_SHOWN = 1000  # the largest k
STOPS = (5, 10, 15, 20, 25, 30, 40, 50, 60, 75, 100, 150, 200, 250, 300, 400, 500, 600, 800, 1000)


def application(data: ExplorerData, *, token: str, port: int) -> Guard:
    """The web application for the data, protected by the token."""
    runner = QueryRunner(data)
    thumbnails = None if data.images is None else Thumbnails(data.images)
    limiter: list[anyio.CapacityLimiter] = []  # created in its event loop
    page = html(data)

    async def in_thread(work: Callable[[], Any]) -> Any:
        if not limiter:
            limiter.append(anyio.CapacityLimiter(MAX_PARALLEL))
        return await anyio.to_thread.run_sync(work, limiter=limiter[0])

    async def index(request: Request) -> Response:
        return HTMLResponse(page)

    async def style(request: Request) -> Response:
        return Response(css(), media_type="text/css")

    async def script(request: Request) -> Response:
        return Response(_file("page.js"), media_type="text/javascript")

    async def rank(request: Request) -> Response:
        started = time.perf_counter()
        question = await _question(request)
        result = await in_thread(partial(runner.ask, **question))
        model, by = data.models[question["model"]], question.get("by", next(iter(data.groups)))
        response = {**result.as_dict(), "model": model.name, "neutral": None}
        if model.neutral is not None:
            response["neutral"] = model.neutral.compare(result, data.groups[by], data.convention)
        response["top"] = [
            {"row": int(row), "id": data.ids[row], "group": int(code), "score": float(score)}
            for row, code, score in zip(result.rows, result.codes, result.scores, strict=True)
        ]
        response["milliseconds"] = round(1000 * (time.perf_counter() - started), 1)
        return JSONResponse(response)

    async def image(request: Request) -> Response:
        if thumbnails is None:
            raise HTTPException(404, "images are not shown: start with --show-images")
        thumbnail = await in_thread(partial(thumbnails.get, int(request.path_params["row"])))
        if thumbnail is None:
            raise HTTPException(404, "no such image")
        return Response(thumbnail[0], media_type=thumbnail[1])

    async def refused(request: Request, error: Exception) -> Response:
        if isinstance(error, HTTPException):
            return JSONResponse({"error": error.detail}, error.status_code)
        return JSONResponse({"error": str(error)}, 400)

    routes: list[BaseRoute] = [
        Route("/", index),
        Route("/page.css", style),
        Route("/page.js", script),
        Route("/rank", rank, methods=["POST"]),
        Route("/image/{row:int}", image),
    ]
    app = Starlette(
        routes=[Mount(f"/{token}", app=Router(routes, redirect_slashes=False))],
        exception_handlers={TiltmeterError: refused, HTTPException: refused},
    )
    app.router.redirect_slashes = False
    return Guard(app, token=token, hosts=(f"{HOST}:{port}", f"localhost:{port}"))


async def _question(request: Request) -> dict[str, Any]:
    """Parse a request: `text`, and optionally `model`, `by` and `k`; raises if invalid."""
    body, size = bytearray(), 0
    async for part in request.stream():
        size += len(part)
        if size <= MAX_BODY:
            body += part
        elif size > MAX_DRAINED:
            break
    if size > MAX_BODY:
        raise HTTPException(413, f"request too large: a prompt has at most {LONGEST:,} characters")
    try:
        question = json.loads(bytes(body))
    except (ValueError, RecursionError):
        raise InputError("the request is not JSON") from None
    kinds = {"text": str, "model": int, "by": str, "k": int}
    if not isinstance(question, dict) or not {"text"} <= set(question) <= set(kinds):
        raise InputError("expected text, and optionally model, by (an attribute) and k")
    for name, value in question.items():
        if type(value) is not kinds[name]:  # bool is not accepted as int
            raise InputError(f"{name} must be a {'string' if kinds[name] is str else 'number'}")
    if question.get("k", 1) > MOST_SHOWN:
        raise InputError(f"at most {MOST_SHOWN:,} images are shown; got k = {question['k']:,}")
    return {"model": 0, **question}


def html(data: ExplorerData) -> str:
    """The initial page."""
    from jinja2 import Environment

    environment = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    largest_k = min(MOST_SHOWN, len(data))
    attributes = [name for name in data.groups if "*" not in name]
    return environment.from_string(_file("page.html.j2")).render(
        scene=data,
        count=len(data),
        attributes=attributes,
        intersections=[name for name in data.groups if name not in attributes],
        stops=[stop for stop in STOPS if stop < largest_k] + [largest_k],
        longest=LONGEST,
        with_images=data.images is not None,
        words=sum(map(len, data.words.values())),
    )


def css() -> str:
    """Colours of the report, and the page's style sheet."""
    return str(drawing.variables()) + _file("page.css")  # plain text: Markup would escape quotes


def _file(name: str) -> str:
    return (resources.files("tiltmeter.explorer") / name).read_text(encoding="utf-8")


def bind_port(port: int | None) -> socket.socket:
    """A socket on localhost; the system chooses the port if none is given."""
    sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind((HOST, port or 0))
    except OSError as error:
        sock.close()
        raise InputError(
            f"port {port} is not available ({error.strerror}): pass another --port, or none"
        ) from None
    return sock


class Server(uvicorn.Server):
    """A server that reports when it is ready."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self.ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.ready()


def server_config(app: Guard) -> uvicorn.Config:
    """Configuration of the server: no logs, and limits."""
    return uvicorn.Config(
        app,
        log_level="critical",  # the address contains the token, so it is not logged
        access_log=False,
        server_header=False,
        proxy_headers=False,
        lifespan="off",
        ws="none",
        http=connection_class(app),
        timeout_graceful_shutdown=2,
    )


def serve(data: ExplorerData, *, port: int | None = None, ready: Callable[[str], None]) -> None:
    """Serve the explorer until it is stopped; `ready` is called with the address."""
    limit_threads()
    sock = bind_port(port)
    token, number = new_token(), sock.getsockname()[1]
    warm(data)
    config = server_config(application(data, token=token, port=number))
    Server(config, partial(ready, f"http://{HOST}:{number}/{token}/")).run(sockets=[sock])


def limit_threads() -> None:
    """Use one torch thread: for single prompts, more were up to ten times slower under load.

    Measured by benchmarks/explore.py.
    """
    torch: Any = sys.modules.get("torch")  # not imported unless a model needs it
    if torch is not None:
        torch.set_num_threads(1)


def warm(data: ExplorerData) -> None:
    """Compile numba functions before the first request."""
    scores = data.models[0].vectors[:, 0].copy()
    for groups in data.groups.values():
        answer(scores, groups, k=min(100, len(data)), convention=data.convention)
