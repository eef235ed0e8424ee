"""`openai:URL?model=NAME`: models behind a server with the OpenAI protocol.

What the server gives is tried when the model is loaded. Free text always works. Likelihoods of
whole answers need `prompt_logprobs` (vLLM); with `top_logprobs` alone, answers of one token have a
likelihood, or a bound if they are not among the top tokens.
"""

from __future__ import annotations

import base64
import hashlib
import io
import math
import os
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from functools import wraps
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import numpy as np

from tiltmeter.errors import InputError
from tiltmeter.io.image_files import rendered
from tiltmeter.io.specs import Spec
from tiltmeter.models.openai.client import Address, Client
from tiltmeter.models.openai.journal import Journal
from tiltmeter.types import Continuations, WrittenText

P = ParamSpec("P")
T = TypeVar("T")
OPTIONS = ("model", "allow_upload", "max_requests", "concurrency", "answers")
KEPT = 512  # encoded images
TOP = 20  # the most top_logprobs of the protocol
#: How an answer ended, by the server's `finish_reason`.
ENDS = {"stop": "stop", "length": "length", "content_filter": "filtered"}


class ServerWriter:
    """A model that writes free text.

    Parameters
    ----------
    client : Client
        The server.
    model : str
        The server's name of the model.
    """

    def __init__(self, client: Client, model: str) -> None:
        self.client, self.model = client, model
        self.name = f"openai:{model}"
        self._urls: dict[int, tuple[Any, str]] = {}  # by id(): a question after the other is asked

    def rehearsal(self) -> AbstractContextManager[None]:
        """Count requests while it lasts, and send none: answers are made up."""
        return self.client.rehearsal()

    @property
    def provenance(self) -> dict[str, Any]:
        """The server and what was allowed; weights behind a server cannot be known."""
        address = self.client.address
        return {
            "spec": f"openai:{address.url}?model={self.model}",
            "images_uploaded_to": None if address.local else address.host,
            "weights": None,
            "protocol": type(self).__name__,
        }

    def write(
        self,
        images: Any | None,
        prompt: str,
        *,
        samples: int = 1,
        temperature: float = 0.0,
        limit: int = 128,
        seed: int = 0,
    ) -> list[list[WrittenText]]:
        """Answers in free text; see `tiltmeter.types.Writer`."""
        if samples > 1 and temperature == 0:
            raise InputError(
                f"{samples} samples at temperature 0 are all the same: give a temperature above 0"
            )
        asked = [None] if images is None else list(rendered(images))
        # a seed for each answer: with one for all images, their draws would be the same
        bodies = [
            self.body(image, prompt, temperature=temperature, max_tokens=limit,
                      seed=seed + row * samples + number if temperature else seed)
            for row, image in enumerate(asked)
            for number in range(samples)
        ]  # fmt: skip
        answers = self.client.ask_all(bodies)
        if self.client.counted is not None:
            return [[WrittenText("a person", "stop", 2)] * samples for _ in asked]
        texts = [written(answer) for answer in answers]
        return [texts[at : at + samples] for at in range(0, len(texts), samples)]

    def body(
        self, image: Any | None, prompt: str, stem: str = "", **options: Any
    ) -> dict[str, Any]:
        """A request. Every sampling parameter is sent, since servers have defaults of their own."""
        content: list[dict[str, Any]] = [{"type": "text", "text": prompt}]
        if image is not None:
            content.insert(0, {"type": "image_url", "image_url": {"url": self._url(image)}})
        messages: list[dict[str, Any]] = [{"role": "user", "content": content}]
        if stem:
            messages.append({"role": "assistant", "content": stem})
            options |= {"continue_final_message": True, "add_generation_prompt": False}
        sampling = {"temperature": 0.0, "top_p": 1.0, "n": 1, "max_tokens": 1, "seed": 0}
        return {"model": self.model, "messages": messages, **sampling, **options}

    def _url(self, image: Any) -> str:
        """An image is encoded once for all questions about it."""
        if id(image) not in self._urls:
            if len(self._urls) >= KEPT:
                self._urls.clear()
            self._urls[id(image)] = (image, data_url(image))  # kept alive, so is its id
        return self._urls[id(image)][1]


