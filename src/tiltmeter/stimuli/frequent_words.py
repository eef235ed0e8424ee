"""Frequent English words, to hold captions against: wordfreq's, or those of a user's list."""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

from tiltmeter.errors import InputError, MissingError
from tiltmeter.stimuli import prompts

FEWEST = 100  # with fewer words a percentile says little


@dataclass(frozen=True)
class FrequentWords:
    """Words, the most frequent first, and where they are from."""

    words: tuple[str, ...]
    source: str
    bare: bool = False  # whether captions are placed among the words alone, not in their template

    def texts(self, template: str) -> list[str]:
        """Each word in a template, with a or an by sound; "" or "{}" is the bare word."""
        return [prompt.text for prompt in prompts(self.words, templates=template or "{}")]


def frequent_words(path: str = "", count: int = 10_000) -> FrequentWords:
    """The first `count` words of a file (one a line, the most frequent first), or of wordfreq."""
    if count < FEWEST:
        raise InputError(f"a percentile takes at least {FEWEST} words; got count={count}")
    if path:
        return _of_file(Path(path), count)
    if importlib.util.find_spec("wordfreq") is None:
        raise MissingError("a list of frequent words", "wordfreq")
    # numbers are left out: 0.00 stands for every price
    listed = importlib.import_module("wordfreq").top_n_list("en", count + count // 10)
    words = [word for word in listed if any(letter.isalpha() for letter in word)][:count]
    return FrequentWords(tuple(words), f"wordfreq {metadata.version('wordfreq')}")


def _of_file(path: Path, count: int) -> FrequentWords:
    try:
        lines = path.read_text(encoding="utf-8-sig").splitlines()
    except FileNotFoundError:
        raise InputError(f"there is no file {str(path)!r} of frequent words") from None
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot read words from {str(path)!r}: {error}") from None
    words: Sequence[str] = list(dict.fromkeys(line.strip() for line in lines if line.strip()))
    if len(words) < FEWEST:
        raise InputError(
            f"{path} has {len(words)} words; a percentile takes at least {FEWEST}, one a line"
        )
    return FrequentWords(tuple(words[:count]), path.name)
