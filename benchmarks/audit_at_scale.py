"""The whole audit at the size of FairFace's training set: `python -m benchmarks.audit_at_scale`.

A store of 86,744 x 512 vectors, 400 words and 200 placebos in 8 templates each, by gender, race and
race x gender; every metric with its null, maxT over 1,000 shared permutations, and intervals. The
embeddings are random: what is measured takes as long with a bias as without. The audit runs in a
process of its own, so that its peak memory is its own. `--part 8` takes an eighth of the words and
neutral words, with as many templates; `--device cuda` draws on a GPU.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from benchmarks.cases import peak_memory, unit_vectors

IMAGES, WORDS, PLACEBOS, TEMPLATES, CATEGORIES = 86_744, 400, 200, 8, 9
PERMUTATIONS = 1000
FEW, FEW_IMAGES = 20, 5000  # a part of the words and of the images that needs all kernels
#: FairFace's training set.
RACES = {
    "White": 16_527, "Latino_Hispanic": 13_367, "Indian": 12_319, "East Asian": 12_287,
    "Black": 12_233, "Southeast Asian": 10_795, "Middle Eastern": 9_216,
}  # fmt: skip
GENDERS = {"Male": 45_986, "Female": 40_758}
ATTRIBUTES = ("gender", "race", "race*gender")
#: Steps that are timed: where they are, and what they do.
STEPS = {
    "store.StoredEmbeddings.vectors": "reading the store",
    "engine.ranking.in_memory.draw_sample": "drawing labels and weights",
    "metrics.numpy_kernels.rank": "ranking",
    "stats.kernels.standardized": "standardised scores",
    "stats.kernels.relabelled_sums": "C-ASC relabelled",
    "stats.kernels.weighted_sums": "C-ASC resampled",
    "stats.kernels.relabelled_top_counts": "top k relabelled",
    "stats.kernels.weighted_top_counts": "top k resampled",
    "stats.kernels.relabelled_ndkl": "NDKL relabelled",
    "stats.kernels.weighted_ndkl": "NDKL resampled",
    "stats.permuted_labels.PermutedLabels.top_counts": "top k relabelled",
    "stats.permuted_labels.PermutedLabels.ndkl": "NDKL relabelled",
    "probes.ranking.rows.tabulate": "p, maxT, intervals, rows",
    "probes.ranking.rows.wording": "variance shares",
    "probes.ranking.probe.instances": "table of top images",
    "results.Run.save": "writing the run",
}


def store(place: Path) -> tuple[Any, list[str]]:
    """A store whose model has seen every image, and the images' names in it."""
    from tiltmeter.store import Store

    model = SimpleNamespace(name="random", fingerprint="seed 0")
    return Store(place).space(model), [f"{row:064x}" for row in range(IMAGES)]


def fill(place: Path) -> None:
    space, items = store(place)
    rng = np.random.default_rng(0)
    for start in range(0, IMAGES, 4096):
        some = items[start : start + 4096]
        space.add(some, unit_vectors(rng, len(some)))


