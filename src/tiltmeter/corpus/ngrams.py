"""How often phrases occur in Google's Books Ngram files (storage.googleapis.com/books/ngrams)."""

from __future__ import annotations

import gzip
from collections.abc import Iterable, Sequence
from pathlib import Path

from tiltmeter.errors import InputError

#: The first year that counts: the propagation study speaks of the past century.
SINCE = 1920


def ngram_counts(
    paths: Iterable[str | Path], phrases: Sequence[str], *, since: int = SINCE
) -> dict[str, int]:
    """Occurrences of phrases, upper and lower case together.

    Parameters
    ----------
    paths : iterable of str or Path
        Files of one release, plain or gzip: of 2012 (`ngram, year, matches, volumes`) or of 2020
        (`ngram, year,matches,volumes, year,matches,volumes, ...`), parted by tabs.
    phrases : sequence of str
        What to count. Phrases of two words are in files of 2-grams.
    since : int
        The first year that counts.

    Returns
    -------
    dict of str to int
        Occurrences by phrase; 0 where the files have none.

    Raises
    ------
    InputError
        A line has another layout.
    """
    counts = dict.fromkeys((phrase.casefold() for phrase in phrases), 0)
    for path in map(Path, paths):
        reader = gzip.open if path.suffix == ".gz" else open
        with reader(path, "rt", encoding="utf-8") as file:
            for number, line in enumerate(file, start=1):
                ngram, *cells = line.rstrip("\n").split("\t")
                if ngram.casefold() not in counts:
                    continue
                years = [cell.split(",") for cell in cells] if "," in cells[0] else [cells]
                try:
                    counts[ngram.casefold()] += sum(
                        int(matches) for year, matches, _ in years if int(year) >= since
                    )
                except ValueError:
                    raise InputError(
                        f"{path}, line {number} is not of a Google Ngram file: expected an ngram, "
                        "a year, matches and volumes",
                        code="bad-file",
                        value=str(path),
                    ) from None
    return counts
