"""The page as a browser meets it, and as somebody who means ill does."""

from __future__ import annotations

import asyncio
import contextlib
import io
import json
import re
import socket
import threading
import time
from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from scipy.stats import spearmanr

pytest.importorskip("starlette", reason="needs starlette: pip install 'tiltmeter[explore]'")
from starlette.testclient import TestClient

from tests.explorer.making import photographs, served
from tests.pages.report.making import HOSTILE, hostile_embeddings
from tiltmeter.errors import InputError
from tiltmeter.explorer import connections
from tiltmeter.explorer import queries as asking
from tiltmeter.explorer import server as serving
from tiltmeter.explorer.gather import ExplorerData, ExplorerModel, gather
from tiltmeter.explorer.request_guard import HEADERS, new_token
from tiltmeter.metrics.convention import get_convention
from tiltmeter.testbed.oracle import Oracle
from tiltmeter.testbed.world import World
from tiltmeter.types import Groups

TOKEN, PORT = "a-token", 8765
NURSE = "a photo of a nurse"


def client(scene: ExplorerData) -> TestClient:
    app = serving.application(scene, token=TOKEN, port=PORT)
    return TestClient(app, base_url=f"http://127.0.0.1:{PORT}", follow_redirects=False)


@pytest.fixture(scope="module")
def page(scene: ExplorerData) -> TestClient:
    return client(scene)


def ask(page: TestClient, **question: object):
    return page.post(f"/{TOKEN}/rank", json=question)


def tables_of_texts(texts: list[str], n: int = 60) -> ExplorerData:
    """A model that knows just these texts, on vectors that lean to the first group."""
    rng = np.random.default_rng(0)
    known = {text: rng.normal(size=(1, 8)) for text in texts}
    codes = np.arange(n) % 2
    vectors = rng.normal(size=(n, 8)).astype(np.float32)
    tower = ExplorerModel("table", lambda asked: known[asked[0]], vectors)
    groups = {"half": Groups(codes, (HOSTILE[0], HOSTILE[3]), "half")}
    ids = tuple(f"{HOSTILE[1]}/{row}" for row in range(n))
    return ExplorerData((tower,), ids, groups, "table", get_convention("tiltmeter"))


# --- what it is for -----------------------------------------------------------------------------


def test_a_prompt_is_answered_with_who_comes_up(page: TestClient, scene: ExplorerData) -> None:
    told = ask(page, text=NURSE, by="shape", k=50).json()
    vector = np.asarray(scene.models[0].encode_texts([NURSE]))[0]
    scores = scene.models[0].vectors @ vector
    order = np.argsort(-scores, kind="stable")[:50]
    assert [one["row"] for one in told["top"]] == order.tolist()
    assert [one["id"] for one in told["top"]] == [scene.ids[row] for row in order]
    codes = scene.groups["shape"].codes[order]
    assert [one["count"] for one in told["groups"]] == np.bincount(codes, minlength=2).tolist()
    assert told["n"] == 700
    assert told["neutral"]["words"] == 60
    assert 0 <= told["neutral"]["max_skew"]["as_far"] <= 60


def test_the_planted_tilt_is_seen_in_the_model_that_learned_it(page: TestClient) -> None:
    """The first model orders words as they lean; the second was trained where nothing leans."""
    words = ("nurse", "doctor", "homemaker", "pilot", "mechanic", "teacher", "lawyer", "chef")
    world = World.plant(1.0)
    planted = Oracle(world).pmi("shape")[[world.index(word) for word in words], 0]

    def agreement(model: int, name: str) -> float:
        found = [
            ask(page, text=f"a photo of a {word}", by="shape", k=100, model=model).json()
            for word in words
        ]
        assert {one["model"] for one in found} == {name}
        return float(spearmanr(planted, [one["groups"][0]["c_asc"] for one in found]).statistic)

    assert ask(page, text=NURSE, by="shape", k=100, model=0).json()["max_skew"]["p"] < 0.001
    assert agreement(0, "testbed:dual") > 0.9
    assert abs(agreement(1, "testbed:dual-fair")) < 0.7


