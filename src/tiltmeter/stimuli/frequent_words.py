"""Frequent English words as a reference for prompts: wordfreq's, or those of a file."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from tiltmeter.errors import InputError, MissingError
from tiltmeter.stimuli import prompts

FEWEST = 100  # with fewer words a percentile means little


@dataclass(frozen=True)
class FrequentWords:
    """Frequent words and their source.

    Parameters
    ----------
    words : tuple of str
        The most frequent first.
    source : str
        Where they are from.
    bare : bool
        Whether prompts are compared with the words alone, instead of in their template.

    Examples
    --------
    >>> FrequentWords(("time", "year"), "example").texts("a photo of a {}")
    ['a photo of a time', 'a photo of a year']
    """

    words: tuple[str, ...]
    source: str
    bare: bool = False

    def texts(self, template: str) -> list[str]:
        """Each word in a template, with `a` or `an` by sound; "" or "{}" is the bare word."""
        return [prompt.text for prompt in prompts(self.words, templates=template or "{}")]


def frequent_words(path: str = "", count: int = 10_000) -> FrequentWords:
    """Load frequent words.

    Parameters
    ----------
    path : str
        A text file with one word per line, the most frequent first; by default the package wordfreq
        is used.
    count : int
        Number of words, at least 100.

    Returns
    -------
    FrequentWords
        Up to `count` words.

    Raises
    ------
    InputError
        `count` is too small, or the file cannot be read or has too few words.
    MissingError
        Neither a file nor wordfreq is there.
    """
    if count < FEWEST:
        raise InputError(f"a percentile needs at least {FEWEST} words; got count={count}")
    if path:
        return _read_file(Path(path), count)
    if importlib.util.find_spec("wordfreq") is None:
        raise MissingError("a list of frequent words", "wordfreq")
    # without numbers: wordfreq lists 0.00 for every price
    listed = importlib.import_module("wordfreq").top_n_list("en", count + count // 10)
    words = [word for word in listed if any(letter.isalpha() for letter in word)][:count]
    return FrequentWords(tuple(words), f"wordfreq {metadata.version('wordfreq')}")


def _read_file(path: Path, count: int) -> FrequentWords:
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except FileNotFoundError:
        raise InputError(
            f"there is no file {str(path)!r} of frequent words; check the path"
        ) from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read words from {str(path)!r}: {error}") from None
    words: Sequence[str] = list(dict.fromkeys(line.strip() for line in lines if line.strip()))
    if len(words) < FEWEST:
        raise InputError(
            f"{path} has {len(words)} words; a percentile needs at least {FEWEST}, one per line"
        )
    return FrequentWords(tuple(words[:count]), path.name)
