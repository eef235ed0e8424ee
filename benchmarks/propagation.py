"""Retrieval of the propagation study at its size: `python -m benchmarks.propagation`.

6,000 faces against 20,000 words in six templates: 120,000 sentences of 512 dimensions, top 500. All
sentences at once (`pooled`), or template by template as the study does: experiment 1-a bare, and
with 1,000 permutations of the labels. Beside them the bare product and faiss's exact index, in the
same run. Each way runs in a process of its own, so that its peak memory is its own, and the best
of `--rounds` counts. `--cuda` holds the vectors on a GPU.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys

import numpy as np

from benchmarks.cases import DIMENSIONS, best_of, peak_memory, unit_vectors
from tiltmeter.probes.propagation.experiments import ExperimentInput, PropagationConfig, measure
from tiltmeter.probes.propagation.rows import references
from tiltmeter.types import Groups

FACES, WORDS, TEMPLATES, K = 6000, 20_000, 6, 500
PERMUTATIONS = 1000  # an audit's default
#: Of the bare product, and GB: DESIGN's row for retrieval.
BUDGET, PEAK_BUDGET = 2.0, 1.5
WAYS = ("pooled", "per_template", "pooled with references", "per_template with references")


def sides(rng: np.random.Generator, cuda: bool) -> tuple[ExperimentInput, ExperimentInput]:
    faces = [unit_vectors(rng, FACES)]
    texts = [unit_vectors(rng, WORDS) for _ in range(TEMPLATES)]
    if cuda:
        import torch

        faces, texts = (
            [torch.as_tensor(x, device="cuda") for x in some] for some in (faces, texts)
        )
    groups = Groups(np.arange(FACES) % 6, tuple("abcdef"), "group")
    ids = tuple(map(str, range(FACES))), tuple(map(str, range(WORDS)))
    valence = rng.uniform(size=WORDS)
    return (
        ExperimentInput("faces", ids[0], faces, None, groups),
        ExperimentInput("lexicon", ids[1], texts, valence, None),
    )


def timed(way: str, cuda: bool, rounds: int) -> dict[str, float]:
    """Seconds and peak memory of one way, or of what it is compared with."""
    rng = np.random.default_rng(0)
    if way in ("bare product", "faiss IndexFlatIP"):
        queries, items = unit_vectors(rng, FACES), unit_vectors(rng, WORDS * TEMPLATES)
        return {"seconds": _other(way, queries, items, cuda, rounds), "peak": peak_memory()}
    faces, lexicon = sides(rng, cuda)
    templates, _, more = way.partition(" ")
    choices = PropagationConfig(k=(K,), templates=templates)

    def once(some: int = FACES) -> None:
        shown = ExperimentInput("faces", faces.ids[:some], [faces.vectors[0][:some]], None,
                     None if faces.groups is None else faces.groups[:some])  # fmt: skip
        found = measure("1-a", shown, lexicon, choices, np.random.default_rng(0))
        if more:
            references(found, choices, PERMUTATIONS, np.random.default_rng(0))

    once(60)  # compile
    return {"seconds": best_of(1 if more else rounds, once), "peak": peak_memory()}


def _other(way: str, queries: np.ndarray, items: np.ndarray, cuda: bool, rounds: int) -> float:
    if way == "faiss IndexFlatIP":
        import faiss

        index = faiss.IndexFlatIP(DIMENSIONS)
        index.add(items)
        return best_of(rounds, lambda: index.search(queries, K))
    if cuda:
        import torch

        queries, items = (torch.as_tensor(x, device="cuda") for x in (queries, items))

    def bare() -> None:
        for start in range(0, len(items), 4096):
            queries @ items[start : start + 4096].T
        if cuda:
            torch.cuda.synchronize()

    bare()
    return best_of(rounds, bare)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cuda", action="store_true")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--one", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(timed(given.one, given.cuda, given.rounds)))
        return
    print(f"{FACES:,} x {WORDS * TEMPLATES:,} x {DIMENSIONS}, top {K}\n")
    print("| way | time | ratio to the bare product | peak |\n|---|---|---|---|")
    bare = None
    others = ("bare product",) if given.cuda else ("bare product", "faiss IndexFlatIP")
    for way in (*others, *WAYS):
        command = [sys.executable, "-m", "benchmarks.propagation", "--one", way,
                   "--rounds", str(given.rounds)]  # fmt: skip
        done = subprocess.run(
            [*command, *(["--cuda"] if given.cuda else [])], capture_output=True, text=True
        )
        if done.returncode:
            print(f"| {way} | failed: {done.stderr.strip().splitlines()[-1]} | | |", flush=True)
            continue
        found = json.loads(done.stdout)
        bare = bare or found["seconds"]
        budget = f" ({BUDGET:g})", f" ({PEAK_BUDGET:g})"
        told = budget if way in WAYS[:2] else ("", "")
        print(f"| {way} | {found['seconds']:.2f} s | {found['seconds'] / bare:.2f}{told[0]} | "
              f"{found['peak']:.2f} GB{told[1]} |", flush=True)  # fmt: skip


if __name__ == "__main__":
    main()
