"""`scheme:rest?option=value`: how models and data sets are named on the command line."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qsl

from tiltmeter.errors import InputError, UnknownNameError


@dataclass(frozen=True)
class Spec:
    """A parsed name.

    >>> Spec.parse("fairface:/data/fairface?split=val")
    Spec(scheme='fairface', rest='/data/fairface', options={'split': 'val'})
    """

    scheme: str
    rest: str
    options: dict[str, str]

    @classmethod
    def parse(cls, text: str) -> Spec:
        scheme, colon, rest = text.partition(":")
        if not colon:
            raise InputError(
                f"{text!r} names no kind: write SCHEME:PLACE, such as embeddings:DIR "
                "(tiltmeter list models, tiltmeter list datasets)"
            )
        rest, _, query = rest.partition("?")
        return cls(scheme, rest, dict(parse_qsl(query, keep_blank_values=True)))

    def only(self, *known: str) -> None:
        """Refuses options that nothing would read."""
        for name in self.options:
            if name not in known:
                raise UnknownNameError(f"option of {self.scheme}:", name, known)

    def directory(self) -> Path:
        """The place named, which must be a directory."""
        path = Path(self.rest)
        if not self.rest or not path.is_dir():
            raise InputError(f"{self.scheme}: {self.rest or 'nothing'} is not a directory")
        return path