class FirstTokenContinuer(ServerWriter):
    """Likelihoods of answers of one token, by the top tokens that the server names."""

    def continuations(
        self, images: Any | None, prompt: str, texts: Sequence[str], *, stem: str = ""
    ) -> Continuations:
        """Log-likelihoods of texts of one token; see `tiltmeter.types.Continuer`.

        A text that is not among the top tokens gets the logarithm of the probability that they
        leave, an upper bound, and is not `exact`.
        """
        asked = [None] if images is None else list(rendered(images))
        bodies = [self.body(i, prompt, stem, logprobs=True, top_logprobs=TOP) for i in asked]
        answers = self.client.ask_all(bodies)
        if self.client.counted is not None:
            return made_up(len(asked), texts, exact=[len(text.split()) == 1 for text in texts])
        logprobs = np.empty((len(asked), len(texts)))
        exact = np.ones(logprobs.shape, dtype=bool)
        for row, answer in enumerate(answers):
            found = top_tokens(answer)
            rest = math.log(max(1 - sum(map(math.exp, found.values())), 1e-12))
            bound = min([rest, *found.values()])
            for column, text in enumerate(texts):
                exact[row, column] = text.strip() in found
                logprobs[row, column] = found.get(text.strip(), bound)
        return Continuations(logprobs, np.ones(len(texts), dtype=int), exact)


class PromptContinuer(ServerWriter):
    """Likelihoods of whole answers, by the server's log-probabilities of prompt tokens (vLLM)."""

    def continuations(
        self, images: Any | None, prompt: str, texts: Sequence[str], *, stem: str = ""
    ) -> Continuations:
        """Log-likelihoods of texts; see `tiltmeter.types.Continuer`.

        The server tokenizes the whole answer. The last tokens must spell the text; otherwise the
        stem and the text share a token, and the text has no likelihood of its own.
        """
        asked = [None] if images is None else list(rendered(images))
        bodies = [
            self.body(image, prompt, f"{stem} {text}".strip(), prompt_logprobs=0)
            for image in asked
            for text in texts
        ]
        answers = self.client.ask_all(bodies)
        if self.client.counted is not None:
            return made_up(len(asked), texts, exact=[True] * len(texts))
        scored = [
            continuation(answer, text)
            for answer, text in zip(answers, list(texts) * len(asked), strict=True)
        ]
        shape = (len(asked), len(texts))
        logprobs = np.array([value for value, _ in scored]).reshape(shape)
        tokens = np.array([count for _, count in scored[: len(texts)]])
        return Continuations(logprobs, tokens, np.ones(shape, dtype=bool))


def load(spec: Spec) -> ServerWriter:
    """Models behind a server with the OpenAI protocol: vLLM, llama.cpp, SGLang and others.

    Parameters
    ----------
    spec : Spec
        `openai:URL?model=NAME`, with the options `allow_upload`, `max_requests`, `concurrency` and
        `answers` (the folder in which answers are kept).

    Returns
    -------
    ServerWriter
        With likelihoods where the server gives them.

    Raises
    ------
    InputError
        The address may not be used, or the server does not answer.
    """
    for option in spec.options:
        if "key" in option.lower() or "token" in option.lower():
            raise InputError(
                f"a spec must not contain a key ({option}): set TILTMETER_API_KEY in the "
                "environment",
                code="bad-option",
            )
    spec.check_options(*OPTIONS)
    if not spec.options.get("model"):
        raise InputError(
            "openai: needs the server's name of the model: openai:URL?model=NAME", code="bad-option"
        )
    address = Address(spec.rest, spec.options.get("allow_upload") == "yes")
    model = spec.options["model"]
    known_as = hashlib.sha256(f"{address.url} {model}".encode()).hexdigest()[:16]
    folder = Path(spec.options.get("answers") or _cache_folder())
    client = Client(
        address,
        Journal(folder / f"{known_as}.jsonl"),
        max_requests=_number(spec, "max_requests", None),
        concurrency=_number(spec, "concurrency", 4) or 4,
    )
    return _kind(client, model)(client, model)


