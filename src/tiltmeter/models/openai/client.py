"""Requests to a server with the OpenAI protocol: where they may go, how often, and what is kept.

Images leave the machine only for a loopback address, or where the user allowed it. No redirect is
followed. The key comes from the environment and appears in no message and no file.
"""

from __future__ import annotations

import ipaddress
import os
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock
from typing import Any
from urllib.parse import urlsplit

from tiltmeter.errors import InputError
from tiltmeter.models.openai.journal import Journal, request_hash

#: Environment variables with the key, the first that is set.
KEYS = ("TILTMETER_API_KEY", "OPENAI_API_KEY")
#: Answers after which the same request may succeed later.
LATER = (408, 409, 425, 429, 500, 502, 503, 504)
LONGEST_PAUSE = 60.0  # seconds


@dataclass(frozen=True)
class Address:
    """Where a server is, and whether images may be sent there.

    Parameters
    ----------
    url : str
        The base, such as ``http://127.0.0.1:8000/v1``.
    allow_upload : bool
        Images may leave this machine.

    Raises
    ------
    InputError
        The address contains a key or another secret, is not on this machine without permission,
        or is elsewhere without https.

    Examples
    --------
    >>> Address("http://127.0.0.1:8000/v1").local
    True
    >>> Address("https://api.example.com/v1")
    Traceback (most recent call last):
    ...
    tiltmeter.errors.InputError: api.example.com is not this machine, and an audit would send it \
your images: add --allow-upload, or allow_upload=yes in the spec, if they may leave this machine
    """

    url: str
    allow_upload: bool = False

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if parts.username or parts.password or parts.query or parts.fragment:
            raise InputError(
                "the address of openai: must not contain a user, a password, a key or a query: "
                f"set {KEYS[0]} in the environment",
                code="bad-option",
            )
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise InputError(
                f"openai:{self.url} is no address: expected openai:http://HOST:PORT/v1?model=NAME",
                code="bad-option",
                value=self.url,
            )
        if self.local:
            return
        if not self.allow_upload:
            raise InputError(
                f"{self.host} is not this machine, and an audit would send it your images: add "
                "--allow-upload, or allow_upload=yes in the spec, if they may leave this machine",
                code="bad-option",
                value=self.host,
            )
        if parts.scheme != "https":
            raise InputError(
                f"{self.host} is not this machine: use https://", code="bad-option", value=self.url
            )

    @property
    def host(self) -> str:
        return str(urlsplit(self.url).hostname)

    @property
    def local(self) -> bool:
        """Whether it is a loopback address."""
        try:
            return ipaddress.ip_address(self.host).is_loopback
        except ValueError:
            return self.host == "localhost"