def test_crossings_can_be_chosen(page: TestClient, scene: ExplorerData) -> None:
    told = ask(page, text=NURSE, by="shape*hue", k=70).json()
    assert [one["name"] for one in told["groups"]] == list(scene.groups["shape*hue"].names)
    assert sum(one["count"] for one in told["groups"]) == 70
    assert "shape × hue" in page.get(f"/{TOKEN}/").text


def test_the_same_prompt_is_encoded_once(scene: ExplorerData) -> None:
    asker, asked = asking.QueryRunner(scene), []
    tower = scene.models[0]

    def encode(texts: list[str]) -> np.ndarray:
        asked.extend(texts)
        return tower.encode_texts(texts)

    counted = ExplorerData(
        (ExplorerModel("t", encode, tower.vectors),), scene.ids, scene.groups, "t", scene.convention
    )
    asker = asking.QueryRunner(counted, remembered=2 * 4 * len(scene))
    for k in (10, 20, 30):
        asker.ask(NURSE, k=k)
        asker.ask(f"  {NURSE} ", by="hue", k=k)
    assert asked == [NURSE]
    asker.ask("a photo of a doctor")
    asker.ask("a photo of a pilot")  # two are remembered: the nurse is forgotten
    asker.ask(NURSE)
    assert asked == [NURSE, "a photo of a doctor", "a photo of a pilot", NURSE]


# --- who may ask --------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["", "/", "/wrong/", f"/{TOKEN}x/", f"/{TOKEN[:-1]}/rank", "/é/",
                                  "/page.js", f"//{TOKEN}/", "/../", "/%00/"])  # fmt: skip
def test_without_the_token_nothing(page: TestClient, path: str) -> None:
    for answer in (page.get(path), page.post(path, json={"text": NURSE})):
        assert answer.status_code == 403
        assert "token" in answer.json()["error"]


@pytest.mark.parametrize(
    "host",
    ["evil.example", f"evil.example:{PORT}", "127.0.0.1", "127.0.0.1:1", f"127.0.0.1:{PORT}.evil",
     f"[::1]:{PORT}", "", f"127.0.0.1:{PORT}@evil"],
)  # fmt: skip
def test_a_name_that_is_not_ours_is_refused(page: TestClient, host: str) -> None:
    """DNS rebinding: the name of a stranger's page, led to this machine."""
    answer = page.get(f"/{TOKEN}/", headers={"host": host})
    assert answer.status_code == 403
    assert "127.0.0.1" in answer.json()["error"]


def test_localhost_is_ours_too(page: TestClient) -> None:
    assert page.get(f"/{TOKEN}/", headers={"host": f"localhost:{PORT}"}).status_code == 200


@pytest.mark.parametrize("site", ["cross-site", "same-site", "anything"])
def test_another_page_cannot_ask_but_may_link(page: TestClient, site: str) -> None:
    told = {"sec-fetch-site": site, "sec-fetch-dest": "document"}
    assert page.get(f"/{TOKEN}/?a=x", headers=told).status_code == 200
    assert page.get("/wrong/", headers=told).status_code == 403
    for dest in ("empty", "image", "script", "iframe"):
        other = {"sec-fetch-site": site, "sec-fetch-dest": dest}
        assert page.get(f"/{TOKEN}/", headers=other).status_code == 403
    asked = page.post(f"/{TOKEN}/rank", json={"text": NURSE}, headers=told)
    assert asked.status_code == 403


@pytest.mark.parametrize(
    "path",
    ["../etc/passwd", "..%2f..%2fetc/passwd", "%2e%2e/%2e%2e/etc/passwd", "image/../../cli.py",
     "image/%2e%2e%2fserving.py", "image/..", "image//etc/passwd", "image/-1", "image/1.5",
     "image/700", "image/99999999999999999999", "page.html.j2", "serving.py", "rank/",
     "index.html"],
)  # fmt: skip
def test_no_path_leads_anywhere_else(page: TestClient, path: str) -> None:
    answer = page.request("GET", f"/{TOKEN}/{path}")
    # the client may fold `..` before it asks; the token is then gone, too
    assert answer.status_code in (404, 403)
    assert set(answer.json()) == {"error"}


