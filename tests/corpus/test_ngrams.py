"""Google's Ngram files, of both releases."""

from __future__ import annotations

import gzip
from pathlib import Path

from tests.refusing import refused
from tiltmeter.corpus.ngrams import ngram_counts

OLD = """Black women\t1900\t7\t2
Black women\t1950\t30\t5
black women\t2000\t100\t9
black womenfolk\t2000\t4\t4
White men\t1999\t11\t3
"""
NEW = "Black women\t1900,7,2\t1950,30,5\nblack women\t2000,100,9\nWhite men\t1999,11,3\n"


def test_both_releases_give_the_same_counts(tmp_path: Path) -> None:
    old, new = tmp_path / "2012.tsv", tmp_path / "2020.gz"
    old.write_text(OLD)
    with gzip.open(new, "wt") as file:
        file.write(NEW)
    phrases = ["black women", "White men", "Asian men"]
    expected = {"black women": 130, "white men": 11, "asian men": 0}
    assert ngram_counts([old], phrases) == ngram_counts([new], phrases) == expected
    assert ngram_counts([old], phrases, since=1990)["black women"] == 100
    assert ngram_counts([old, new], phrases)["white men"] == 22


def test_another_layout_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "other.tsv"
    file.write_text("black women\tmany\n")
    with refused("bad-file", "other.tsv"):
        ngram_counts([file], ["black women"])