def _print_error(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


@dataclass(eq=False)
class Client:
    """Sends requests, waits where the server asks for it, and keeps every answer.

    Parameters
    ----------
    address : Address
        The server.
    journal : Journal
        Answers that are known.
    max_requests : int, optional
        Refuse to send more than this.
    concurrency : int
        Requests at the same time.
    tries : int
        How often a request is sent before it is given up.
    pause : float
        Seconds before the second try; doubled each time, unless the server says how long.
    timeout : float
        Seconds to wait for an answer.
    announce : callable
        Told how many requests will be sent, before the first; prints it by default.
    """

    address: Address
    journal: Journal
    max_requests: int | None = None
    concurrency: int = 4
    tries: int = 6
    pause: float = 1.0
    timeout: float = 120.0
    announce: Callable[[str], None] = _print_error
    sent: int = 0
    counted: dict[str, bool] | None = None  # in a rehearsal: requests, and whether answered
    planned: bool = False  # whether their number was announced for a whole audit
    _lock: Lock = field(default_factory=Lock, repr=False)

    def __post_init__(self) -> None:
        import httpx2

        key = next((os.environ[name] for name in KEYS if os.environ.get(name)), None)
        self._key = key
        self._http = httpx2.Client(
            headers={"Authorization": f"Bearer {key}"} if key else {},
            follow_redirects=False,
            timeout=self.timeout,
            trust_env=not self.address.local,  # no proxy between this machine and itself
        )

    def missing(self, bodies: Sequence[Mapping[str, Any]]) -> int:
        """How many requests would be sent: different ones without a known answer."""
        return sum(not self.journal.has(key) for key in {*map(request_hash, bodies)})

    def ask_all(
        self,
        bodies: Sequence[Mapping[str, Any]],
        progress: Callable[[float], None] = lambda share: None,
    ) -> list[dict[str, Any]]:
        """Chat completions, in the order of their requests.

        Parameters
        ----------
        bodies : sequence of mapping
            Requests.
        progress : callable
            Called with the share that is answered.

        Returns
        -------
        list of dict
            The answers.

        Raises
        ------
        InputError
            There are more requests than allowed, or the server refuses one or does not answer.
        """
        different = {request_hash(body): body for body in bodies}  # no request twice
        if self.counted is not None:
            self.counted |= {key: self.journal.has(key) for key in different}
            return [{} for _ in bodies]
        needed = sum(not self.journal.has(key) for key in different)
        self._check_limit(needed, f"{needed:,} requests are needed")
        if needed and not self.planned:
            self.announce(
                f"{self.address.host}: {needed:,} requests to send for {len(bodies):,} questions"
            )
        with ThreadPoolExecutor(self.concurrency) as pool:
            answers = {}
            for key, answer in zip(different, pool.map(self.ask, different.values()), strict=True):
                answers[key] = answer
                progress(len(answers) / len(different))
        return [answers[request_hash(body)] for body in bodies]

    @contextmanager
    def rehearsal(self) -> Iterator[None]:
        """Send nothing while it lasts; then announce how many requests will be sent at most.

        Raises
        ------
        InputError
            There are more than allowed.
        """
        self.counted = {}
        try:
            yield
        finally:
            counted, self.counted = self.counted, None
        answered = sum(counted.values())
        needed = len(counted) - answered
        self._check_limit(needed, f"up to {needed:,} requests are needed for this audit")
        known = f"; {answered:,} more are answered already" if answered else ""
        self.announce(f"{self.address.host}: up to {needed:,} requests for this audit{known}")
        self.planned = True

    def _check_limit(self, needed: int, what: str) -> None:
        left = None if self.max_requests is None else max(0, self.max_requests - self.sent)
        if left is not None and needed > left:
            raise InputError(
                f"{what} and {left:,} are left of max_requests={self.max_requests:,}: none of them "
                "was sent. Answers so far are kept",
                code="bad-option",
                value=self.max_requests,
            )

    def ask(self, body: Mapping[str, Any]) -> dict[str, Any]:
        """One chat completion, from the journal if it is there."""
        known = self.journal.answer(body)
        if known is None:
            known = self.send(body)
            self.journal.record(body, known)
        return known

    def send(self, body: Mapping[str, Any], *, limited: bool = True) -> dict[str, Any]:
        """Ask for a chat completion until it is answered, refused, or given up; keep nothing."""
        import httpx2

        url = self.address.url.rstrip("/") + "/chat/completions"
        problem, pause = "", 0.0
        for number in range(self.tries):
            time.sleep(pause)
            pause = min(LONGEST_PAUSE, self.pause * 2**number)
            with self._lock:  # a request that is sent again counts again
                if limited:
                    self._check_limit(1, "another request is needed")
                self.sent += 1
            try:
                response = self._http.post(url, json=body)
            except httpx2.ConnectError:
                problem = "nothing listens there: start the server, or correct the address"
                continue
            except httpx2.HTTPError as error:
                problem = type(error).__name__
                continue
            if response.is_redirect:
                raise self._error(f"redirects to another address ({response.status_code}), which "
                                  "is not followed: give the final address")  # fmt: skip
            if response.status_code in LATER:
                problem = f"status {response.status_code}"
                pause = _retry_after(response.headers.get("retry-after")) or pause
                continue
            if response.status_code >= 400:
                raise self._error(f"refuses (status {response.status_code}): {response.text[:300]}")
            try:
                answer = response.json()
            except (ValueError, RecursionError):
                problem = "an answer that is no JSON"
                continue
            if _has_choice(answer):
                return answer  # type: ignore[no-any-return]
            problem = "an answer without choices"
        raise self._error(f"gave no answer in {self.tries} tries; the last: {problem}")

    def _error(self, what: str) -> InputError:
        if self._key:
            what = what.replace(self._key, "***")
        return InputError(f"the server {self.address.url} {what}", value=self.address.url)


def _has_choice(answer: Any) -> bool:
    choices = answer.get("choices") if isinstance(answer, dict) else None
    return isinstance(choices, list) and bool(choices) and isinstance(choices[0], dict)


def _retry_after(header: str | None) -> float | None:
    """Seconds that a server asks to wait."""
    try:
        return min(LONGEST_PAUSE, max(0.0, float(header))) if header else None
    except ValueError:  # a date: our own pause will do
        return None
