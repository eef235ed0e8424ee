"""The local server: one page, one question (`rank`), and small images where they are allowed."""

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
from tiltmeter.explorer.data import ExplorerData
from tiltmeter.explorer.queries import LONGEST, QueryRunner
from tiltmeter.explorer.ranking import answer
from tiltmeter.explorer.request_guard import Guard, new_token
from tiltmeter.explorer.thumbnails import Thumbnails
from tiltmeter.pages.plots import drawing

HOST = "127.0.0.1"
LARGEST = 2**15  # bytes of a question
DRAINED = 2**23  # bytes of a question that is too large, read and thrown away before it is refused
AT_ONCE = 2  # questions worked on side by side
WAITING = 256  # connections; more are told to come back
MOST_SHOWN = 1000  # images of a gallery: the largest k
STOPS = (5, 10, 15, 20, 25, 30, 40, 50, 60, 75, 100, 150, 200, 250, 300, 400, 500, 600, 800, 1000)


def application(scene: ExplorerData, *, token: str, port: int) -> Guard:
    """The page on a scene, for those who know the token."""
    asker = QueryRunner(scene)
    pictures = None if scene.images is None else Thumbnails(scene.images)
    limiter: list[anyio.CapacityLimiter] = []  # made in the loop that it belongs to
    page = html(scene)

    async def in_thread(work: Callable[[], Any]) -> Any:
        if not limiter:
            limiter.append(anyio.CapacityLimiter(AT_ONCE))
        return await anyio.to_thread.run_sync(work, limiter=limiter[0])

    async def index(request: Request) -> Response:
        return HTMLResponse(page)

    async def style(request: Request) -> Response:
        return Response(css(), media_type="text/css")

    async def script(request: Request) -> Response:
        return Response(_file("page.js"), media_type="text/javascript")

    async def rank(request: Request) -> Response:
        started = time.perf_counter()
        asked = await _question(request)
        found = await in_thread(partial(asker.ask, **asked))
        tower, by = scene.towers[asked["model"]], asked.get("by", next(iter(scene.groups)))
        told = {**found.as_dict(), "model": tower.name, "neutral": None}
        if tower.neutral is not None:
            told["neutral"] = tower.neutral.beside(found, scene.groups[by], scene.convention)
        told["top"] = [
            {"row": int(row), "id": scene.ids[row], "group": int(code), "score": float(score)}
            for row, code, score in zip(found.rows, found.codes, found.scores, strict=True)
        ]
        told["milliseconds"] = round(1000 * (time.perf_counter() - started), 1)
        return JSONResponse(told)

    async def image(request: Request) -> Response:
        if pictures is None:
            raise HTTPException(404, "pictures are not shown: start with --show-images")
        found = await in_thread(partial(pictures.get, int(request.path_params["row"])))
        if found is None:
            raise HTTPException(404, "there is no such picture")
        return Response(found[0], media_type=found[1])

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
    """What is asked: `text`, and if one wishes `model`, `by`, `k`; refused where it is not that."""
    body, size = bytearray(), 0
    async for part in request.stream():
        size += len(part)
        if size <= LARGEST:
            body += part
        elif size > DRAINED:
            break
    if size > LARGEST:
        raise HTTPException(413, f"too much: a prompt has at most {LONGEST:,} characters")
    try:
        asked = json.loads(bytes(body))
    except (ValueError, RecursionError):
        raise InputError("the question is not JSON") from None
    kinds = {"text": str, "model": int, "by": str, "k": int}
    if not isinstance(asked, dict) or not {"text"} <= set(asked) <= set(kinds):
        raise InputError("a question has a text, and may have a model, an attribute (by) and k")
    for name, value in asked.items():
        if type(value) is not kinds[name]:  # true is no number here
            raise InputError(f"{name} must be a {'text' if kinds[name] is str else 'whole number'}")
    if asked.get("k", 1) > MOST_SHOWN:
        raise InputError(f"at most {MOST_SHOWN:,} images are shown; got k = {asked['k']:,}")
    return {"model": 0, **asked}


def html(scene: ExplorerData) -> str:
    """The page before anything is asked."""
    from jinja2 import Environment

    made = Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    most = min(MOST_SHOWN, len(scene))
    singles = [name for name in scene.groups if "*" not in name]
    return made.from_string(_file("page.html.j2")).render(
        scene=scene,
        count=len(scene),
        attributes=singles,
        crossings=[name for name in scene.groups if name not in singles],
        stops=[stop for stop in STOPS if stop < most] + [most],
        longest=LONGEST,
        pictures=scene.images is not None,
        words=sum(map(len, scene.words.values())),
    )


def css() -> str:
    """The colours of the report, and the page's own style."""
    return str(drawing.variables()) + _file("page.css")  # plain text: Markup would escape quotes


def _file(name: str) -> str:
    return (resources.files("tiltmeter.explorer") / name).read_text(encoding="utf-8")


def bound(port: int | None) -> socket.socket:
    """A socket on this machine alone; the system chooses the port where none is given."""
    taken = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        taken.bind((HOST, port or 0))
    except OSError as error:
        taken.close()
        raise InputError(
            f"port {port} cannot be had ({error.strerror}): name another --port, or none"
        ) from None
    return taken


class Server(uvicorn.Server):
    """A server that says when it can be asked."""

    def __init__(self, config: uvicorn.Config, ready: Callable[[], None]) -> None:
        super().__init__(config)
        self.ready = ready

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        self.ready()


def configured(app: Guard) -> uvicorn.Config:
    """How the server runs: quietly, and with a limit to everything."""
    return uvicorn.Config(
        app,
        log_level="critical",  # the address holds the token: it is not logged
        access_log=False,
        server_header=False,
        proxy_headers=False,
        lifespan="off",
        ws="none",
        http="h11",
        limit_concurrency=WAITING,
        timeout_graceful_shutdown=2,
    )


def serve(scene: ExplorerData, *, port: int | None = None, ready: Callable[[str], None]) -> None:
    """Serves until it is stopped; `ready` is told the address once it can be opened."""
    one_thread_each()
    taken = bound(port)
    token, number = new_token(), taken.getsockname()[1]
    warm(scene)
    config = configured(application(scene, token=token, port=number))
    Server(config, partial(ready, f"http://{HOST}:{number}/{token}/")).run(sockets=[taken])


def one_thread_each() -> None:
    """One prompt is too small to share out: with two questions at once, or with anything else on
    the cores, threads that wait for each other took ten times as long (benchmarks/explore.py).
    """
    torch: Any = sys.modules.get("torch")  # where no model needs it, it is not there
    if torch is not None:
        torch.set_num_threads(1)


def warm(scene: ExplorerData) -> None:
    """Compiles what the first question would wait for."""
    scores = scene.towers[0].vectors[:, 0].copy()
    for groups in scene.groups.values():
        answer(scores, groups, k=min(100, len(scene)), convention=scene.convention)