def test_raw_dots_reach_the_server_and_find_nothing(scene: ExplorerData) -> None:
    """What no client folds: the bytes themselves, on a socket."""
    with served(scene) as address:
        port, token = re.search(r":(\d+)/([^/]+)/", address).groups()
        for path in (f"/{token}/../../etc/passwd", f"/{token}/image/../../../etc/passwd"):
            assert b" 404 " in raw(int(port), f"GET {path} HTTP/1.1", f"Host: 127.0.0.1:{port}")
        assert b" 403 " in raw(int(port), f"GET /{token}/ HTTP/1.1", "Host: evil.example")
        twice = raw(int(port), f"GET /{token}/ HTTP/1.1", f"Host: 127.0.0.1:{port}\r\nHost: evil")
        assert b" 40" in twice.split(b"\r\n")[0]
        assert b"Traceback" not in twice
        assert b" 400 " in raw(int(port), "nonsense", "Host: x")
        long = raw(int(port), f"GET /{token}/?a={'x' * 1_000_000} HTTP/1.1", "Host: x")
        assert b"Traceback" not in long
        assert long == b"" or b" 40" in long.split(b"\r\n")[0]


def raw(port: int, line: str, headers: str) -> bytes:
    with socket.create_connection(("127.0.0.1", port), timeout=10) as made:
        try:
            made.sendall(f"{line}\r\n{headers}\r\nConnection: close\r\n\r\n".encode())
            return b"".join(iter(lambda: made.recv(65536), b""))
        except (ConnectionResetError, BrokenPipeError):
            return b""


def test_every_answer_is_guarded(page: TestClient) -> None:
    for path in (
        "/wrong",
        f"/{TOKEN}/",
        f"/{TOKEN}/page.js",
        f"/{TOKEN}/nothing",
        f"/{TOKEN}/rank",
    ):
        headers = page.get(path).headers
        for name, value in HEADERS:
            assert headers.get_list(name) == [value]
    assert "'unsafe" not in dict(HEADERS)["content-security-policy"]
    assert page.get(f"/{TOKEN}/rank").status_code == 405


def test_tokens_cannot_be_guessed() -> None:
    made = {new_token() for _ in range(200)}
    assert len(made) == 200
    assert min(map(len, made)) >= 32


def test_only_this_machine_is_listened_to() -> None:
    with serving.bind_port(None) as taken:
        assert taken.getsockname()[0] == "127.0.0.1"
        taken.listen()
        with pytest.raises(InputError, match="another --port"):
            serving.bind_port(taken.getsockname()[1])


# --- what is asked ------------------------------------------------------------------------------


@pytest.mark.parametrize("text", ["", "   ", "\t\n  ", "\u3000"])
def test_a_prompt_of_nothing(page: TestClient, text: str) -> None:
    answer = ask(page, text=text)
    assert answer.status_code == 400
    assert answer.json()["error"] == "type a prompt: this one is empty"


def test_a_prompt_of_a_megabyte(page: TestClient) -> None:
    answer = ask(page, text="x" * 2**20)
    assert answer.status_code == 413
    assert "2,000 characters" in answer.json()["error"]
    assert ask(page, text="x" * 2001).json()["error"].endswith("this one has 2,001")


def test_a_megabyte_over_a_real_connection(scene: ExplorerData) -> None:
    httpx = pytest.importorskip("httpx2")
    with served(scene) as address:
        assert httpx.post(f"{address}rank", json={"text": "x" * 2**20}).status_code == 413
        assert httpx.post(f"{address}rank", json={"text": NURSE}).status_code == 200


