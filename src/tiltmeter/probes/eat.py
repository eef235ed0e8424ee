"""Embedding association tests: WEAT, SEAT, iEAT and SC-EAT.

Is one set of targets closer to the attributes A than to B, compared with another set of targets?
Each of the sets X, Y (targets), A and B (attributes) has words or images. WEAT (Caliskan et al.
2017) takes words, SEAT (May et al. 2019) words in sentences, iEAT (Steed and Caliskan 2021) images;
with images as targets and words as attributes the test is cross-modal. SC-EAT tests one target.
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
from tiltmeter.probes.probe import AuditContext, CannotRunError, Probe, unknown_word_cannot_run
from tiltmeter.probes.texts import association_tests
from tiltmeter.results import INSTANCES, combined, rows
from tiltmeter.stats.bootstrap import interval, widen_for_small_groups
from tiltmeter.stats.null import NullBand, null_band
from tiltmeter.stats.permutation import two_sample_permutation_p
from tiltmeter.stats.resampling import Resampling
from tiltmeter.stats.significance import Interval, columns
from tiltmeter.types import Floats, Groups, TextEncoder

#: Semantically bleached sentences (May et al. 2019), without their inflections.
SENTENCES = (
    "This is {}.", "That is {}.", "There is {}.", "Here is {}.", "{} is here.", "{} is there.",
)  # fmt: skip
DRAWS = 10_000  # random partitions, where there are more than a million
FEWEST = 2  # stimuli per set

#: A test: its name, and the names of the sets X, Y, A and B.
Test = tuple[str, str, str, str, str]

_VALENCE = ("valence/pleasant", "valence/unpleasant")
#: The tests of Steed and Caliskan (2021), by the folders of their release. X is the set that their
#: hypothesis associates with A.
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
#: Word sets of the list `weat` that correspond to folders of attribute images.
AS_WORDS = {
    "valence/pleasant": "pleasant-25",
    "valence/unpleasant": "unpleasant-25b",
    "gender/male": "male-terms-8",
    "gender/female": "female-terms-8",
}


@dataclass(frozen=True, eq=False)
class Stimuli:
    """One set of stimuli; `vectors` are unit vectors, stimuli x wordings x dimensions."""

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
    """One effect size with p, null band and interval; NaN where undefined, with a note why."""

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
    truth: Mapping[str, float] | None = None,
) -> tuple[pa.Table, pa.Table]:
    """WEAT of words, SEAT of sentences, and SC-EAT of each target word; needs no images.

    Parameters
    ----------
    model : TextEncoder
        The model to audit.
    words : mapping
        Word sets by name.
    tests : sequence of tuple
        Name of each test, and the names of its sets X, Y, A and B.
    sentences : sequence of str
        Templates of SEAT, with `{}` for the word; empty leaves SEAT out.
    ddof : str
        Denominator of the effect size, a key of `DDOF`.
    convention : Convention, optional
        Recorded only.
    seed : int
        Seed of permutations and bootstrap.
    resampling : Resampling, optional
        Numbers of permutations and bootstrap resamples.
    truth : mapping, optional
        The effect of each test, where it is known.

    Returns
    -------
    tuple of pyarrow.Table
        Rows of RESULTS, and no INSTANCES.

    Raises
    ------
    UnknownNameError
        If a test names an unknown set, or if `ddof` is unknown.
    CannotRunError
        If the model does not know a word.
    """
    resampling, rng = resampling or Resampling(), np.random.default_rng(seed)
    head = constants(model, "eat", "words", ddof, convention, seed)
    tables = []
    for kind, templates in (("WEAT", ("{}",)), ("SEAT", tuple(sentences))):
        if templates:
            sets = _word_sets(model, words, templates, _set_names(tests))
            resolved = [
                (name, *(sets[set_name] for set_name in set_names)) for name, *set_names in tests
            ]
            tables.append(_weat_rows(resolved, kind, head, ddof, resampling, rng, truth))
            if kind == "WEAT":
                tables.append(_sc_eat_rows(resolved, head, ddof, resampling, rng))
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
    """iEAT of images, and cross-modal tests with images as targets and words as attributes.

    Parameters
    ----------
    model : TextEncoder
        The model to audit.
    sets : Groups
        The set of each row of `vectors`; its attribute names the dataset.
    vectors : array, images x dimensions
        Image embeddings.
    words : mapping
        Word sets by name.
    tests : sequence of tuple, optional
        Name of each test, and the names of its sets X, Y, A and B. Defaults to all tests of
        iEAT whose folders are among `sets`.
    ddof : str
        Denominator of the effect size, a key of `DDOF`.
    convention : Convention, optional
        Recorded only.
    resampling : Resampling, optional
        Numbers of permutations and bootstrap resamples, and the seed.

    Returns
    -------
    tuple of pyarrow.Table
        Rows of RESULTS, and no INSTANCES.

    Raises
    ------
    UnknownNameError
        If a test names an unknown set, or if `ddof` is unknown.
    InputError
        If `tests` is None and no test of iEAT fits the sets.
    """
    resampling = resampling or Resampling()
    rng = np.random.default_rng(resampling.seed)
    head = constants(model, "ieat", sets.attribute, ddof, convention, resampling.seed)
    images = np.asarray(unit(to_numpy(vectors), "images"))
    image_sets = {
        name: Stimuli(name, "image", (name,) * int(count), images[sets.codes == code][:, None])
        for code, (name, count) in enumerate(zip(sets.names, sets.counts, strict=True))
    }
    tests = _matching_tests(image_sets, words) if tests is None else tests
    for name in _set_names(tests):
        if name not in image_sets and name not in words:
            raise UnknownNameError("set of stimuli", name, [*image_sets, *words])
    word_set_names = [name for name in _set_names(tests) if name not in image_sets]
    try:
        word_sets, unknown = _word_sets(model, words, ("{}",), word_set_names), ""
    except CannotRunError as error:  # tests of images alone still work
        word_sets, unknown = {}, str(error)
    stimuli = {**word_sets, **image_sets}
    resolved = [
        (name, *(stimuli[set_name] for set_name in set_names))
        for name, *set_names in tests
        if all(set_name in stimuli for set_name in set_names)
    ]
    undefined = [test for test in tests if not all(set_name in stimuli for set_name in test[1:])]
    tables = [_weat_rows(resolved, "iEAT", head, ddof, resampling, rng)]
    if undefined:
        tables.append(
            rows(
                len(undefined),
                **{**head, "experiment": f"iEAT image-text, {ddof}"},
                metric="weat",
                category=[test[0] for test in undefined],
                group=[f"{x} against {y}" for _, x, y, _, _ in undefined],
                target=[f"{a} against {b}" for _, _, _, a, b in undefined],
                value=[math.nan] * len(undefined),
                note=unknown,
            )
        )
    return combined(tables), combined([], INSTANCES)


def _matching_tests(
    image_sets: Mapping[str, Stimuli], words: Mapping[str, Sequence[str]]
) -> list[Test]:
    tests: list[Test] = []
    for name, x, y, a, b in IEAT:
        if x in image_sets and y in image_sets:
            if a in image_sets and b in image_sets:
                tests.append((name, x, y, a, b))
            if AS_WORDS.get(a) in words and AS_WORDS.get(b) in words:
                tests.append((name, x, y, AS_WORDS[a], AS_WORDS[b]))
    if not tests:
        raise InputError(
            f"no test of iEAT fits these sets: {', '.join(sorted(image_sets)[:8])}. Name the "
            "folders as in its release (age/young, age/old, valence/pleasant, ...), or pass "
            "tests: ieat(..., tests=[(name, X, Y, A, B)])"
        )
    return tests


def _set_names(tests: Iterable[Test]) -> list[str]:
    return list(dict.fromkeys(name for test in tests for name in test[1:]))


def _word_sets(
    model: TextEncoder,
    words: Mapping[str, Sequence[str]],
    templates: Sequence[str],
    names: Iterable[str],
) -> dict[str, Stimuli]:
    """Word sets, each word in every template; every distinct text is encoded once."""
    sets = {}
    for name in names:
        if name not in words:
            raise UnknownNameError("word set", name, words)
        sets[name] = [[t.replace("{}", word) for t in templates] for word in words[name]]
    texts = list(
        dict.fromkeys(
            text
            for texts_by_word in sets.values()
            for wordings in texts_by_word
            for text in wordings
        )
    )
    if not texts:
        return {}
    with unknown_word_cannot_run():
        vectors = np.asarray(unit(to_numpy(model.encode_texts(texts)), "texts"), np.float64)
    row_of = {text: row for row, text in enumerate(texts)}
    return {
        name: Stimuli(
            name,
            "text",
            tuple(words[name]),
            vectors[
                np.array([[row_of[text] for text in wordings] for wordings in texts_by_word], int)
            ]
            if texts_by_word
            else np.empty((0, len(templates), vectors.shape[1])),
        )
        for name, texts_by_word in sets.items()
    }


def constants(
    model: TextEncoder,
    probe: str,
    dataset: str,
    ddof: str,
    convention: Convention | None,
    seed: int,
) -> dict[str, Any]:
    """What all rows of a probe have in common."""
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
    truth: Mapping[str, float] | None = None,
) -> pa.Table:
    effects = [weat_effect(x, y, a, b, ddof, resampling, rng) for _, x, y, a, b in tests]
    return effect_rows(
        effects,
        head,
        side="greater",
        metric="weat",
        experiment=[f"{kind} {x.kind}-{a.kind}, {ddof}" for _, x, _, a, _ in tests],
        category=[test[0] for test in tests],
        group=[f"{x.name} against {y.name}" for _, x, y, _, _ in tests],
        target=[f"{a.name} against {b.name}" for *_, a, b in tests],
        truth=[(truth or {}).get(test[0]) for test in tests],
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
    """SC-EAT of every target of every test."""
    labelled, estimates = [], []
    for name, x, y, a, b in tests:
        effects = _sc_eat(np.concatenate([x.flat, y.flat]), a, b, ddof, resampling, rng)
        for label, effect in zip((*x.labels, *y.labels), effects, strict=True):
            labelled.append((name, label, a, b))
            estimates.append(effect)
    return effect_rows(
        estimates,
        head,
        side="two",
        metric="sc_eat",
        experiment=[f"SC-EAT text-{a.kind}, {ddof}" for _, _, a, _ in labelled],
        category=[name for name, *_ in labelled],
        concept=[label for _, label, _, _ in labelled],
        target=[f"{a.name} against {b.name}" for *_, a, b in labelled],
        n=[len(a) + len(b) for *_, a, b in labelled],
    )


def effect_rows(
    effects: Sequence[EffectEstimate], head: dict[str, Any], *, side: str, **columns_by_name: Any
) -> pa.Table:
    """Rows of effects; all effects of one table are one family."""
    return rows(
        len(effects),
        **head,
        **columns_by_name,
        **columns(
            [effect.value for effect in effects],
            null=NullBand(*np.array([effect.null for effect in effects], float).reshape(-1, 3).T),
            p=[effect.p for effect in effects],
            side=side,
            family="holm",
            interval=Interval(
                edges=np.array([effect.ci for effect in effects], float).reshape(-1, 2).T,
                method="bootstrap over stimuli",
            ),
        ),
        note=[effect.note for effect in effects],
    )


def _too_small(**sets: Stimuli) -> str:
    small = [
        f"{letter} ({stimuli.name}) has {len(stimuli)}"
        for letter, stimuli in sets.items()
        if len(stimuli) < FEWEST
    ]
    return (
        f"undefined: each set needs at least {FEWEST} stimuli; " + ", ".join(small) if small else ""
    )


def weat_effect(
    x: Stimuli,
    y: Stimuli,
    a: Stimuli,
    b: Stimuli,
    ddof: str,
    resampling: Resampling,
    rng: np.random.Generator,
    side: str = "greater",
) -> EffectEstimate:
    """WEAT of four sets of stimuli."""
    if too_small := _too_small(X=x, Y=y, A=a, B=b):
        return EffectEstimate(note=too_small)
    value = float(weat(x.flat, y.flat, a.flat, b.flat, ddof=ddof))
    if math.isnan(value):
        return EffectEstimate(note="undefined: all targets are equally close to A and B")
    targets = np.concatenate([x.vectors, y.vectors])
    s = np.asarray(association(targets.reshape(-1, targets.shape[-1]), a.flat, b.flat))
    # a word's sentences stay together: words are permuted, not sentences
    by_word = s.reshape(len(targets), -1).mean(axis=1)
    in_x = np.arange(len(targets)) < len(x)
    p, method, count = two_sample_permutation_p(
        by_word[None], in_x, side=side, draws=DRAWS, rng=rng
    )
    spread = s.std(ddof=DDOF[ddof])
    null = _null(by_word[None] / spread, in_x, resampling, rng)[0]
    resampled = _weat_draws(targets, len(x), a, b, DDOF[ddof], resampling.bootstraps, rng)
    # |d| is largest where X and Y do not overlap and neither varies
    share, n = len(x) / len(targets), s.size
    bound = math.sqrt((n - DDOF[ddof]) / n / (share * (1 - share)))
    stretch = widen_for_small_groups(np.array([len(x), len(y)]))[0]
    return EffectEstimate(
        value,
        float(p[0]),
        null,
        _interval(resampled, value, stretch, bound),
        _p_note(method, count),
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
    to_a = flat @ a.vectors.mean(axis=1).T @ _resampled(len(a), draws, rng).T / len(a)
    to_b = flat @ b.vectors.mean(axis=1).T @ _resampled(len(b), draws, rng).T / len(b)
    s = (to_a - to_b).reshape(n, wordings, draws)
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
    if too_small := _too_small(A=a, B=b):
        return [EffectEstimate(note=too_small)] * len(w)
    if not len(w):
        return []
    value = np.asarray(sc_eat(w, a.flat, b.flat, ddof=ddof))
    cosines = w @ np.concatenate([a.flat, b.flat]).T
    in_a = np.arange(cosines.shape[1]) < len(a)
    p, method, count = two_sample_permutation_p(cosines, in_a, side="two", draws=DRAWS, rng=rng)
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
    resampled = _divided(gap, np.sqrt(np.maximum(m2, 0) / (n - DDOF[ddof])))
    share = len(a) / n
    bound = math.sqrt((n - DDOF[ddof]) / n / (share * (1 - share)))
    stretch = widen_for_small_groups(np.array([len(a), len(b)]))[0]
    return [
        EffectEstimate(note="undefined: the target is equally close to all of A and B")
        if math.isnan(value[row])
        else EffectEstimate(
            float(value[row]),
            float(p[row]),
            null[row],
            _interval(resampled[:, row], float(value[row]), stretch, bound),
            _p_note(method, count),
        )
        for row in range(len(w))
    ]


def _null(
    values: Floats, in_a: Floats, resampling: Resampling, rng: np.random.Generator
) -> list[tuple[float, float, float]]:
    """Null band of the effects under random partitions."""
    if not resampling.permutations:
        return [(math.nan,) * 3] * len(values)
    n, n_a = len(in_a), int(in_a.sum())
    permuted = rng.permuted(np.tile(in_a, (resampling.permutations, 1)), axis=1)
    effects = (permuted / n_a - ~permuted / (n - n_a)) @ values.T
    return [(float(m), float(lo), float(hi)) for m, lo, hi in zip(*null_band(effects), strict=True)]


def _resampled(size: int, draws: int, rng: np.random.Generator) -> Floats:
    return rng.multinomial(size, np.full(size, 1 / size), size=draws).astype(float)


def _divided(top: Floats, bottom: Floats) -> Floats:
    return np.divide(top, bottom, out=np.full_like(top, np.nan), where=bottom > 1e-12)


def _interval(resampled: Floats, value: float, stretch: float, bound: float) -> tuple[float, float]:
    if not len(resampled) or np.isnan(resampled).all():
        return (math.nan,) * 2
    low, high = interval(resampled, np.asarray(value), stretch)
    return float(np.clip(low, -bound, bound)), float(np.clip(high, -bound, bound))


def _p_note(method: str, count: int | None) -> str:
    """How the p-value was computed."""
    return (
        f"p over all {count:,} partitions"
        if method == "exact"
        else f"p over {count:,} random partitions"
    )


def _run_eat(
    model: TextEncoder, data: Mapping[str, Any], context: AuditContext
) -> tuple[pa.Table, pa.Table]:
    return eat(
        model,
        **association_tests("eat", model),
        convention=context.convention,
        seed=context.seed,
        resampling=context.resampling,
    )


def _run_ieat(
    model: TextEncoder, data: Mapping[str, Any], context: AuditContext
) -> tuple[pa.Table, pa.Table]:
    stimuli = data["stimuli"]
    embedded = context.embed(stimuli)
    return ieat(
        model,
        replace(stimuli.classes[np.asarray(embedded.rows)], attribute=stimuli.name),
        embedded.vectors,
        **association_tests("ieat", model),
        convention=context.convention,
        resampling=context.resampling,
    )


EAT_PROBE = Probe("Association tests of words: WEAT, SEAT and SC-EAT.", _run_eat)
IEAT_PROBE = Probe(
    "Association tests of images with images and words: iEAT.", _run_ieat, needs=("stimuli",)
)
