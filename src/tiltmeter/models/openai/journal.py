"""Answers of a server on disk, so that no request is sent twice."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import Any

LONG = 1000  # characters of a text that is named by its digest


class Journal:
    """An append-only file of answers, one line of JSON per request.

    A line is on disk before its answer is used. A line that a kill cut short, or whose checksum
    is wrong, is not used: that request is sent again.

    Parameters
    ----------
    path : Path
        The file; it is made with its folder at the first answer.

    Examples
    --------
    >>> import tempfile
    >>> folder = Path(tempfile.mkdtemp())
    >>> Journal(folder / "a.jsonl").record({"q": 1}, {"a": 2})
    >>> Journal(folder / "a.jsonl").answer({"q": 1})
    {'a': 2}
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._lock = Lock()
        self._answers: dict[str, Any] = {}
        self._whole = True  # whether the file ends with a whole line
        if path.is_file():
            text = path.read_bytes()
            self._whole = text.endswith(b"\n") or not text
            for line in text.splitlines():
                self._read(line)

    def __len__(self) -> int:
        return len(self._answers)

    def answer(self, request: Mapping[str, Any]) -> Any | None:
        """The answer to a request, or None if it was never answered."""
        return self._answers.get(request_hash(request))

    def has(self, key: str) -> bool:
        """Whether the request of this hash was answered."""
        return key in self._answers

    def record(self, request: Mapping[str, Any], answer: Any) -> None:
        """Write an answer to disk."""
        key = request_hash(request)
        entry = {"request": key, "answer": answer}
        line = json.dumps({**entry, "check": request_hash(entry)}, sort_keys=True) + "\n"
        with self._lock:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
            with os.fdopen(descriptor, "ab") as file:
                file.write((line if self._whole else "\n" + line).encode())
                file.flush()
                os.fsync(file.fileno())
            self._whole = True
            self._answers[key] = answer

    def _read(self, line: bytes) -> None:
        try:
            entry = json.loads(line)
            check = entry.pop("check")
            if request_hash(entry) == check:
                self._answers[entry["request"]] = entry["answer"]
        except (ValueError, KeyError, AttributeError, TypeError, RecursionError):
            return  # damaged: asked again


def request_hash(value: Any) -> str:
    """The name of a request: equal requests have the same."""
    return hashlib.sha256(json.dumps(_short(value), sort_keys=True).encode()).hexdigest()


def _short(value: Any) -> Any:
    """The same with digests in place of images, which thousands of requests share."""
    if isinstance(value, dict):
        return {name: _short(part) for name, part in value.items()}
    if isinstance(value, list):
        return [_short(part) for part in value]
    if isinstance(value, str) and len(value) > LONG:
        return _digest(value)
    return value


@lru_cache(maxsize=1024)
def _digest(text: str) -> str:
    return "sha256:" + hashlib.sha256(text.encode()).hexdigest()
