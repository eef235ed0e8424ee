"""Sweeps methods and strengths over vectors that are made once.

Each candidate is fitted on one part of the images, chosen by a second and reported on a third: no
estimate that is reported was seen when it was chosen.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypedDict, Unpack

import numpy as np
import pyarrow as pa

from tiltmeter.auditing.options import (
    ComputeOptions,
    DataOptions,
    ProbeOptions,
    WordOptions,
    options_from_keywords,
    split_set_and_default,
)
from tiltmeter.debiasers.debiaser import GroupTexts, ModelEdit, Reranker
from tiltmeter.debiasers.fitted_rows import FittedRows
from tiltmeter.debiasers.fitting import debias, make_debiaser
from tiltmeter.debiasers.group_prompts import group_texts
from tiltmeter.errors import InputError, TiltmeterError, UnknownNameError
from tiltmeter.judge.frontier.evaluation import (
    BiasEvaluator,
    BootstrapValues,
    CandidateEstimate,
    CandidateRanking,
)
from tiltmeter.judge.frontier.gated import (
    CandidateEmbeddings,
    GatePrompts,
    gate_tests,
    utility_row,
)
from tiltmeter.judge.frontier.inputs import (
    embed_faces,
    intersections,
    prompts_of,
    split,
    tasks_of,
    unseen,
)
from tiltmeter.judge.frontier.leakage import LeakageResult, leakage
from tiltmeter.judge.frontier.strengths import Candidate, candidates
from tiltmeter.judge.frontier.table import CandidateResult, Frontier
from tiltmeter.judge.frontier.utility import UtilityTask, encoded
from tiltmeter.metrics.arrays import to_numpy, unit
from tiltmeter.metrics.convention import Convention
from tiltmeter.models import load_model
from tiltmeter.results import content_hash, prompt_record, run_record
from tiltmeter.stats.intervals import Z, wilson
from tiltmeter.stats.resampling import Resampling
from tiltmeter.store import Store
from tiltmeter.types import Array, Faces, Floats, Progress, Prompt, planted_world

#: Shares of the images to fit on, to choose by, and to report.
SHARES = (0.5, 0.25, 0.25)
#: Usefulness that may be given up: under one point.
MAX_COST = 0.01
BEFORE = Candidate("before", {})


@dataclass(frozen=True, eq=False)
class FittedCandidate:
    """What a candidate makes of vectors: maps for texts and for images, and how it orders."""

    texts: Any  # (vectors, texts) -> vectors
    images: Any  # (vectors, images) -> vectors
    reranker: Reranker | None
    kind: str
    seconds: float


@dataclass(frozen=True)
class SweepOptions:
    """What a sweep tries, on which images, and what the model must still be good for."""

    methods: Sequence[str] | None = None  # None: all that need no training
    strengths: Sequence[str] | None = None  # METHOD:NAME=VALUE,..., instead of a method's own
    also: Sequence[str | Faces] = ()  # other images that candidates are judged on
    captions: Any = None
    utility: Any = None
    tasks: Sequence[UtilityTask] | None = None  # made beforehand, instead of captions and utility
    prompts: str | Path | Mapping[str, Sequence[str]] | None = None  # texts that name each group
    k: int | None = None  # None: the smallest of the convention
    shares: Sequence[float] = SHARES
    max_cost: float = MAX_COST
    probes: bool = True  # ask what embeddings still reveal of a group


class FrontierKeywords(TypedDict, total=False):
    """Options of `frontier` as keywords: SweepOptions, and of an audit those that apply."""

    methods: Sequence[str] | None
    strengths: Sequence[str] | None
    also: Sequence[str | Faces]
    captions: Any
    utility: Any
    tasks: Sequence[UtilityTask] | None
    prompts: str | Path | Mapping[str, Sequence[str]] | None
    k: int | None
    shares: Sequence[float]
    max_cost: float
    probes: bool
    words: str | Sequence[Prompt] | None
    templates: Sequence[str] | None
    articles: str | None
    cross: Sequence[str] | None
    strict: bool
    convention: str | Convention
    permutations: int
    bootstraps: int
    seed: int
    store: str | Path | None
    device: str


def frontier(
    model: str | Any,
    faces: str | Faces | None = None,
    *,
    attribute: str,
    progress: Progress | None = None,
    **options: Unpack[FrontierKeywords],
) -> Frontier:
    """Fits, chooses and reports every method and strength for one attribute of `faces`.

    Parameters
    ----------
    model : str or model
        The model to correct, or its spec.
    faces : str or Faces, optional
        Images with groups. A model of the testbed has its own.
    attribute : str
        A label column, or an intersection (`race*gender`).
    progress : callable, optional
        Called with what is being done and the share that is done.
    **options
        See `SweepOptions`; and, as in an audit, `words`, `templates`, `cross` (None: the first two
        attributes), `strict`, `convention`, `permutations` (500), `bootstraps` (200), `seed`,
        `store` and `device`.
    """
    topics, rest = options_from_keywords(
        {"permutations": 500, "bootstraps": 200, "cross": None, **options},
        sweep=SweepOptions, data=DataOptions, words=WordOptions, measured=ProbeOptions,
        resampling=Resampling, compute=ComputeOptions,
    )  # fmt: skip
    for name in rest:
        raise UnknownNameError("option of frontier", name, FrontierKeywords.__annotations__)
    asked: SweepOptions = topics["sweep"]
    progress = progress or (lambda what, share: None)
    candidates(asked.methods, asked.strengths, 1)  # an unknown name is told before the work begins
    spec = model if isinstance(model, str) else getattr(model, "provenance", {}).get("spec")
    tower = load_model(model, device=topics["compute"].device) if isinstance(model, str) else model
    world = planted_world(tower)
    if faces is None and world:
        faces = f"testbed:?images=8000&strength={world.strength}&seed=1"
    if faces is None:
        raise InputError("the sweep needs images with groups: --images SPEC")
    parts = _Parts.of(tower, faces, asked, topics, attribute, progress)
    convention = topics["measured"].chosen
    convention = convention.with_(k=(min(convention.k) if asked.k is None else int(asked.k),))
    words, _, templates, articles = topics["words"].texts
    prompts = prompts_of(tower, words, templates, articles)
    said = tuple(prompt for prompt in prompts if prompt.role == "word")
    attributes = list(dict.fromkeys([attribute, *parts.groups, *parts.intersections]))
    resampling: Resampling = topics["resampling"]
    tasks = asked.tasks
    if tasks is None:
        tasks = tasks_of(
            tower, asked.captions, asked.utility, parts.store, topics["data"].strict,
            resampling.seed, progress,
        )  # fmt: skip

    def judge(part: Faces, draws: Resampling) -> BiasEvaluator:
        there = tuple(one for one in attributes if set(one.split("*")) <= set(part.groups))
        return BiasEvaluator(
            part, there, said, convention, draws.permutations, draws.bootstraps, draws.seed
        )

    sweep = _Sweep(
        tower,
        attribute,
        parts.fit,
        judge(parts.validation, Resampling(0, 0, resampling.seed)),
        judge(parts.test, resampling),
        [judge(one, resampling) for one in parts.others],
        tasks,
        encoded(tower.encode_texts, [prompt.text for prompt in said]),
        GatePrompts.of(tower, prompts, parts.test),
        resampling.seed,
        asked.probes,
        parts.rows,
    )
    before, tried, not_run, swept = sweep.run(asked, parts.present, progress)
    arguments = split_set_and_default(
        (asked, topics["data"], topics["words"], resampling),
        faces=(faces if isinstance(faces, str) else None, None),
        attribute=(attribute, None),
        convention=(topics["measured"].convention, "tiltmeter"),
    )
    meta = run_record(
        model=tower,
        spec=spec,
        data={"faces": parts.about},
        seed=resampling.seed,
        frontier={
            "attribute": attribute, "images": faces if isinstance(faces, str) else None,
            "shares": list(asked.shares), "max_cost": asked.max_cost, "attributes": attributes,
            "permutations": resampling.permutations, "bootstraps": resampling.bootstraps,
            "also": [one.name for one in parts.others], "tasks": [task.name for task in tasks],
            "parts": parts.record, "copies": parts.copies,
            "candidates": [{"method": c.method, "settings": dict(c.settings)} for c in swept],
        },
        not_run=not_run,
        arguments=arguments,
        prompts=prompt_record(said),
        convention=convention.as_dict(),
    )  # fmt: skip
    return Frontier(attribute, before, tried, asked.max_cost, meta)


@dataclass(frozen=True, eq=False)
class _Parts:
    """The images of a sweep: to fit on, to choose by, to report, and others to report on."""

    fit: Faces
    validation: Faces
    test: Faces
    others: list[Faces]
    rows: FittedRows  # that candidates are fitted on
    groups: tuple[str, ...]  # attributes
    intersections: list[str]
    present: tuple[str, ...]  # groups of the attribute that somebody belongs to
    copies: int  # images left out, since a copy was fitted on or chosen by
    about: dict[str, Any]
    store: Store | None

    @classmethod
    def of(
        cls,
        model: Any,
        faces: str | Faces,
        asked: SweepOptions,
        topics: Mapping[str, Any],
        attribute: str,
        progress: Progress,
    ) -> _Parts:
        place, strict = topics["compute"].store, topics["data"].strict
        store = None if place is None else Store(Path(place))
        data = embed_faces(model, faces, store, strict, progress)
        groups = data.attribute(attribute)  # an unknown one is named before the work begins
        others = [embed_faces(model, one, store, strict, progress) for one in asked.also]
        parts = split(len(data), asked.shares, topics["resampling"].seed)
        fit, validation, test = (data.select(rows) for rows in parts)
        rows = FittedRows.of(fit)
        # a copy of an image that was fitted on, or chosen by, is no judge
        validation, *judging = (unseen(one, rows) for one in (validation, test, *others))
        chosen_by = FittedRows.of(validation)
        test, *others = (unseen(one, chosen_by) for one in judging)
        return cls(
            fit,
            validation,
            test,
            others,
            rows,
            tuple(data.groups),
            intersections(data, topics["data"].cross),
            tuple(n for n, count in zip(groups.names, groups.counts, strict=True) if count),
            sum(map(len, parts)) - len(fit) - len(validation) - len(test),
            {"name": data.name, "images": len(data), **data.provenance},
            store,
        )

    @property
    def record(self) -> dict[str, Any]:
        named = {"fit": self.fit, "validation": self.validation, "test": self.test}
        return {
            name: {"images": len(part), "ids": content_hash(list(part.ids))}
            for name, part in named.items()
        }


@dataclass(eq=False)
class _Sweep:
    """What all candidates are given."""

    model: Any
    attribute: str
    fit: Faces
    validation: BiasEvaluator
    test: BiasEvaluator
    others: list[BiasEvaluator]
    tasks: Sequence[UtilityTask]
    texts: Floats
    asked: GatePrompts
    seed: int
    probes: bool
    rows: FittedRows

    def __post_init__(self) -> None:
        self.first: dict[str, BootstrapValues] = {}  # of the model before, by part
        self.start: dict[str, Mapping[tuple[str, str], float]] = {}
        self.hits: dict[tuple[str, int], Floats] = {}
        self.base: list[CandidateEmbeddings] = []  # of the validation and the test part
        self.told: dict[str, dict[str, dict[str, LeakageResult]]] = {}  # by the images' vectors

    def run(
        self, asked: SweepOptions, present: Sequence[str], progress: Progress
    ) -> tuple[CandidateResult, list[CandidateResult], dict[str, str], list[Candidate]]:
        """The model as it is, all candidates that could be tried, why others could not, and all."""
        groups = self.fit.attribute(self.attribute)
        sizes = dict(zip(groups.names, groups.counts.tolist(), strict=True))
        texts = group_texts(
            self.model.encode_texts, asked.prompts, tuple(present),
            testbed=planted_world(self.model) is not None,
        )  # fmt: skip
        progress("the model as it is", 0.0)
        before = self.judged(BEFORE, _unchanged())
        tried, not_run = [], {}
        swept = candidates(asked.methods, asked.strengths, min(sizes[name] for name in present))
        for at, one in enumerate(swept):
            progress(one.name, (at + 1) / (len(swept) + 1))
            try:
                made = self.corrected(one, texts, asked.captions)
                tried.append(self.judged(one, made))
            except TiltmeterError as error:
                if asked.methods is not None or asked.strengths is not None:
                    raise InputError(f"{one.name}: {error}") from None
                not_run[one.name] = str(error)
        if not tried:
            reasons = "; ".join(f"{name}: {why}" for name, why in list(not_run.items())[:3])
            raise InputError(f"none of {len(swept)} candidates could be tried: {reasons}")
        return before, tried, not_run, swept

    def corrected(self, one: Candidate, texts: GroupTexts, captions: Any) -> FittedCandidate:
        """A fitted candidate; it remembers the rows that it was fitted on."""
        made = make_debiaser(one.method, one.settings, self.model, self.seed)
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
        return FittedCandidate(
            lambda vectors, said: map_texts(vectors, said, self.model.encode_texts),
            lambda vectors, images: map_images(vectors),
            None,
            made.kind,
            seconds,
        )

    def _trained(self, made: ModelEdit, captions: Any) -> FittedCandidate:
        """An edited model: all vectors are made anew."""
        started = time.perf_counter()
        fair = debias(made, self.model, self.fit, attribute=self.attribute, captions=captions,
                      seed=self.seed)  # fmt: skip
        seconds = time.perf_counter() - started
        return FittedCandidate(
            lambda vectors, said: fair.encode_texts(list(said)),
            lambda vectors, images: vectors if images is None else fair.encode_images(images),
            None,
            made.kind,
            seconds,
        )

    def judged(self, one: Candidate, made: FittedCandidate) -> CandidateResult:
        """All estimates of a candidate."""
        said = [prompt.text for prompt in self.test.prompts]
        texts = _unit(made.texts(self.texts, said))
        seen_ = {id(judge): _unit(made.images(judge.faces.vectors, judge.faces.images))
                 for judge in (self.validation, self.test, *self.others)}  # fmt: skip

        def shown(judge: BiasEvaluator) -> CandidateRanking:
            by_score = CandidateRanking.by_score(texts, seen_[id(judge)])
            if made.reranker is None:
                return by_score
            by = getattr(made.reranker, "attribute_", None)
            groups = None if by is None else judge.faces.attribute(by)
            order = made.reranker.order(by_score.scores, groups, judge.k, vectors=seen_[id(judge)])
            return CandidateRanking(np.asarray(order, np.int32), None)

        validation = self.validation.means(shown(self.validation))
        estimates = []
        for at, judge in enumerate((self.test, *self.others)):
            found, drawn = judge.estimates(
                shown(judge), self.first.get(str(at)), self.start.get(str(at))
            )
            if one is BEFORE:
                self.first[str(at)] = drawn
                self.start[str(at)] = {key: estimate.value for key, estimate in found.items()}
            estimates.append(found)
        utility, cost, changes = (
            ({}, np.nan, ([], [])) if made.reranker else self._utility(one, made)
        )
        gates: tuple[pa.Table, ...] = ()
        if made.reranker is None:
            parts = [self.asked.candidate(part, texts, seen_[id(part)], made.texts)
                     for part in (self.validation, self.test)]  # fmt: skip
            self.base = self.base or parts
            gates = tuple(
                gate_tests(part, self.base[at], parts[at], changes[at])
                for at, part in enumerate((self.validation, self.test))
            )
        return CandidateResult(
            one, made.kind, made.reranker is not None and _asks_labels(made.reranker),
            made.seconds, validation, cost, estimates[0], utility,
            {} if made.reranker or not self.probes
            else self._leaks(seen_[id(self.validation)], seen_[id(self.test)]),
            {judge.faces.name: found
             for judge, found in zip(self.others, estimates[1:], strict=True)},
            **({"gates": gates} if gates else {}),
        )  # fmt: skip

    def _utility(
        self, one: Candidate, made: FittedCandidate
    ) -> tuple[dict[str, CandidateEstimate], float, tuple[list[Any], list[Any]]]:
        """Utility on the test half, the largest loss on the other one, and changes for the gate."""
        found: dict[str, CandidateEstimate] = {}
        losses: list[float] = []
        changes: tuple[list[Any], list[Any]] = [], []
        for task in self.tasks:
            texts = _unit(made.texts(task.encoded, task.texts))
            images = _unit(made.images(task.vectors, task.images))
            for half in (0, 1):
                hits = task.hits(texts, images, half)
                first = self.hits.setdefault((task.name, half), hits)  # of the model before
                change = hits - first
                changes[half].extend([utility_row(task, first, hits)] if task.counts else [])
                if half == 0:
                    losses += [-float(change.mean())] if task.counts else []
                    continue
                n = len(hits)
                low, high = wilson(np.array(hits.sum()), np.array(n))
                spread = Z * float(change.std(ddof=1)) / n**0.5
                mean = float(change.mean())
                same = one is BEFORE
                found[task.name] = CandidateEstimate(
                    float(hits.mean()), n, float(low), float(high), "Wilson", change=mean,
                    change_low=np.nan if same else mean - spread,
                    change_high=np.nan if same else mean + spread,
                    note=None if task.counts else "some pictures are told by their group alone",
                )  # fmt: skip
        return found, max(losses, default=np.nan), changes

    def _leaks(self, learn: Floats, asked: Floats) -> dict[str, dict[str, LeakageResult]]:
        """Probes learn from the validation part and are asked about the test part."""
        key = content_hash(asked)
        if key not in self.told:  # methods that change texts alone leave the images as they were
            self.told[key] = {
                name: leakage(learn, self.validation.faces.groups[name], asked,
                              self.test.faces.groups[name], seed=self.seed)
                for name in self.test.faces.groups
            }  # fmt: skip
        return self.told[key]


def _unchanged(reranker: Reranker | None = None, seconds: float = 0.0) -> FittedCandidate:
    """Vectors as they are; a re-ranker changes none."""
    return FittedCandidate(
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