def made_up(images: int, texts: Sequence[str], exact: Sequence[bool]) -> Continuations:
    """Likelihoods that stand in for a server's while requests are counted."""
    scores = np.random.default_rng(0).normal(size=(images, len(texts)))
    logprobs = scores - np.logaddexp.reduce(scores, axis=1, keepdims=True)
    return Continuations(logprobs, np.ones(len(texts), dtype=int), np.tile(exact, (images, 1)))


def data_url(image: Any) -> str:
    """A PIL image as a data URL, without loss."""
    buffer = io.BytesIO()
    image.convert("RGB").save(buffer, "PNG")
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode()


def well_formed(read: Callable[P, T]) -> Callable[P, T]:
    """Reads a server's answer; one that lacks a part, or has another in its place, is an error."""

    @wraps(read)
    def checked(*args: P.args, **options: P.kwargs) -> T:
        try:
            return read(*args, **options)
        except InputError:
            raise
        except (AttributeError, LookupError, TypeError, ValueError, OverflowError) as error:
            raise InputError(f"the server's answer is malformed: {error!r:.200}") from error

    return checked


@well_formed
def continuation(answer: dict[str, Any], text: str) -> tuple[float, int]:
    """Log-likelihood and number of the last prompt tokens, which must spell a text."""
    tokens = answer.get("prompt_logprobs")
    if not tokens:
        raise InputError("the server gave no prompt_logprobs for an answer")
    spelled, total = "", 0.0
    for count, entry in enumerate(reversed(tokens), start=1):
        if not entry:  # the first token of a prompt has no likelihood
            break
        token = next(iter(entry.values()))
        spelled, total = str(token["decoded_token"]) + spelled, total + float(token["logprob"])
        if spelled.strip() == text.strip():
            return total, count
        if len(spelled.strip()) > len(text.strip()):
            break
    raise InputError(
        f"the server's tokens do not spell the answer {text!r}: its first token is shared with "
        "what precedes it",
        value=text,
    )


def _kind(client: Client, model: str) -> type[ServerWriter]:
    """What the server can give, tried with a small image and an answer of one word."""
    from PIL import Image

    writer = ServerWriter(client, model)
    image = Image.new("RGB", (32, 32), "white")
    client.send(writer.body(image, "Hello"), limited=False)  # must work
    try:
        answer = client.send(writer.body(image, "Hello", "Hello", prompt_logprobs=0), limited=False)
        continuation(answer, "Hello")
        return PromptContinuer
    except InputError:
        pass
    try:
        answer = client.send(
            writer.body(image, "Hello", logprobs=True, top_logprobs=TOP), limited=False
        )
        return FirstTokenContinuer if top_tokens(answer) else ServerWriter
    except InputError:
        return ServerWriter


@well_formed
def written(answer: dict[str, Any]) -> WrittenText:
    """The text of an answer, and how it ended."""
    choice = answer["choices"][0]
    text = (choice.get("message") or {}).get("content") or ""
    ended = ENDS.get(str(choice.get("finish_reason")), "stop")
    usage = answer.get("usage") or {}
    return WrittenText(str(text).strip(), ended, int(usage.get("completion_tokens") or 0))


@well_formed
def top_tokens(answer: dict[str, Any]) -> dict[str, float]:
    """Log-probabilities of the first token's alternatives, by their text without spaces."""
    content = (answer["choices"][0].get("logprobs") or {}).get("content") or [{}]
    found: dict[str, float] = {}
    for token in content[0].get("top_logprobs") or []:
        text, value = str(token["token"]).strip(), float(token["logprob"])
        found[text] = float(np.logaddexp(found.get(text, -np.inf), value))
    return found


def _number(spec: Spec, name: str, default: int | None) -> int | None:
    text = spec.options.get(name)
    if text is None:
        return default
    if not text.isdecimal() or int(text) < 1:
        raise InputError(
            f"{name}={text} of openai: must be a whole number above 0",
            code="bad-option",
            value=text,
        )
    return int(text)


def _cache_folder() -> Path:
    return (
        Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tiltmeter" / "answers"
    )
