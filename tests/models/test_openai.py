"""`openai:` against a real HTTP server that also drops, delays, refuses, cuts and redirects."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

pytest.importorskip("httpx2")

import tiltmeter as tm
from tests.models import tiny
from tiltmeter.errors import InputError, UnknownNameError
from tiltmeter.models.openai import (
    FirstTokenContinuer,
    PromptContinuer,
    ServerWriter,
    continuation,
)
from tiltmeter.models.openai.client import Address, Client
from tiltmeter.models.openai.journal import Journal, request_hash
from tiltmeter.types import Continuer, Writer

KEY = "sk-very-secret"


class Server(ThreadingHTTPServer):
    """Answers "nurse", after the faults that a test has queued."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.faults: list[str] = []
        self.bodies: list[dict[str, Any]] = []
        self.keys: list[str | None] = []
        self.top = True  # gives top_logprobs
        self.prompt = False  # gives prompt_logprobs
        self.pause = 0.0
        self.lock = threading.Lock()

    @property
    def spec(self) -> str:
        return f"openai:http://127.0.0.1:{self.server_port}/v1?model=m"


class Handler(BaseHTTPRequestHandler):
    """One chat completion."""

    server: Server

    def log_message(self, *_: Any) -> None:
        """Say nothing."""

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.server.lock:
            fault = self.server.faults.pop(0) if self.server.faults else ""
            self.server.bodies.append(body)
            self.server.keys.append(self.headers.get("Authorization"))
        time.sleep(self.server.pause)
        if fault == "drop":
            self.connection.close()
        elif fault == "delay":
            time.sleep(0.6)
        elif fault == "redirect":
            self.reply(307, b"", Location="http://127.0.0.1:1/elsewhere")
        elif fault.isdecimal():
            self.reply(int(fault), f"no: {self.headers.get('Authorization')}".encode(),
                       **{"Retry-After": "0"})  # fmt: skip
        elif fault == "garbage":
            self.reply(200, b"<html>not JSON")
        elif fault == "cut":
            self.reply(200, json.dumps(self.answer(body)).encode()[:-20])
        elif fault == "empty":
            self.reply(200, b'{"choices": []}')
        elif "prompt_logprobs" in body and not self.server.prompt:
            self.reply(400, b'{"error": "prompt_logprobs is not supported"}')
        else:
            self.reply(200, json.dumps(self.answer(body)).encode())

    def answer(self, body: dict[str, Any]) -> dict[str, Any]:
        choice: dict[str, Any] = {"message": {"content": "nurse"}, "finish_reason": "stop"}
        if body.get("logprobs") and self.server.top:
            alternatives = [{"token": " A", "logprob": -0.5}, {"token": "A", "logprob": -2.0},
                            {"token": "B", "logprob": -1.5}]  # fmt: skip
            choice["logprobs"] = {"content": [{"top_logprobs": alternatives}]}
        answer = {"choices": [choice], "usage": {"completion_tokens": 1}}
        if "prompt_logprobs" in body:  # as vLLM lays them out, one word per token
            words = ["<s>", "USER", "image", *body["messages"][-1]["content"].split()]
            answer["prompt_logprobs"] = [None] + [
                {str(at): {"logprob": -len(word) / 10, "decoded_token": f" {word}"}}
                for at, word in enumerate(words[1:])
            ]
        return answer

    def reply(self, status: int, content: bytes, **headers: str) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("OPENAI_API_KEY", "sk-other")
    monkeypatch.setenv("TILTMETER_API_KEY", KEY)
    running = Server()
    thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield running
    running.shutdown()
    thread.join()
    running.server_close()


def client(server: Server, path: Path, **options: Any) -> Client:
    address = Address(f"http://127.0.0.1:{server.server_port}/v1")
    return Client(address, Journal(path), pause=0.01, **options)


def test_what_the_server_gives_is_tried(server: Server) -> None:
    assert type(tm.load_model(server.spec)) is FirstTokenContinuer
    server.top = False
    model = tm.load_model(server.spec)
    assert type(model) is ServerWriter
    assert isinstance(model, Writer)
    assert not isinstance(model, Continuer)
    server.prompt = True
    assert type(tm.load_model(server.spec)) is PromptContinuer


def test_writes_and_asks_nothing_twice(server: Server) -> None:
    images = tiny.pictures()
    model = tm.load_model(server.spec)
    before = len(server.bodies)
    first = model.write(images, "Who is this?", limit=5)
    assert [[text.text for text in texts] for texts in first] == [["nurse"]] * 3
    assert len(server.bodies) == before + 3
    again = tm.load_model(server.spec)  # another process would read the same journal
    before = len(server.bodies)
    assert again.write(images, "Who is this?", limit=5) == first
    assert len(server.bodies) == before
    sent = server.bodies[-1]
    assert {"temperature", "top_p", "n", "max_tokens", "seed"} <= {*sent}