def prompts(part: int) -> list[Any]:
    """Words, of several categories, and placebos, each in all templates."""
    from tiltmeter.types import Prompt

    kinds = (("word", WORDS // part), ("placebo", PLACEBOS // part))
    return [
        Prompt(
            f"template {template} {role} {word}",
            f"{role} {word}",
            f"template {template} {{}}",
            f"category {word % CATEGORIES}" if role == "word" else "",
            role,
            "noun",
        )
        for role, count in kinds
        for word in range(count)
        for template in range(TEMPLATES)
    ]


def now() -> np.ndarray:
    """Seconds on the clock, and of the processor: other work on it is in the first alone."""
    return np.array([time.perf_counter(), time.process_time()])


@contextmanager
def timed(seconds: dict[str, np.ndarray], device: str) -> Iterator[None]:
    """Adds up what each step takes; a step within a step counts for itself alone."""
    inner, before = [np.zeros(2)], []

    def watched(work: Callable[..., Any], step: str) -> Callable[..., Any]:
        def run(*given: Any, **options: Any) -> Any:
            started = now()
            inner.append(np.zeros(2))
            try:
                return work(*given, **options)
            finally:
                took = now() - started
                seconds[step] = seconds.get(step, np.zeros(2)) + took - inner.pop()
                inner[-1] = inner[-1] + took

        return run

    for path, step in STEPS.items():
        if device != "cpu":
            path = path.replace("numpy_kernels", "torch_kernels")
            path = path.replace("stats.kernels", "stats.torch_kernels")
        module, *parts = re.split(r"\.(?=[A-Z])|\.(?=\w+$)", f"tiltmeter.{path}")
        home: Any = import_module(module)
        for part in parts[:-1]:
            home = getattr(home, part)
        before.append((home, parts[-1], getattr(home, parts[-1])))
        setattr(home, parts[-1], watched(getattr(home, parts[-1]), step))
    try:
        yield
    finally:
        for home, name, work in before:
            setattr(home, name, work)


def audit(place: Path, part: int, bootstraps: int, device: str, few: bool) -> dict[str, Any]:
    """Seconds by step, seconds of processor time, and GB at the most."""
    from tiltmeter.metrics.convention import get_convention
    from tiltmeter.models.embeddings import StoredTexts
    from tiltmeter.probes.lift.probe import lift_table
    from tiltmeter.probes.lift.scale import Scale
    from tiltmeter.probes.ranking.probe import RankingBackend, ranking
    from tiltmeter.results import Run
    from tiltmeter.stats.resampling import Resampling
    from tiltmeter.types import Faces, Groups

    rng = np.random.default_rng(1)
    groups = {
        name: Groups(
            rng.permutation(np.repeat(np.arange(len(of)), list(of.values()))), tuple(of), name
        )
        for name, of in {"gender": GENDERS, "race": RACES}.items()
    }
    texts = prompts(part)
    model = StoredTexts("random", texts, unit_vectors(rng, len(texts)))

    def faces_of(rows: int) -> Faces:
        space, items = store(place)
        return Faces(
            tuple(str(row) for row in range(rows)),
            {name: one[:rows] for name, one in groups.items()},
            space.vectors(items[:rows]),
        )

    def run(rows: int, resampling: Resampling) -> Any:
        return ranking(
            model,
            faces_of(rows),
            prompts=prompts(max(FEW, part)) if rows < IMAGES else texts,
            attributes=ATTRIBUTES,
            convention=get_convention("tiltmeter"),
            resampling=resampling,
            backend=RankingBackend(device=device),
        )

    def lift(faces: Faces) -> None:
        lift_table(
            model,
            faces,
            prompts=texts,
            attributes=ATTRIBUTES,
            convention=get_convention("tiltmeter"),
            scale=Scale(100.0, "checkpoint"),
            resampling=Resampling(0, bootstraps),
        )

    if few:  # for the cache of compiled kernels, which a process of its own has to read
        run(FEW_IMAGES, Resampling(PERMUTATIONS, bootstraps))
        return {}
    run(2000, Resampling(2, 2))
    seconds: dict[str, np.ndarray] = {}
    started = now()
    with timed(seconds, device):
        found = run(IMAGES, Resampling(PERMUTATIONS, bootstraps))
        Run(found.table, {}, {"ranking": found.instances}).save(place / "run")
    took, peak = now() - started, peak_memory()
    lift(faces_of(2000))
    faces = faces_of(IMAGES)  # those of the audit, which has found its images by then
    started = now()
    lift(faces)
    lifted = now() - started
    seconds["scores, values and the rest"] = took - sum(seconds.values(), np.zeros(2))
    return {
        "seconds": took.tolist(),
        "lift": lifted.tolist(),
        "peak": peak,
        "steps": {step: each.tolist() for step, each in seconds.items()},
        "rows": found.table.num_rows,
        "instances": found.instances.num_rows,
    }


def main() -> None:
    ask = argparse.ArgumentParser(description=__doc__)
    ask.add_argument("--part", type=int, default=1, help="1: all words; 8: an eighth of them")
    ask.add_argument("--bootstraps", type=int, default=400, help="0: no intervals")
    ask.add_argument("--device", default="cpu", help="cuda: scores, rankings and draws there")
    ask.add_argument("--few", action="store_true", help=argparse.SUPPRESS)
    ask.add_argument("--store", type=Path, help=argparse.SUPPRESS)
    given = ask.parse_args()
    if given.store is not None:
        print(json.dumps(audit(given.store, given.part, given.bootstraps, given.device, given.few)))
        return
    with tempfile.TemporaryDirectory() as place:
        fill(Path(place))
        for few in (["--few"], []):
            done = subprocess.run(
                [sys.executable, "-m", "benchmarks.audit_at_scale", "--store", place,
                 "--part", str(given.part), "--bootstraps", str(given.bootstraps),
                 "--device", given.device, *few],
                stdout=subprocess.PIPE, text=True, check=True,
            )  # fmt: skip
    found = json.loads(done.stdout)
    words, placebos = WORDS // given.part, PLACEBOS // given.part
    print(
        f"{words} words and {placebos} placebos x {TEMPLATES} templates, {IMAGES:,} images, on "
        f"{given.device}: {found['seconds'][0]:.0f} s "
        f"({found['seconds'][1]:.0f} s of all cores together), "
        f"{found['peak']:.2f} GB at the most; {found['rows']:,} rows of results, "
        f"{found['instances']:,} top images\n"
    )
    share = found["lift"][0] / found["seconds"][0]
    print(f"Lift with its verdicts, on the CPU: {found['lift'][0]:.1f} s more ({share:.0%})\n")
    print("| step | seconds | of all cores together | share |\n|---|---|---|---|")
    for step, (took, cores) in sorted(found["steps"].items(), key=lambda one: -one[1][1]):
        print(f"| {step} | {took:.1f} | {cores:.1f} | {cores / found['seconds'][1]:.0%} |")


if __name__ == "__main__":
    main()
