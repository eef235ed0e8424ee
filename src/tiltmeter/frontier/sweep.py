"""Sweeps methods and strengths over vectors that are made once.

Each candidate is fitted on one part of the images, chosen by a second and reported on a third: no
figure that is reported was seen when it was chosen.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tiltmeter.debias.debiaser import GroupTexts, ModelEdit, Reranker
from tiltmeter.debias.naming import group_texts
from tiltmeter.debias.rows import Rows
from tiltmeter.debiasing import debias, made_from
from tiltmeter.errors import InputError, TiltmeterError
from tiltmeter.frontier.judging import Draws, Figure, Judge, Shown
from tiltmeter.frontier.leakage import Told, leakage
from tiltmeter.frontier.material import (
    crossings,
    prompts_of,
    seen,
    split,
    tasks_of,
    unseen,
)
from tiltmeter.frontier.strengths import Candidate, candidates
from tiltmeter.frontier.table import Frontier, Judged
from tiltmeter.frontier.usefulness import Task, encoded
from tiltmeter.metrics.arrays import to_numpy, unit
from tiltmeter.metrics.convention import Convention, get_convention
from tiltmeter.models import load_model
from tiltmeter.results import content_hash, prompt_record, run_record
from tiltmeter.stats.intervals import Z, wilson
from tiltmeter.store import Store
from tiltmeter.types import Array, Faces, Floats, Progress, Prompt

#: Shares of the images to fit on, to choose by, and to report.
SHARES = (0.5, 0.25, 0.25)
#: Usefulness that may be given up: under one point.
LOSS = 0.01
BEFORE = Candidate("before", {})


@dataclass(frozen=True, eq=False)
class Corrected:
    """What a candidate makes of vectors: maps for texts and for images, and how it orders."""

    texts: Any  # (vectors, texts) -> vectors
    images: Any  # (vectors, images) -> vectors
    reranker: Reranker | None
    kind: str
    seconds: float


def frontier(
    model: str | Any,
    faces: str | Faces | None = None,
    *,
    attribute: str,
    methods: Sequence[str] | None = None,
    strengths: Sequence[str] | None = None,
    also: Sequence[str | Faces] = (),
    words: str | Sequence[Prompt] | None = None,
    templates: Sequence[str] | None = None,
    cross: Sequence[str] | None = None,
    captions: Any = None,
    utility: Any = None,
    tasks: Sequence[Task] | None = None,
    prompts: str | Path | Mapping[str, Sequence[str]] | None = None,
    convention: str | Convention = "tiltmeter",
    k: int | None = None,
    shares: Sequence[float] = SHARES,
    loss: float = LOSS,
    probes: bool = True,
    permutations: int = 500,
    bootstraps: int = 200,
    seed: int = 0,
    store: str | Path | None = None,
    device: str = "auto",
    strict: bool = False,
    progress: Progress | None = None,
) -> Frontier:
    """Fits, chooses and reports every method and strength for one attribute of `faces`.

    `also` are other data sets that the candidates are judged on too. `captions` and `utility` say
    what the model must still be good for (the testbed has its own), or `tasks` made beforehand.
    Bias is measured for every attribute and their crossing (`cross` names others); `probes` asks
    what the vectors still tell.
    """
    tell = progress or (lambda what, share: None)
    candidates(methods, strengths, 1)  # an unknown name is told before the work begins
    spec = model if isinstance(model, str) else getattr(model, "provenance", {}).get("spec")
    tower = load_model(model, device=device) if isinstance(model, str) else model
    testbed = str(getattr(tower, "name", "")).startswith("testbed:")
    if faces is None and testbed:
        faces = f"testbed:?images=8000&strength={tower.provenance['strength']}&seed=1"
    if faces is None:
        raise InputError("the sweep needs images with groups: --images SPEC")
    images = faces if isinstance(faces, str) else None
    chosen = get_convention(convention)
    chosen = chosen.with_(k=(min(chosen.k) if k is None else int(k),))
    kept = None if store is None else Store(Path(store))
    data = seen(tower, faces, kept, strict, tell)
    groups = data.attribute(attribute)  # an unknown one is named before the work begins
    others = [seen(tower, one, kept, strict, tell) for one in also]
    asked = list(dict.fromkeys([attribute, *data.groups, *crossings(data, cross)]))
    parts = split(len(data), shares, seed)
    fit, validation, test = (data.only(rows) for rows in parts)
    rows = Rows.of(fit)
    # a copy of a picture that was fitted on, or chosen by, is no judge
    validation, *judging = (unseen(one, rows) for one in (validation, test, *others))
    chosen_by = Rows.of(validation)
    test, *others = (unseen(one, chosen_by) for one in judging)
    said = prompts_of(tower, words, templates)
    if tasks is None:
        tasks = tasks_of(tower, testbed, captions, utility, kept, strict, seed, tell)

    def judge(part: Faces, draws: bool) -> Judge:
        there = tuple(one for one in asked if set(one.split("*")) <= set(part.groups))
        return Judge(part, there, said, chosen, permutations if draws else 0,
                     bootstraps if draws else 0, seed)  # fmt: skip

    judges = judge(validation, False), judge(test, True), [judge(one, True) for one in others]
    sweep = _Sweep(
        tower, attribute, fit, *judges, tasks, encoded(tower.encode_texts, [p.text for p in said]),
        seed, probes, rows,
    )  # fmt: skip
    fewest = int(fit.attribute(attribute).counts[groups.counts > 0].min())
    names = tuple(n for n, count in zip(groups.names, groups.counts, strict=True) if count)
    texts = group_texts(tower.encode_texts, prompts, names, testbed=testbed)
    tell("the model as it is", 0.0)
    before = sweep.judged(BEFORE, _unchanged())
    tried, not_run = [], {}
    swept = candidates(methods, strengths, fewest)
    for at, one in enumerate(swept):
        tell(one.name, (at + 1) / (len(swept) + 1))
        try:
            made = sweep.corrected(one, texts, captions)
            tried.append(sweep.judged(one, made))
        except TiltmeterError as error:
            if methods is not None or strengths is not None:
                raise InputError(f"{one.name}: {error}") from None
            not_run[one.name] = str(error)
    if not tried:
        reasons = "; ".join(f"{name}: {why}" for name, why in list(not_run.items())[:3])
        raise InputError(f"none of {len(swept)} candidates could be tried: {reasons}")
    meta = run_record(
        model=tower,
        spec=spec,
        data={"faces": {"name": data.name, "images": len(data), **data.provenance}},
        seed=seed,
        frontier={
            "attribute": attribute, "images": images, "shares": list(shares), "loss": loss,
            "attributes": asked, "permutations": permutations, "bootstraps": bootstraps,
            "also": [one.name for one in others], "tasks": [task.name for task in tasks],
            "parts": {name: {"images": len(part), "ids": content_hash(list(part.ids))}
                      for name, part in zip(("fit", "validation", "test"),
                                            (fit, validation, test), strict=True)},
            "copies": sum(map(len, parts)) - len(fit) - len(validation) - len(test),
            "candidates": [{"method": c.method, "settings": dict(c.settings)} for c in swept],
        },
        not_run=not_run,
        prompts=prompt_record(said),
        convention=chosen.as_dict(),
    )  # fmt: skip
    return Frontier(attribute, before, tried, loss, meta)


@dataclass(eq=False)
class _Sweep:
    """What all candidates are given."""

    model: Any
    attribute: str
    fit: Faces
    validation: Judge
    test: Judge
    others: list[Judge]
    tasks: Sequence[Task]
    texts: Floats
    seed: int
    probes: bool
    rows: Rows

    def __post_init__(self) -> None:
        self.first: dict[str, Draws] = {}  # of the model before, by part
        self.start: dict[str, Mapping[tuple[str, str], float]] = {}
        self.hits: dict[tuple[str, int], Floats] = {}
        self.told: dict[str, dict[str, dict[str, Told]]] = {}  # by the images' vectors

    def corrected(self, one: Candidate, texts: GroupTexts, captions: Any) -> Corrected:
        """A fitted candidate; it remembers the rows that it was fitted on."""
        made = made_from(one.method, one.settings, self.model, self.seed)
        if isinstance(made, ModelEdit):
            return self._trained(made, captions)
        started = time.perf_counter()
        groups = self.fit.attribute(self.attribute)
        made.fit(self.fit.vectors, groups, texts=texts)  # type: ignore[attr-defined]
        made.rows_ = self.rows
        seconds = time.perf_counter() - started
        if isinstance(made, Reranker):
            return _unchanged(made, seconds)
        map_texts, map_images = made.map_texts, made.map_images  # type: ignore[attr-defined]
        return Corrected(
            lambda vectors, said: map_texts(vectors, said, self.model.encode_texts),
            lambda vectors, images: map_images(vectors),
            None,
            made.kind,
            seconds,
        )

    def _trained(self, made: ModelEdit, captions: Any) -> Corrected:
        """An edited model: all vectors are made anew."""
        started = time.perf_counter()
        fair = debias(made, self.model, self.fit, attribute=self.attribute, captions=captions,
                      seed=self.seed)  # fmt: skip
        seconds = time.perf_counter() - started
        return Corrected(
            lambda vectors, said: fair.encode_texts(list(said)),
            lambda vectors, images: vectors if images is None else fair.encode_images(images),
            None,
            made.kind,
            seconds,
        )

    def judged(self, one: Candidate, made: Corrected) -> Judged:
        """All figures of a candidate."""
        said = [prompt.text for prompt in self.test.prompts]
        texts = _unit(made.texts(self.texts, said))
        seen_ = {id(judge): _unit(made.images(judge.faces.vectors, judge.faces.images))
                 for judge in (self.validation, self.test, *self.others)}  # fmt: skip

        def shown(judge: Judge) -> Shown:
            by_score = Shown.by_score(texts, seen_[id(judge)])
            if made.reranker is None:
                return by_score
            by = getattr(made.reranker, "attribute_", None)
            groups = None if by is None else judge.faces.attribute(by)
            order = made.reranker.order(by_score.scores, groups, judge.k, vectors=seen_[id(judge)])
            return Shown(np.asarray(order, np.int32), None)

        validation = self.validation.means(shown(self.validation))
        figures = []
        for at, judge in enumerate((self.test, *self.others)):
            found, drawn = judge.figures(
                shown(judge), self.first.get(str(at)), self.start.get(str(at))
            )
            if one is BEFORE:
                self.first[str(at)] = drawn
                self.start[str(at)] = {key: figure.value for key, figure in found.items()}
            figures.append(found)
        useful, cost = ({}, np.nan) if made.reranker else self._useful(one, made)
        return Judged(
            one, made.kind, made.reranker is not None and _asks_labels(made.reranker),
            made.seconds, validation, cost, figures[0], useful,
            {} if made.reranker or not self.probes
            else self._leaks(seen_[id(self.validation)], seen_[id(self.test)]),
            {judge.faces.name: found
             for judge, found in zip(self.others, figures[1:], strict=True)},
        )  # fmt: skip

    def _useful(self, one: Candidate, made: Corrected) -> tuple[dict[str, Figure], float]:
        """What it is still good for, on the test half; and the largest loss on the other half."""
        found: dict[str, Figure] = {}
        losses: list[float] = []
        for task in self.tasks:
            texts = _unit(made.texts(task.encoded, task.texts))
            images = _unit(made.images(task.vectors, task.images))
            for half in (0, 1):
                hits = task.hits(texts, images, half)
                first = self.hits.setdefault((task.name, half), hits)  # of the model before
                change = hits - first
                if half == 0:
                    losses += [-float(change.mean())] if task.counts else []
                    continue
                n = len(hits)
                low, high = wilson(np.array(hits.sum()), np.array(n))
                spread = Z * float(change.std(ddof=1)) / n**0.5
                mean = float(change.mean())
                same = one is BEFORE
                found[task.name] = Figure(
                    float(hits.mean()), n, float(low), float(high), "Wilson", change=mean,
                    change_low=np.nan if same else mean - spread,
                    change_high=np.nan if same else mean + spread,
                    note=None if task.counts else "some pictures are told by their group alone",
                )  # fmt: skip
        return found, max(losses, default=np.nan)

    def _leaks(self, learn: Floats, asked: Floats) -> dict[str, dict[str, Told]]:
        """Probes learn from the validation part and are asked about the test part."""
        key = content_hash(asked)
        if key not in self.told:  # methods that change texts alone leave the images as they were
            self.told[key] = {
                name: leakage(learn, self.validation.faces.groups[name], asked,
                              self.test.faces.groups[name], seed=self.seed)
                for name in self.test.faces.groups
            }  # fmt: skip
        return self.told[key]


def _unchanged(reranker: Reranker | None = None, seconds: float = 0.0) -> Corrected:
    """Vectors as they are; a re-ranker changes none."""
    return Corrected(
        lambda vectors, said: vectors,
        lambda vectors, images: vectors,
        reranker,
        "none" if reranker is None else reranker.kind,
        seconds,
    )


def _asks_labels(reranker: Reranker) -> bool:
    return getattr(reranker, "attribute_", None) is not None


def _unit(vectors: Array) -> Floats:
    return np.asarray(unit(np.asarray(to_numpy(vectors))), np.float32)
