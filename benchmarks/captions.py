"""Captions a second, and peak memory, as rows grow: `python -m benchmarks.captions [ROWS ...]`.

The corpus is Parquet without dictionaries: COCO's captions (`--coco FILE`), or made-up ones, each
with a word of the list and a number of its own, so that nearly all rows differ. Each size runs in a
process of its own. Polars counts single words alone: it splits, explodes and joins.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from tiltmeter.corpus import Vocabulary, count, count_files
from tiltmeter.stimuli import load
from tiltmeter.stimuli.forms import forms

FILE_ROWS = 1_000_000


def base(coco: Path | None) -> list[str]:
    """Captions to vary."""
    if coco is not None:
        found = json.loads(coco.read_bytes())["annotations"]
        return [one["caption"] for one in found]
    rng = np.random.default_rng(0)
    things = [word.text for word in load("placebo-nouns").words]
    people = ["A man", "A woman", "Two people", "He", "She and her friend", "A black cat"]
    picks = rng.integers(0, [len(people), len(things), len(things)], size=(20_000, 3))
    return [
        f"{people[a]} sitting next to the {things[b]} in front of a {things[c]} near his house"
        for a, b, c in picks.tolist()
    ]


def corpus(place: Path, rows: int, captions: list[str], words: list[str]) -> None:
    """Files of varied captions."""
    texts, added = pa.array(captions), pa.array(words)
    for number, start in enumerate(range(0, rows, FILE_ROWS)):
        n = min(FILE_ROWS, rows - start)
        rng = np.random.default_rng(number)
        column = pc.binary_join_element_wise(
            texts.take(pa.array(rng.integers(0, len(texts), n))),
            added.take(pa.array(rng.integers(0, len(added), n))),
            pa.array(rng.integers(0, 10**9, n)).cast(pa.string()),
            " ",
        )
        table = pa.table({"caption": column})
        pq.write_table(table, place / f"{number:04d}.parquet", use_dictionary=False)


def ours(place: Path, rounds: int) -> dict[str, Any]:
    """Seconds of the whole job, from files to counts; the best of some rounds."""
    vocabulary = Vocabulary.of(load("sobit").words)
    count(pa.array(["warm"]), vocabulary)
    files = sorted(place.glob("*.parquet"))
    took = []
    for _ in range(rounds):
        started = time.perf_counter()
        tally, _ = count_files(files, vocabulary)
        took.append(time.perf_counter() - started)
    return {"seconds": min(took), "rows": int(tally.captions[-1]), "peak": _peak(),
            "words": int(tally.captions[:-1].sum())}  # fmt: skip


def polars(place: Path, rounds: int) -> dict[str, Any]:
    """The same for single words and four signs of gender, by Polars' own means."""
    import polars as pl

    vocabulary = Vocabulary.of(load("sobit").words)
    single = [
        (form[0], item) for form, item in vocabulary.items
        if len(form) == 1 and item < len(vocabulary.terms) + 4
    ]  # fmt: skip
    known = pl.LazyFrame(single, schema=["word", "item"], orient="row")
    took = []
    for _ in range(rounds):
        started = time.perf_counter()
        # file by file, as we do: the whole in one plan takes memory for all exploded words
        for file in sorted(place.glob("*.parquet")):
            found = (
                pl.scan_parquet(file)
                .with_row_index("row")
                .select("row", pl.col("caption").str.to_lowercase().str.extract_all(r"[\p{L}\d]+"))
                .explode("caption")
                .join(known, left_on="caption", right_on="word")
                .select("row", "item")
                .unique()
            )
            pairs = found.join(found.filter(pl.col("item") >= len(vocabulary.terms)), on="row")
            pairs.group_by("item", "item_right").len().collect(engine="streaming")
        took.append(time.perf_counter() - started)
    rows = sum(pq.read_metadata(file).num_rows for file in place.glob("*.parquet"))
    return {"seconds": min(took), "rows": rows, "peak": _peak()}


def one_regex_a_word(place: Path) -> dict[str, Any]:
    """What one regular expression a word would take, on a slice, Arrow's RE2."""
    texts = pq.read_table(next(place.glob("*.parquet"))).column(0).combine_chunks()[:20_000]
    started = time.perf_counter()
    for word in load("sobit").words:
        written = "|".join("[ -]".join(form) for form in forms(word.text, word.pos))
        pc.match_substring_regex(texts, rf"\b(?:{written})\b", ignore_case=True)
    return {"seconds": time.perf_counter() - started, "rows": len(texts), "peak": _peak()}


def _peak() -> float:
    """GB. Not getrusage, whose peak begins with that of the process that started this one."""
    status = Path("/proc/self/status").read_text()
    return int(status.partition("VmHWM:")[2].split()[0]) * 1024 / 1e9


WAYS = {"ours": ours, "polars": polars}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("rows", nargs="*", type=int, default=[500_000, 5_000_000])
    parser.add_argument("--coco", type=Path)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--others", action="store_true", help="Polars, and a regex a word")
    parser.add_argument("--one", nargs=2, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        way, place = given.one
        done = (
            one_regex_a_word(Path(place))
            if way == "regex"
            else WAYS[way](Path(place), given.rounds)
        )
        print(json.dumps(done))
        return
    captions, words = base(given.coco), [word.text for word in load("sobit").words]
    print("| way | captions | seconds | captions a second | peak |\n|---|---:|---:|---:|---:|")
    for at, rows in enumerate(given.rows):
        with tempfile.TemporaryDirectory() as folder:
            corpus(Path(folder), rows, captions, words)
            for way in ("ours", *(("polars", "regex") if given.others and not at else ())):
                command = [sys.executable, "-m", "benchmarks.captions", "--one", way, folder]
                command += ["--rounds", str(given.rounds)]
                done = subprocess.run(command, capture_output=True, text=True, check=True)
                t = json.loads(done.stdout)
                rate = t["rows"] / t["seconds"]
                cells = (way, f"{t['rows']:,}", f"{t['seconds']:.2f}", f"{rate:,.0f}",
                         f"{t['peak']:.2f} GB")  # fmt: skip
                print("| " + " | ".join(cells) + " |", flush=True)


if __name__ == "__main__":
    main()