@pytest.mark.parametrize(
    "body",
    [b"", b"{", b"[]", b"null", b'{"text": 3}', b'{"text": "a", "k": "9"}', b'{"k": 3}',
     b'{"text": "a", "k": true}', b'{"text": "a", "path": "/etc"}', b"\xff\xfe", b"[" * 30_000,
     b'{"text": "a", "k": 0}', b'{"text": "a", "k": -1}', b'{"text": "a", "k": 701}',
     b'{"text": "a", "k": 1e999}', b'{"text": "a", "model": 2}', b'{"text": "a", "model": -1}',
     b'{"text": "a", "by": "nothing"}', b'{"text": "\\ud800"}', b'{"text": "a", "k": 100000}'],
)  # fmt: skip
def test_questions_that_are_none(page: TestClient, body: bytes) -> None:
    answer = page.post(f"/{TOKEN}/rank", content=body)
    assert answer.status_code == 400
    assert list(answer.json()) == ["error"]
    assert "Traceback" not in answer.text


def test_a_word_that_the_model_does_not_know(page: TestClient) -> None:
    answer = ask(page, text="a photo of a zebra")
    assert answer.status_code == 400
    assert "vocabulary 'zebra'" in answer.json()["error"]


@pytest.mark.parametrize(
    "text",
    ["שלום עולם", "مرحبا", "👩🏽‍🚀", "<script>alert(1)</script>", "a\u202eb", "' OR 1=1 --",
     "{{7*7}}", "\x00"],
)  # fmt: skip
def test_any_text_is_text(text: str) -> None:
    page = client(tables_of_texts([text]))
    told = ask(page, text=text, k=10).json()
    assert [one["name"] for one in told["groups"]] == [HOSTILE[0], HOSTILE[3]]
    assert told["top"][0]["id"].startswith(HOSTILE[1])
    answer = page.post(f"/{TOKEN}/rank", json={"text": text, "k": 10})
    assert answer.headers["content-type"] == "application/json"


def test_a_model_that_breaks_leaves_no_trace(capsys: pytest.CaptureFixture[str]) -> None:
    scene = tables_of_texts(["fine"])

    def broken(texts: list[str]) -> None:
        raise RuntimeError("inner secret")

    page = client(
        ExplorerData(
            (ExplorerModel("t", broken, scene.models[0].vectors),),
            scene.ids,
            scene.groups,
            "t",
            scene.convention,
        )
    )
    answer = ask(page, text="fine", k=10)
    assert answer.status_code == 500
    assert answer.headers["x-frame-options"] == "DENY"
    assert "secret" not in answer.text
    assert "Traceback" not in answer.text
    said = capsys.readouterr().err
    assert said == "error: RuntimeError: inner secret\n"


def test_a_hundred_at_once(scene: ExplorerData) -> None:
    """All are answered, and no more than a few are worked on at a time."""
    httpx = pytest.importorskip("httpx2")
    working, most, lock = 0, 0, threading.Lock()
    inner = scene.models[0]
    texts = [prompt.text for prompts in scene.words.values() for prompt in prompts][:20]

    def encode(asked: list[str]) -> np.ndarray:
        nonlocal working, most
        with lock:
            working += 1
            most = max(most, working)
        found = inner.encode_texts(asked)
        with lock:
            working -= 1
        return found

    busy = ExplorerData((ExplorerModel("t", encode, inner.vectors),), scene.ids, scene.groups, "t",
                 scene.convention)  # fmt: skip
    threads = threading.active_count()

    async def all_of(address: str) -> list[int]:
        async with httpx.AsyncClient(timeout=60) as many:
            asked = [many.post(f"{address}rank", json={"text": texts[at % 20], "k": 50})
                     for at in range(100)]  # fmt: skip
            return [answer.status_code for answer in await asyncio.gather(*asked)]

    with served(busy) as address:
        assert asyncio.run(all_of(address)) == [200] * 100
        assert threading.active_count() <= threads + 2 + serving.MAX_PARALLEL
    assert most == 1  # a model is asked by one thread at a time