def test_likelihood_of_one_token_adds_its_spellings(server: Server) -> None:
    model = tm.load_model(server.spec)
    found = model.continuations(tiny.pictures()[:1], "A or B?", ["A", "B", "C"])
    assert found.logprobs[0, 0] == pytest.approx(np.logaddexp(-0.5, -2.0))
    assert found.logprobs[0, 1] == -1.5
    assert found.exact.tolist() == [[True, True, False]]
    left = np.log(1 - np.exp(-0.5) - np.exp(-2.0) - np.exp(-1.5))
    assert found.logprobs[0, 2] == pytest.approx(left)  # an upper bound


def test_likelihood_of_a_whole_answer(server: Server) -> None:
    server.prompt = True
    model = tm.load_model(server.spec)
    found = model.continuations(tiny.pictures()[:2], "Who?", ["nurse", "old man"], stem="This is a")
    assert found.logprobs == pytest.approx(np.array([[-0.5, -0.6]] * 2))
    assert found.tokens.tolist() == [1, 2]
    assert server.bodies[-1]["continue_final_message"] is True


def test_a_token_that_is_shared_with_the_stem_is_refused() -> None:
    tokens = [None, {"1": {"logprob": -1.0, "decoded_token": " This"}},
              {"2": {"logprob": -1.0, "decoded_token": " a nurse"}}]  # fmt: skip
    with pytest.raises(InputError, match="do not spell"):
        continuation({"prompt_logprobs": tokens}, "nurse")


@pytest.mark.parametrize("fault", ["drop", "429", "500", "garbage", "cut", "empty"])
def test_passing_faults_lose_nothing(server: Server, tmp_path: Path, fault: str) -> None:
    asking = client(server, tmp_path / "a.jsonl", concurrency=1)
    bodies = [{"model": "m", "messages": [], "n": at} for at in range(5)]
    server.faults = ["", fault, fault]
    assert len(asking.ask_all(bodies)) == 5
    assert len(server.bodies) == 7
    assert len(Journal(tmp_path / "a.jsonl")) == 5


def test_a_server_that_does_not_answer_is_given_up(server: Server, tmp_path: Path) -> None:
    asking = client(server, tmp_path / "a.jsonl", concurrency=1, tries=3)
    bodies = [{"model": "m", "n": at} for at in range(3)]
    server.faults = ["", "503", "503", "503"]
    with pytest.raises(InputError, match="gave no answer in 3 tries"):
        asking.ask_all(bodies)
    assert asking.missing(bodies) < 3  # what was answered is kept
    server.faults = []
    assert len(asking.ask_all(bodies)) == 3


def test_a_slow_server_is_asked_again(server: Server, tmp_path: Path) -> None:
    asking = client(server, tmp_path / "a.jsonl", timeout=0.3)
    server.faults = ["delay"]
    assert asking.ask({"model": "m"})["choices"]


@pytest.mark.parametrize("fault", ["400", "401", "403", "404", "redirect"])
def test_a_refusal_shows_no_key(server: Server, tmp_path: Path, fault: str) -> None:
    asking = client(server, tmp_path / "a.jsonl")
    server.faults = [fault]
    with pytest.raises(InputError) as caught:
        asking.ask({"model": "m"})
    assert KEY not in str(caught.value)
    assert len(server.bodies) == 1
    assert not (tmp_path / "a.jsonl").exists()


def test_the_key_goes_to_the_server_and_into_no_file(server: Server, tmp_path: Path) -> None:
    model = tm.load_model(server.spec)
    model.write(tiny.pictures()[:1], "Who?")
    assert set(server.keys) == {f"Bearer {KEY}"}
    assert not any(KEY in path.read_text() for path in tmp_path.rglob("*.jsonl"))
    assert KEY not in json.dumps(model.provenance) + repr(model.client) + repr(vars(model))


def test_a_limit_of_requests_is_kept_before_any_is_sent(server: Server, tmp_path: Path) -> None:
    asking = client(server, tmp_path / "a.jsonl", max_requests=4)
    bodies = [{"model": "m", "n": at} for at in range(5)]
    with pytest.raises(InputError, match="5 requests are needed and 4 are left"):
        asking.ask_all(bodies)
    assert not server.bodies
    asking.ask_all(bodies[:3])
    with pytest.raises(InputError):
        asking.ask_all(bodies)  # two are needed, one is left


