"""Are these nearer to those than the others are? WEAT, SEAT, iEAT and SC-EAT.

Two sets of targets (X, Y) and two of attributes (A, B), each of words or of images. WEAT
(Caliskan et al. 2017) takes words, SEAT (May et al. 2019) words in sentences, iEAT (Steed and
Caliskan 2021) images; where X and Y are images and A and B words, the test goes across the two
towers. SC-EAT is the test of a single target.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from tiltmeter.errors import InputError, UnknownNameError
from tiltmeter.metrics.arrays import to_numpy, unit
from tiltmeter.metrics.association import DDOF, association, sc_eat, weat
from tiltmeter.metrics.convention import Convention
from tiltmeter.probes.probe import AuditContext, CannotRunError, Probe, words_known
from tiltmeter.probes.texts import association_tests
from tiltmeter.results import INSTANCES, combined, rows
from tiltmeter.stats.bootstrap import interval, small_sample_stretch
from tiltmeter.stats.null import NullBand, band_of
from tiltmeter.stats.permutation import two_sample_p
from tiltmeter.stats.resampling import Resampling
from tiltmeter.stats.significance import Interval, columns
from tiltmeter.types import Floats, Groups, TextEncoder

#: Sentences that say nothing but the word (May et al. 2019). They inflect theirs; these do not.
SENTENCES = (
    "This is {}.", "That is {}.", "There is {}.", "Here is {}.", "{} is here.", "{} is there.",
)  # fmt: skip
DRAWS = 10_000  # random partitions, where there are more than a million
FEWEST = 2  # stimuli of a set

#: A test: its name, and the names of the sets X, Y, A and B.
Test = tuple[str, str, str, str, str]

_VALENCE = ("valence/pleasant", "valence/unpleasant")
#: The tests of Steed and Caliskan (2021), by the folders of their release. X is the set that their
#: hypothesis puts nearer to A, as there.
IEAT: tuple[Test, ...] = (
    ("Insect-Flower", "insect-flower/flower", "insect-flower/insect", *_VALENCE),
    ("Weapon", "weapon/black", "weapon/white", "weapon/tool", "weapon/weapon"),
    ("Native", "native/euro", "native/native", "native/us", "native/world"),
    ("Asian", "asian/european-american", "asian/asian-american", "asian/american", "asian/foreign"),
    ("Weight", "weight/thin", "weight/fat", *_VALENCE),
    ("Skin-Tone", "skin-tone/light", "skin-tone/dark", *_VALENCE),
    ("Disability", "disabled/disabled", "disabled/abled", *_VALENCE),
    ("President - Kennedy", "presidents/kennedy", "presidents/trump", *_VALENCE),
    ("President - Clinton", "presidents/clinton", "presidents/trump", *_VALENCE),
    ("President - Bush", "presidents/bush", "presidents/trump", *_VALENCE),
    ("President - Lincoln", "presidents/lincoln", "presidents/trump", *_VALENCE),
    ("Religion", "religion/christianity", "religion/judaism", *_VALENCE),
    ("Sexuality", "sexuality/gay", "sexuality/straight", *_VALENCE),
    ("Race", "race/african-american", "race/european-american", *_VALENCE),
    ("Arab-Muslim", "arab-muslim/other-people", "arab-muslim/arab-muslim", *_VALENCE),
    ("Age", "age/young", "age/old", *_VALENCE),
    ("Gender-Science", "gender/science", "gender/liberal-arts", "gender/male", "gender/female"),
    ("Gender-Career", "gender/career", "gender/family", "gender/male", "gender/female"),
)
#: Sets of words, of the list `weat`, that say what a folder of attributes shows.
AS_WORDS = {
    "valence/pleasant": "pleasant-25",
    "valence/unpleasant": "unpleasant-25b",
    "gender/male": "male-terms-8",
    "gender/female": "female-terms-8",
}


@dataclass(frozen=True, eq=False)
class Stimuli:
    """One set: unit vectors of each stimulus in each wording, stimuli x wordings x dimensions."""

    name: str
    kind: str  # text or image
    labels: tuple[str, ...]
    vectors: Floats

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def flat(self) -> Floats:
        return self.vectors.reshape(-1, self.vectors.shape[-1])


@dataclass(frozen=True)
class EffectEstimate:
    """One effect with all that stands beside it; NaN where undefined, and `note` says why."""

    value: float = math.nan
    p: float = math.nan
    null: tuple[float, float, float] = (math.nan,) * 3
    ci: tuple[float, float] = (math.nan,) * 2
    note: str = ""


def eat(
    model: TextEncoder,
    *,
    words: Mapping[str, Sequence[str]],
    tests: Sequence[Test],
    sentences: Sequence[str] = SENTENCES,
    ddof: str = "caliskan",
    convention: Convention | None = None,
    seed: int = 0,
    resampling: Resampling | None = None,
) -> tuple[pa.Table, pa.Table]:
    """WEAT of words, SEAT of sentences, and SC-EAT of each target word; needs no images.

    `words` are the sets by name. `sentences` without any leaves SEAT out.
    """
    resampling, rng = resampling or Resampling(), np.random.default_rng(seed)
    head = _head(model, "eat", "words", ddof, convention, seed)
    tables = []
    for kind, templates in (("WEAT", ("{}",)), ("SEAT", tuple(sentences))):
        if templates:
            sets = _of_words(model, words, templates, _used(tests))
            chosen = [(name, *(sets[one] for one in named)) for name, *named in tests]
            tables.append(_weat_rows(chosen, kind, head, ddof, resampling, rng))
            if kind == "WEAT":
                tables.append(_sc_eat_rows(chosen, head, ddof, resampling, rng))
    return combined(tables), combined([], INSTANCES)


def ieat(
    model: TextEncoder,
    sets: Groups,
    vectors: Floats,
    *,
    words: Mapping[str, Sequence[str]],
    tests: Sequence[Test] | None = None,
    ddof: str = "caliskan",
    convention: Convention | None = None,
    resampling: Resampling | None = None,
) -> tuple[pa.Table, pa.Table]:
    """iEAT of images, and across the towers: images as targets, words as attributes.

    `sets` says to which set each row of `vectors` belongs; its attribute names the dataset. The
    sets of `tests` are those, else sets of `words`; by default every test of iEAT is made whose
    folders are there.
    """
    resampling = resampling or Resampling()
    rng = np.random.default_rng(resampling.seed)
    head = _head(model, "ieat", sets.attribute, ddof, convention, resampling.seed)
    pictures = np.asarray(unit(to_numpy(vectors), "images"))
    seen = {
        name: Stimuli(name, "image", (name,) * int(count), pictures[sets.codes == code][:, None])
        for code, (name, count) in enumerate(zip(sets.names, sets.counts, strict=True))
    }
    tests = _fitting(seen, words) if tests is None else tests
    for name in _used(tests):
        if name not in seen and name not in words:
            raise UnknownNameError("set of stimuli", name, [*seen, *words])
    spoken = [name for name in _used(tests) if name not in seen]
    try:
        sets_of_words, unknown = _of_words(model, words, ("{}",), spoken), ""
    except CannotRunError as error:  # images alone can still be measured
        sets_of_words, unknown = {}, str(error)
    there = {**sets_of_words, **seen}
    chosen = [
        (name, *(there[one] for one in named))
        for name, *named in tests
        if all(one in there for one in named)
    ]
    lost = [test for test in tests if not all(one in there for one in test[1:])]
    tables = [_weat_rows(chosen, "iEAT", head, ddof, resampling, rng)]
    if lost:
        tables.append(
            rows(
                len(lost),
                **{**head, "experiment": f"iEAT image-text, {ddof}"},
                metric="weat",
                category=[test[0] for test in lost],
                group=[f"{x} against {y}" for _, x, y, _, _ in lost],
                target=[f"{a} against {b}" for _, _, _, a, b in lost],
                value=[math.nan] * len(lost),
                note=f"the model {unknown}",
            )
        )
    return combined(tables), combined([], INSTANCES)


def _fitting(seen: Mapping[str, Stimuli], words: Mapping[str, Sequence[str]]) -> list[Test]:
    found: list[Test] = []
    for name, x, y, a, b in IEAT:
        if x in seen and y in seen:
            if a in seen and b in seen:
                found.append((name, x, y, a, b))
            if AS_WORDS.get(a) in words and AS_WORDS.get(b) in words:
                found.append((name, x, y, AS_WORDS[a], AS_WORDS[b]))
    if not found:
        raise InputError(
            f"none of iEAT's tests fits these sets: {', '.join(sorted(seen)[:8])}. Name the "
            "folders as its release does (age/young, age/old, valence/pleasant, ...), or say "
            "what to compare: ieat(..., tests=[(name, X, Y, A, B)])"
        )
    return found


def _used(tests: Iterable[Test]) -> list[str]:
    return list(dict.fromkeys(name for test in tests for name in test[1:]))


def _of_words(
    model: TextEncoder,
    words: Mapping[str, Sequence[str]],
    templates: Sequence[str],
    names: Iterable[str],
) -> dict[str, Stimuli]:
    """Sets of words, each in every template; all are encoded in one go, each text once."""
    sets = {}
    for name in names:
        if name not in words:
            raise UnknownNameError("set of words", name, words)
        sets[name] = [[t.replace("{}", word) for t in templates] for word in words[name]]
    texts = list(dict.fromkeys(text for some in sets.values() for one in some for text in one))
    if not texts:
        return {}
    with words_known():
        vectors = np.asarray(unit(to_numpy(model.encode_texts(texts)), "texts"), np.float64)
    at = {text: row for row, text in enumerate(texts)}
    return {
        name: Stimuli(
            name,
            "text",
            tuple(words[name]),
            vectors[np.array([[at[text] for text in one] for one in some], int)]
            if some
            else np.empty((0, len(templates), vectors.shape[1])),
        )
        for name, some in sets.items()
    }


def _head(
    model: TextEncoder,
    probe: str,
    dataset: str,
    ddof: str,
    convention: Convention | None,
    seed: int,
) -> dict[str, Any]:
    if ddof not in DDOF:
        raise UnknownNameError("ddof", ddof, DDOF)
    return {
        "probe": probe,
        "model": getattr(model, "name", type(model).__name__),
        "dataset": dataset,
        "convention": None if convention is None else convention.name,
        "seed": seed,
        "ideal": 0.0,
    }


def _weat_rows(
    tests: Sequence[tuple[Any, ...]],
    kind: str,
    head: dict[str, Any],
    ddof: str,
    resampling: Resampling,
    rng: np.random.Generator,
) -> pa.Table:
    found = [_weat(x, y, a, b, ddof, resampling, rng) for _, x, y, a, b in tests]
    return _rows(
        found,
        head,
        side="greater",
        metric="weat",
        experiment=[f"{kind} {x.kind}-{a.kind}, {ddof}" for _, x, _, a, _ in tests],
        category=[test[0] for test in tests],
        group=[f"{x.name} against {y.name}" for _, x, y, _, _ in tests],
        target=[f"{a.name} against {b.name}" for *_, a, b in tests],
        n=[sum(map(len, test[1:])) for test in tests],
        n_group=[len(test[1]) for test in tests],
    )


def _sc_eat_rows(
    tests: Sequence[tuple[Any, ...]],
    head: dict[str, Any],
    ddof: str,
    resampling: Resampling,
    rng: np.random.Generator,
) -> pa.Table:
    """Every target of every test, alone."""
    named, found = [], []
    for name, x, y, a, b in tests:
        effects = _sc_eat(np.concatenate([x.flat, y.flat]), a, b, ddof, resampling, rng)
        for label, one in zip((*x.labels, *y.labels), effects, strict=True):
            named.append((name, label, a, b))
            found.append(one)
    return _rows(
        found,
        head,
        side="two",
        metric="sc_eat",
        experiment=[f"SC-EAT text-{a.kind}, {ddof}" for _, _, a, _ in named],
        category=[name for name, *_ in named],
        concept=[label for _, label, _, _ in named],
        target=[f"{a.name} against {b.name}" for *_, a, b in named],
        n=[len(a) + len(b) for *_, a, b in named],
    )


def _rows(
    found: Sequence[EffectEstimate], head: dict[str, Any], *, side: str, **named: Any
) -> pa.Table:
    """All effects of one table are one family."""
    return rows(
        len(found),
        **head,
        **named,
        **columns(
            [one.value for one in found],
            null=NullBand(*np.array([one.null for one in found], float).reshape(-1, 3).T),
            p=[one.p for one in found],
            side=side,
            family="holm",
            interval=Interval(
                edges=np.array([one.ci for one in found], float).reshape(-1, 2).T,
                method="bootstrap over stimuli",
            ),
        ),
        note=[one.note for one in found],
    )


def _too_small(**sets: Stimuli) -> str:
    few = [f"{at} ({one.name}) has {len(one)}" for at, one in sets.items() if len(one) < FEWEST]
    return f"undefined: each set takes at least {FEWEST} stimuli; " + ", ".join(few) if few else ""


def _weat(
    x: Stimuli,
    y: Stimuli,
    a: Stimuli,
    b: Stimuli,
    ddof: str,
    resampling: Resampling,
    rng: np.random.Generator,
) -> EffectEstimate:
    if few := _too_small(X=x, Y=y, A=a, B=b):
        return EffectEstimate(note=few)
    value = float(weat(x.flat, y.flat, a.flat, b.flat, ddof=ddof))
    if math.isnan(value):
        return EffectEstimate(note="undefined: all targets are equally near to A and to B")
    targets = np.concatenate([x.vectors, y.vectors])
    s = np.asarray(association(targets.reshape(-1, targets.shape[-1]), a.flat, b.flat))
    # a word's sentences belong together: words are permuted, not sentences
    by_word = s.reshape(len(targets), -1).mean(axis=1)
    in_x = np.arange(len(targets)) < len(x)
    p, method, count = two_sample_p(by_word[None], in_x, side="greater", draws=DRAWS, rng=rng)
    spread = s.std(ddof=DDOF[ddof])
    null = _null(by_word[None] / spread, in_x, resampling, rng)[0]
    drawn = _weat_draws(targets, len(x), a, b, DDOF[ddof], resampling.bootstraps, rng)
    # |d| is largest where X and Y do not overlap and neither varies
    share, n = len(x) / len(targets), s.size
    bound = math.sqrt((n - DDOF[ddof]) / n / (share * (1 - share)))
    stretch = small_sample_stretch(np.array([len(x), len(y)]))[0]
    return EffectEstimate(
        value, float(p[0]), null, _interval(drawn, value, stretch, bound), _how(method, count)
    )


def _weat_draws(
    targets: Floats,
    n_x: int,
    a: Stimuli,
    b: Stimuli,
    ddof: int,
    draws: int,
    rng: np.random.Generator,
) -> Floats:
    """WEAT of resampled stimuli; each set keeps its size, a word its sentences."""
    n, wordings, _ = targets.shape
    flat = targets.reshape(n * wordings, -1)
    near = flat @ a.vectors.mean(axis=1).T @ _resampled(len(a), draws, rng).T / len(a)
    far = flat @ b.vectors.mean(axis=1).T @ _resampled(len(b), draws, rng).T / len(b)
    s = (near - far).reshape(n, wordings, draws)
    s -= s.mean(axis=(0, 1))
    weight = np.concatenate(
        [_resampled(n_x, draws, rng), _resampled(n - n_x, draws, rng)], axis=1
    ).T  # targets x draws
    sums = weight * s.sum(axis=1)
    total = n * wordings
    gap = sums[:n_x].sum(axis=0) / (n_x * wordings) - sums[n_x:].sum(axis=0) / (
        total - n_x * wordings
    )
    m2 = (weight * (s**2).sum(axis=1)).sum(axis=0) - sums.sum(axis=0) ** 2 / total
    return _divided(gap, np.sqrt(np.maximum(m2, 0) / (total - ddof)))


def _sc_eat(
    w: Floats,
    a: Stimuli,
    b: Stimuli,
    ddof: str,
    resampling: Resampling,
    rng: np.random.Generator,
) -> list[EffectEstimate]:
    if few := _too_small(A=a, B=b):
        return [EffectEstimate(note=few)] * len(w)
    if not len(w):
        return []
    value = np.asarray(sc_eat(w, a.flat, b.flat, ddof=ddof))
    cosines = w @ np.concatenate([a.flat, b.flat]).T
    in_a = np.arange(cosines.shape[1]) < len(a)
    p, method, count = two_sample_p(cosines, in_a, side="two", draws=DRAWS, rng=rng)
    spread = cosines.std(axis=1, ddof=DDOF[ddof], keepdims=True)
    null = _null(cosines / np.where(spread > 0, spread, np.nan), in_a, resampling, rng)
    weight = np.concatenate(
        [
            _resampled(len(a), resampling.bootstraps, rng),
            _resampled(len(b), resampling.bootstraps, rng),
        ],
        axis=1,
    )
    c = cosines - cosines.mean(axis=1, keepdims=True)
    n = len(in_a)
    gap = (weight * in_a / len(a) - weight * ~in_a / len(b)) @ c.T  # draws x targets
    m2 = weight @ (c**2).T - (weight @ c.T) ** 2 / n
    drawn = _divided(gap, np.sqrt(np.maximum(m2, 0) / (n - DDOF[ddof])))
    share = len(a) / n
    bound = math.sqrt((n - DDOF[ddof]) / n / (share * (1 - share)))
    stretch = small_sample_stretch(np.array([len(a), len(b)]))[0]
    return [
        EffectEstimate(note="undefined: the target is equally near to all of A and B")
        if math.isnan(value[at])
        else EffectEstimate(
            float(value[at]),
            float(p[at]),
            null[at],
            _interval(drawn[:, at], float(value[at]), stretch, bound),
            _how(method, count),
        )
        for at in range(len(w))
    ]


def _null(
    values: Floats, in_a: Floats, resampling: Resampling, rng: np.random.Generator
) -> list[tuple[float, float, float]]:
    """Band of the effects that partitions drawn at random give."""
    if not resampling.permutations:
        return [(math.nan,) * 3] * len(values)
    n, n_a = len(in_a), int(in_a.sum())
    dealt = rng.permuted(np.tile(in_a, (resampling.permutations, 1)), axis=1)
    drawn = (dealt / n_a - ~dealt / (n - n_a)) @ values.T
    return [(float(m), float(lo), float(hi)) for m, lo, hi in zip(*band_of(drawn), strict=True)]


def _resampled(size: int, draws: int, rng: np.random.Generator) -> Floats:
    return rng.multinomial(size, np.full(size, 1 / size), size=draws).astype(float)


def _divided(top: Floats, bottom: Floats) -> Floats:
    return np.divide(top, bottom, out=np.full_like(top, np.nan), where=bottom > 1e-12)


def _interval(drawn: Floats, value: float, stretch: float, bound: float) -> tuple[float, float]:
    if not len(drawn) or np.isnan(drawn).all():
        return (math.nan,) * 2
    low, high = interval(drawn, np.asarray(value), stretch)
    return float(np.clip(low, -bound, bound)), float(np.clip(high, -bound, bound))


def _how(method: str, count: int | None) -> str:
    """How the p-value came about."""
    return (
        f"p over all {count:,} partitions"
        if method == "exact"
        else f"p over {count:,} random partitions"
    )


def _run_eat(
    model: TextEncoder, data: Mapping[str, Any], setting: AuditContext
) -> tuple[pa.Table, pa.Table]:
    return eat(
        model,
        **association_tests("eat"),
        convention=setting.convention,
        seed=setting.seed,
        resampling=setting.resampling,
    )


def _run_ieat(
    model: TextEncoder, data: Mapping[str, Any], setting: AuditContext
) -> tuple[pa.Table, pa.Table]:
    stimuli = data["stimuli"]
    found = setting.see(stimuli)
    return ieat(
        model,
        replace(stimuli.classes[np.asarray(found.rows)], attribute=stimuli.name),
        found.vectors,
        **association_tests("ieat"),
        convention=setting.convention,
        resampling=setting.resampling,
    )


OF_WORDS = Probe("Which words lie near which? WEAT, SEAT and SC-EAT of words.", _run_eat)
OF_PICTURES = Probe(
    "Which pictures lie near which pictures and words? iEAT.", _run_ieat, needs=("stimuli",)
)
