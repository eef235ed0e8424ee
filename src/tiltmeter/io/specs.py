"""Specs, `scheme:place?option=value`: how models and datasets are named."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from urllib.parse import parse_qsl, quote

from tiltmeter.errors import InputError, UnknownNameError


@dataclass(frozen=True)
class Spec:
    """A parsed spec.

    Parameters
    ----------
    scheme
        The kind of model or dataset.
    rest
        Where it is, or its name.
    options
        What follows the question mark.

    Examples
    --------
    >>> Spec.parse("fairface:/data/fairface?split=val")
    Spec(scheme='fairface', rest='/data/fairface', options={'split': 'val'})
    """

    scheme: str
    rest: str
    options: dict[str, str]

    @classmethod
    def parse(cls, text: str, *, kind: str = "model", known: Iterable[str] = ()) -> Spec:
        """Parses a spec.

        Parameters
        ----------
        text
            What was typed.
        kind
            What it should name, `model` or `dataset`.
        known
            Schemes of this kind, for suggestions.

        Raises
        ------
        UnknownNameError
            If there is no scheme.

        Examples
        --------
        >>> Spec.parse("openai/clip-vit-base-patch32")
        Traceback (most recent call last):
        ...
        tiltmeter.errors.UnknownNameError: unknown model 'openai/clip-vit-base-patch32'; did you \
mean 'hf:openai/clip-vit-base-patch32'?
        """
        scheme, colon, rest = text.partition(":")
        if not colon:
            schemes = [f"{name}:" for name in known]
            near = _suggest(text, kind) or get_close_matches(text, schemes)
            usual = ("hf", "embeddings") if kind == "model" else ("table", "folder")
            suggestions = near or [f"{scheme}:{text}" for scheme in usual]
            note = "" if near or Path(text).exists() else f"there is no folder {text} here"
            if kind == "model" and note:
                note += f" (`tiltmeter debias ... --out {text}` makes one)"
            raise UnknownNameError(kind, text, schemes, suggestions=suggestions, note=note)
        rest, _, query = rest.partition("?")
        return cls(scheme, rest, dict(parse_qsl(query, keep_blank_values=True)))

    def __str__(self) -> str:
        """As it is typed.

        >>> str(Spec("table", "my faces.csv", {"path": "file name"}))
        'table:my faces.csv?path=file%20name'
        """
        options = [f"{name}={quote(value, safe='/,:*')}" for name, value in self.options.items()]
        return f"{self.scheme}:{self.rest}" + "?" * bool(options) + "&".join(options)

    def check_options(self, *known: str) -> None:
        """Refuse options that would be ignored.

        Parameters
        ----------
        *known
            The options that are used.
        """
        for name in self.options:
            if name not in known:
                raise UnknownNameError(f"option of {self.scheme}:", name, known)

    def directory(self) -> Path:
        """The place as a path, which must be a directory."""
        path = Path(self.rest)
        if not self.rest or not path.is_dir():
            raise InputError(
                f"{self.scheme}:{self.rest}: there is no such folder; write an existing one, such "
                f"as {self.scheme}:/data/{self.scheme}",
                code="not-found",
                value=self.rest,
            )
        return path


def _suggest(text: str, kind: str) -> list[str]:
    """Specs that somebody who typed a path or a name may have meant."""
    from tiltmeter.io.tables import TABLES, image_column  # here: it takes pyarrow to read a table

    path = Path(text)
    if kind == "model":
        if path.is_dir():
            vectors = any((path / name).exists() for name in ("images.npy", "texts.npy"))
            return [f"{'embeddings' if vectors else 'hf'}:{text}"]
        if path.suffix == ".py":
            return [f"python:{text}:FACTORY"]
        if path.is_file() and text.endswith(TABLES):  # data in the place of a model
            return [f"--images {_suggest(text, 'dataset')[0]}"]
        on_hub = text.count("/") == 1 and not text.startswith((".", "/", "~"))
        return [f"hf:{text}"] if on_hub else []
    if path.is_file():
        column = image_column(path)
        return [f"table:{text}" + (f"?path={column}" if column else "")]
    if path.is_dir():
        return [f"{_scheme_of(path)}:{text}"]
    return [f"hfds:{text}?download=yes"] if text.count("/") == 1 else []


def _scheme_of(directory: Path) -> str:
    """The scheme of the dataset that a directory seems to contain."""
    if (directory / "images.npy").exists():
        return "embeddings"
    if any(directory.glob("fairface_label_*.csv")):
        return "fairface"
    return "folder"