def test_slow_connections_do_not_keep_the_owner_out(scene: ExplorerData) -> None:
    """300 connections that send half a request, some with a wrong token, and 20 without a word."""
    with served(scene) as address:
        port, token = re.search(r":(\d+)/([^/]+)/", address).groups()
        slow = [socket.create_connection(("127.0.0.1", int(port))) for _ in range(320)]
        try:
            for at, made in enumerate(slow[:300]):
                line = "POST /wrong/rank HTTP/1.1\r\n" if at % 3 else "GET /x"
                with contextlib.suppress(OSError):  # the oldest are closed already
                    made.sendall(f"{line}Host: 127.0.0.1:{port}\r\nContent-Length: 9".encode())
            started = time.perf_counter()
            for _ in range(5):
                line = f"GET /{token}/page.css HTTP/1.1"
                assert b" 200 " in raw(int(port), line, f"Host: 127.0.0.1:{port}")
            print(f"5 answers in {time.perf_counter() - started:.3f} s")
        finally:
            for made in slow:
                made.close()


def test_a_connection_that_sends_nothing_is_closed(
    scene: ExplorerData, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections, "HEADER_SECONDS", 0.2)
    with served(scene) as address:
        port = int(re.search(r":(\d+)/", address).group(1))
        made = socket.create_connection(("127.0.0.1", port), timeout=10)
        with made, contextlib.suppress(ConnectionResetError):
            assert made.recv(1) == b""


# --- the page -----------------------------------------------------------------------------------


def test_nothing_is_inline_and_nothing_comes_from_elsewhere(page: TestClient) -> None:
    text = page.get(f"/{TOKEN}/").text
    assert re.findall(r"<script[^>]*>", text) == ['<script src="page.js" defer>']
    assert not re.search(r"<style|\sstyle=|\son\w+=|javascript:|https?://", text)
    for name in ("page.css", "page.js"):
        content = page.get(f"/{TOKEN}/{name}").text
        assert not re.search(r"https?://|@import|innerHTML|insertAdjacentHTML|eval\(", content)
        assert "&#" not in content
        assert "&gt;" not in content  # sent as it was written
    assert "perceived labels" in text


def test_words_of_the_taxonomy_can_be_clicked(page: TestClient) -> None:
    text = page.get(f"/{TOKEN}/").text
    assert text.count("data-text=") == 405
    assert 'data-text="a photo of an attractive person"' in text


def test_hostile_labels_words_and_names_are_text(tmp_path: Path) -> None:
    made = gather(None, [f"embeddings:{hostile_embeddings(tmp_path / HOSTILE[0][:8])}"])
    page = client(made)
    text = page.get(f"/{TOKEN}/").text
    assert re.findall(r"<script[^>]*>", text) == ['<script src="page.js" defer>']
    assert "<img" not in text
    assert "&lt;script&gt;document.title" in text
    assert "{{7*7}}" in text  # as it was written, not 49
    told = ask(page, text="a photo of 0", k=20).json()
    assert set(HOSTILE[:3]) == {one["name"] for one in told["groups"]}


# --- pictures -----------------------------------------------------------------------------------


def test_pictures_only_when_asked_for(page: TestClient, scene: ExplorerData) -> None:
    answer = page.get(f"/{TOKEN}/image/0")
    assert answer.headers["content-type"] == "image/png"
    assert Image.open(io.BytesIO(answer.content)).size == (128, 128)
    without = client(ExplorerData(scene.models, scene.ids, scene.groups, "t", scene.convention))
    refused = without.get(f"/{TOKEN}/image/0")
    assert refused.status_code == 404
    assert "--show-images" in refused.json()["error"]


def test_photographs_are_small_copies_without_what_was_hidden(tmp_path: Path) -> None:
    table = photographs(tmp_path / "album")
    original = (tmp_path / "album/files/03.jpg").read_bytes()
    assert b"SECRET-PLACE" in original
    made = gather(None, ["testbed:dual"], f"table:{table}?path=file", show_images=True)
    page = client(made)
    answer = page.get(f"/{TOKEN}/image/3")
    assert answer.headers["content-type"] == "image/jpeg"
    assert b"SECRET-PLACE" not in answer.content
    small = Image.open(io.BytesIO(answer.content))
    assert small.size == (144, 108)
    assert not small.getexif()
    (tmp_path / "album/files/05.jpg").write_bytes(b"not a picture")
    assert page.get(f"/{TOKEN}/image/5").status_code == 404
    told = json.dumps(ask(page, text=NURSE, k=40).json())
    assert "files/" not in told  # ids, never paths