def test_the_number_of_requests_is_announced_and_equal_ones_are_sent_once(
    server: Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bodies = [{"model": "m", "n": at % 3} for at in range(7)]
    assert len(client(server, tmp_path / "a.jsonl").ask_all(bodies)) == 7
    assert "3 requests to send for 7 questions" in capsys.readouterr().err
    assert len(server.bodies) == 3
    client(server, tmp_path / "a.jsonl").ask_all(bodies)
    assert not capsys.readouterr().err
    assert len(server.bodies) == 3


def test_after_a_kill_nothing_is_asked_twice_and_nothing_is_lost(
    server: Server, tmp_path: Path
) -> None:
    """A process is killed in the middle of its requests; the next one asks for the rest."""
    journal, count = tmp_path / "a.jsonl", 40
    work = (
        "from pathlib import Path; from tiltmeter.models.openai.client import Address, Client; "
        "from tiltmeter.models.openai.journal import Journal; "
        f"asking = Client(Address('http://127.0.0.1:{server.server_port}/v1'), "
        f"Journal(Path({str(journal)!r}))); "
        f"asking.ask_all([{{'model': 'm', 'n': at}} for at in range({count})])"
    )
    server.pause = 0.05
    process = subprocess.Popen([sys.executable, "-c", work])
    while len(server.bodies) < count / 2 and process.poll() is None:
        time.sleep(0.01)
    process.kill()
    process.wait()
    bodies = [{"model": "m", "n": at} for at in range(count)]
    known = Journal(journal)
    answered = [body for body in bodies if known.answer(body) is not None]
    assert 0 < len(answered) < count
    time.sleep(0.2)  # the server is done with what the dead process asked
    assert len(client(server, journal).ask_all(bodies)) == count
    for body in answered:
        assert server.bodies.count(body) == 1
    assert len(server.bodies) <= count + 4  # those in flight, one per thread


@pytest.mark.parametrize("options", [["--allow-upload"], ["--max-requests", "3"]])
def test_options_of_servers_are_for_servers(options: list[str]) -> None:
    from typer.testing import CliRunner

    from tiltmeter.cli.app import app

    result = CliRunner().invoke(app, ["audit", "testbed:dual", *options, "--print-config"])
    assert result.exit_code == 2 or isinstance(result.exception, InputError)


def test_the_limit_of_an_audit_is_an_option(server: Server, tmp_path: Path) -> None:
    """Three requests find out what the server gives; the first of the probe is too many."""
    from tiltmeter.cli.parsing import server_specs

    (spec,) = server_specs([server.spec], allow_upload=True, max_requests=3)
    model = tm.load_model(spec)
    assert model.client.max_requests == 3
    assert model.client.address.allow_upload
    with pytest.raises(InputError, match="0 are left"):
        model.write(None, "Hello?")


@pytest.mark.parametrize("damage", ["cut", "flip", "line"])
def test_a_damaged_journal_is_asked_again(server: Server, tmp_path: Path, damage: str) -> None:
    path = tmp_path / "a.jsonl"
    client(server, path, concurrency=1).ask_all([{"model": "m", "n": at} for at in range(3)])
    content = bytearray(path.read_bytes())
    if damage == "cut":  # as a kill leaves it
        content = content[:-30]
    elif damage == "flip":
        content[content.index(b"nurse")] ^= 1
    else:
        content += b"[[[[\n"
    path.write_bytes(content)
    asking = client(server, path, concurrency=1)
    bodies = [{"model": "m", "n": at} for at in range(3)]
    assert asking.missing(bodies) == (0 if damage == "line" else 1)
    texts = [answer["choices"][0]["message"]["content"] for answer in asking.ask_all(bodies)]
    assert texts == ["nurse"] * 3
    assert len(Journal(path)) == 3


@pytest.mark.parametrize(
    ("spec", "words"),
    [
        ("openai:http://127.0.0.1:1/v1", "model=NAME"),
        ("openai:http://127.0.0.1:1/v1?model=m&api_key=x", "must not contain a key"),
        ("openai:http://me:secret@127.0.0.1:1/v1?model=m", "must not contain"),
        ("openai:http://192.168.0.9/v1?model=m", "--allow-upload"),
        ("openai:https://api.example.com/v1?model=m", "--allow-upload"),
        ("openai:http://api.example.com/v1?model=m&allow_upload=yes", "https"),
        ("openai:http://127.0.0.1.example.com/v1?model=m", "--allow-upload"),
        ("openai:ftp://127.0.0.1/v1?model=m", "is no address"),
        ("openai:http://127.0.0.1:1/v1?model=m&max_requests=0", "above 0"),
    ],
)
def test_addresses_that_are_refused(spec: str, words: str) -> None:
    with pytest.raises(InputError) as caught:
        tm.load_model(spec)
    assert words in str(caught.value)
    assert "secret" not in str(caught.value)
    assert caught.value.code == "bad-option"


def test_unknown_option() -> None:
    with pytest.raises(UnknownNameError):
        tm.load_model("openai:http://127.0.0.1:1/v1?model=m&modle=n")


def test_an_image_arrives_as_it_is(server: Server) -> None:
    import base64
    import io

    image = tiny.pictures()[0]
    tm.load_model(server.spec).write([image], "Who?")
    url = server.bodies[-1]["messages"][0]["content"][0]["image_url"]["url"]
    arrived = Image.open(io.BytesIO(base64.b64decode(url.partition(",")[2])))
    assert (np.asarray(arrived) == np.asarray(image)).all()


WHOLE = ["silence", "pronoun", "description"]


def people() -> Any:
    """Images of two groups, as large as a group must be."""
    images = [Image.new("RGB", (8, 8), (at, 0, 0)) for at in range(44)]
    return tm.faces(images, {"gender": ["Male", "Female"] * 22})


def requests(server: Server) -> list[str]:
    """What was asked, without the trial of a model that is loaded."""
    asked = [json.dumps(body, sort_keys=True) for body in server.bodies]
    return [body for body in asked if '"Hello"' not in body]


def announced(errors: str) -> tuple[int, int]:
    """Requests that an audit says it will send, and those that are answered."""
    (line,) = [line for line in errors.splitlines() if "requests" in line]
    found = re.search(r"up to ([\d,]+) requests for this audit(?:; ([\d,]+) more)?", line)
    assert found, line
    sent, known = (int((number or "0").replace(",", "")) for number in found.groups())
    return sent, known


@pytest.mark.parametrize("prompt", [True, False])
def test_an_audit_says_first_how_many_requests_it_sends(
    server: Server, capsys: pytest.CaptureFixture[str], prompt: bool
) -> None:
    server.prompt = prompt
    tm.audit(server.spec, people(), probes=WHOLE, permutations=0)
    sent, known = announced(capsys.readouterr().err)
    asked = requests(server)
    assert len({*asked}) == len(asked) > 100
    if prompt:
        assert (sent, known) == (len(asked), 0)
    else:  # with a server that gives only bounds, less may be asked
        assert len(asked) <= sent < 2 * len(asked)


def test_the_limit_of_an_audit_is_for_all_its_probes(server: Server) -> None:
    server.prompt = True
    with pytest.raises(InputError, match="up to .* requests are needed for this audit and 98 are"):
        tm.audit(f"{server.spec}&max_requests=100", people(), probes=WHOLE)
    assert not requests(server)


def test_an_interrupted_audit_asks_nothing_twice(
    server: Server, capsys: pytest.CaptureFixture[str]
) -> None:
    server.prompt = True
    server.faults = [""] * 80 + ["403"]
    with pytest.raises(InputError, match="refuses"):
        tm.audit(server.spec, people(), probes=WHOLE, permutations=0)
    first = announced(capsys.readouterr().err)[0]
    before = len(requests(server))
    tm.audit(server.spec, people(), probes=WHOLE, permutations=0)
    sent, known = announced(capsys.readouterr().err)
    asked = requests(server)
    assert sent + known == first
    assert sent == len(asked) - before
    assert len(asked) - len({*asked}) <= 1  # the one that was refused


def test_a_limit_counts_requests_that_are_sent_again(server: Server, tmp_path: Path) -> None:
    asking = client(server, tmp_path / "a.jsonl", max_requests=3, concurrency=1)
    server.faults = ["503"] * 10
    with pytest.raises(InputError, match="another request is needed"):
        asking.ask_all([{"model": "m"}])
    assert len(server.bodies) == 3


def test_images_are_encoded_once_and_named_by_their_digest(server: Server) -> None:
    server.prompt = True
    model = tm.load_model(server.spec)
    image = Image.effect_noise((64, 64), 80)
    bodies = [model.body(image, f"question {at}") for at in range(3)]
    urls = [body["messages"][0]["content"][0]["image_url"]["url"] for body in bodies]
    assert len(urls[0]) > 1000
    assert urls[0] is urls[1] is urls[2]
    other = model.body(Image.effect_noise((64, 64), 80), "question 0")
    assert len({request_hash(body) for body in [*bodies, other]}) == 4
