"""Estimates from counts: shares, pointwise mutual information and lift, with intervals."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
import pyarrow as pa
from scipy.special import bdtr, bdtrc, ndtr

from tiltmeter.corpus.caption_lift import CaptionLift, lift_of_caption_counts
from tiltmeter.corpus.counting import CaptionCounts, count
from tiltmeter.corpus.vocabulary import GroupWordKind, Vocabulary
from tiltmeter.results import combined, rows
from tiltmeter.stats.intervals import Z, wilson
from tiltmeter.stats.multiplicity import benjamini_hochberg, holm
from tiltmeter.stats.significance import Interval, columns
from tiltmeter.stimuli import Word
from tiltmeter.types import Floats, Ints

PROBE = "captions"
#: Captions that name several groups count for each of them, or for none.
BOTH, EXCLUSIVE = "both", "exclusive"

#: Example captions that contain a word and a group word.
SAMPLES = pa.schema(
    [
        ("concept", pa.string()),
        ("experiment", pa.string()),  # pronoun, noun, race
        ("attribute", pa.string()),
        ("group", pa.string()),
        ("rank", pa.int64()),
        ("caption", pa.string()),
        ("image", pa.string()),  # its URL or path, where the files have it
    ]
)


def estimate_rows(
    counts: CaptionCounts,
    listed: Sequence[Word],
    neutral: Sequence[Word] = (),
    *,
    dataset: str,
    seed: int,
) -> pa.Table:
    """All rows of results.

    The metrics are:

    frequency     share of all captions that contain the word
    named         share of the word's captions that name any group, by a pronoun, noun or race word
    group_share   of a word's captions that name groups, the share that names this one; `null_mean`
                  is the same share over all captions, against which p is binomial
    pmi           ln P(word, group) / P(word) P(group), over all captions
    lift          how many times as often the word occurs with a group as with the others, in nats
                  (`caption_lift`); only captions that name one of the groups
    """
    vocabulary = counts.vocabulary
    number = {text: term_rows for term_rows, text in enumerate(vocabulary.terms)}
    term_rows = np.array([number[word.text] for word in listed])
    constants = {
        "probe": PROBE, "dataset": dataset, "concept": [word.text for word in listed],
        "category": [word.category or None for word in listed], "seed": seed,
    }  # fmt: skip
    self_named = contained_signs(vocabulary)[term_rows]
    n, everything = counts.captions[term_rows], int(counts.captions[-1])
    frequency = columns(
        n / everything, interval=Interval(edges=wilson(n, np.full(len(n), everything)))
    )
    tables = [
        rows(len(term_rows), metric="frequency", **frequency, ci_method="wilson", n=everything,
             n_group=n, **constants)
    ]  # fmt: skip
    for sign, kind in enumerate(vocabulary.signs):
        same_axis = vocabulary.sign_axes == vocabulary.sign_axes[sign]
        names_axis = self_named[:, same_axis].any(axis=1)
        for mode, table in ((BOTH, counts.containing), (EXCLUSIVE, counts.exclusive)):
            experiment = f"{kind.axis} {mode}"
            tables.append(
                _shares(table, sign, same_axis, term_rows, names_axis, kind, experiment, constants)
            )
        tables.append(_pmi(counts, sign, term_rows, self_named[:, sign], kind, constants))
    for axis, axis_name in enumerate(vocabulary.axes):
        tables.append(_named(counts.named[term_rows, axis], n, axis_name, constants))
        signs = vocabulary.signs_of(axis_name)
        tables += _lift(
            counts, signs, term_rows, neutral, self_named[:, signs].any(axis=1), constants
        )
    return with_families(combined(tables))


def with_families(table: pa.Table) -> pa.Table:
    """The rows with adjusted p-values: a family is all words and groups of a metric and axis.

    Of two groups one has the p-value of the other, so each word counts once.
    """
    keys = list(zip(table["metric"].to_pylist(), table["experiment"].to_pylist(), strict=True))
    p = table["p"].to_numpy(zero_copy_only=False)
    groups = np.array(table["group"].to_pylist(), dtype=object)
    adjusted = {name: np.full(len(p), np.nan) for name in ("p_fwer", "p_bh")}
    for key in dict.fromkeys(keys):
        family = np.array([one == key for one in keys])
        two = len(set(groups[family])) == 2
        counted = family & (groups == groups[family][0]) if two else family
        for name, adjust in (("p_fwer", holm), ("p_bh", benjamini_hochberg)):
            adjusted[name][family] = np.tile(adjust(p[counted]), 2 if two else 1)
    for name, values in adjusted.items():
        at = table.schema.get_field_index(name)
        column = pa.array(values, pa.float64(), from_pandas=True)
        table = table.set_column(at, table.schema.field(at), column)
    return table


def binomial_p(k: Ints, n: Ints, share: float) -> Floats:
    """Twice the smaller tail of a binomial distribution: k of n captions, where `share` is usual.

    >>> binomial_p(np.array([9, 5]), np.array([10, 10]), 0.5).round(3)
    array([0.021, 1.   ])
    """
    tails = np.fmin(bdtr(k, n, share), np.where(k > 0, bdtrc(k - 1.0, n, share), 1.0))
    return np.asarray(np.where(n > 0, np.minimum(1.0, 2 * tails), np.nan))


@cache
def contained_signs(vocabulary: Vocabulary) -> Ints:
    """Signs that a term itself contains (terms x signs): a delivery man is always a man."""
    forms = [(form, item) for form, item in vocabulary.items if item < len(vocabulary.terms)]
    contained = np.zeros((len(vocabulary.terms), len(vocabulary.signs)), bool)
    named = {word for form, item in vocabulary.items if item >= len(vocabulary.terms)
             for word in form}  # fmt: skip
    for form, item in forms:
        if named.intersection(form):
            text = pa.array([" ".join(form)])
            contained[item] |= count(text, vocabulary).containing[-1] > 0
    return contained


def lift_of(
    counts: CaptionCounts, signs: Ints | list[int], term_rows: Ints, neutral: Sequence[Word]
) -> CaptionLift:
    """Lift of some terms with the groups of some signs."""
    number = {text: row for row, text in enumerate(counts.vocabulary.terms)}
    named = np.asarray(contained_signs(counts.vocabulary)[:, signs].any(axis=1))
    reference = [number[word.text] for word in neutral if not named[number[word.text]]]
    only = counts.exclusive[:, signs]
    return lift_of_caption_counts(only[term_rows], only[reference], only[-1])


def neutral_counts(counts: CaptionCounts, neutral: Sequence[Word]) -> dict[str, int]:
    """Neutral words that lift is relative to, by axis; 0 where it is relative to all captions."""
    vocabulary, none = counts.vocabulary, np.empty(0, int)
    return {axis: lift_of(counts, vocabulary.signs_of(axis), none, neutral).neutral
            for axis in vocabulary.axes}  # fmt: skip


def samples(counts: CaptionCounts, listed: Sequence[Word]) -> pa.Table:
    """The example captions of each listed word and sign."""
    shown = {word.text for word in listed}
    terms, signs = counts.vocabulary.terms, counts.vocabulary.signs
    sample_rows = [
        {"concept": terms[term], "experiment": signs[sign].axis,
         "attribute": signs[sign].attribute, "group": signs[sign].group,
         "rank": rank, "caption": caption, "image": image or None}
        for (term, sign), captions in sorted(counts.samples.items())
        if terms[term] in shown
        for rank, (_, caption, image) in enumerate(captions)
    ]  # fmt: skip
    return pa.Table.from_pylist(sample_rows, schema=SAMPLES)


def _named(k: Ints, n: Ints, axis: str, constants: dict[str, object]) -> pa.Table:
    return rows(
        len(k), metric="named", experiment=axis,
        **columns(_over(k, n), interval=Interval(edges=wilson(k, n))),
        ci_method="wilson", n=n, n_group=k, note=_notes((n == 0, "no caption contains the word")),
        **constants,
    )  # fmt: skip


def _shares(
    table: Ints,
    sign: int,
    same_axis: Ints,
    term_rows: Ints,
    self_named: Ints,
    kind: GroupWordKind,
    experiment: str,
    constants: dict[str, object],
) -> pa.Table:
    k, n = table[term_rows, sign], table[term_rows][:, same_axis].sum(axis=1)
    value = np.where(self_named, np.nan, _over(k, n))
    note = _notes((self_named, "the word itself names a group"),
                  (n == 0, "no caption of the word names a group"))  # fmt: skip
    base = float(_over(table[-1:, sign], table[-1:, same_axis].sum(axis=1))[0])
    return rows(
        len(term_rows), metric="group_share", experiment=experiment, attribute=kind.attribute,
        group=kind.group, null_mean=base,
        **columns(value, side="two", p=binomial_p(k, n, base),
                  interval=Interval(edges=wilson(k, n))),
        ci_method="wilson", n=n, n_group=k, note=note, **constants,
    )  # fmt: skip


def _pmi(
    counts: CaptionCounts,
    sign: int,
    term_rows: Ints,
    self_named: Ints,
    kind: GroupWordKind,
    constants: dict[str, object],
) -> pa.Table:
    k, n = counts.containing[term_rows, sign], counts.captions[term_rows]
    group, everything = counts.containing[-1, sign], counts.captions[-1]
    with np.errstate(divide="ignore", invalid="ignore"):
        value = np.log(k) - np.log(n) - np.log(group) + np.log(everything)
    value = np.where(self_named | (k == 0), np.nan, value)
    note = _notes((self_named, "the word itself names the group"),
                  (k == 0, "no caption contains the word and names the group"))  # fmt: skip
    return rows(
        len(term_rows), metric="pmi", experiment=kind.axis, attribute=kind.attribute,
        group=kind.group, value=value, ideal=0.0, n=n, n_group=k, note=note, **constants,
    )  # fmt: skip


def _lift(
    counts: CaptionCounts,
    signs: list[int],
    term_rows: Ints,
    neutral: Sequence[Word],
    self_named: Ints,
    constants: dict[str, object],
) -> list[pa.Table]:
    """Lift of words with each group of one axis."""
    found = lift_of(counts, signs, term_rows, neutral)
    only = counts.exclusive[:, signs]
    n = only[term_rows].sum(axis=1)
    none = n == 0
    note = _notes((self_named, "the word itself names a group"),
                  (none, "no caption of the word names only one of the groups"))  # fmt: skip
    value = np.where((self_named | none)[:, None], np.nan, found.value)
    half = Z * found.error
    tables = []
    for column, sign in enumerate(signs):
        kind = counts.vocabulary.signs[sign]
        edges = (value[:, column] - half[:, column], value[:, column] + half[:, column])
        tables.append(
            rows(len(term_rows), metric="lift", experiment=kind.axis, attribute=kind.attribute,
                 group=kind.group, ideal=0.0,
                 **columns(value[:, column], side="two",
                           p=2 * ndtr(-np.abs(value[:, column]) / found.error[:, column]),
                           interval=Interval(edges=edges)), ci_method="wald",
                 n=n, n_group=only[term_rows, column], note=note, **constants)
        )  # fmt: skip
    return tables


def _over(k: Ints, n: Ints) -> Floats:
    return np.asarray(np.divide(k, n, out=np.full(len(k), np.nan), where=n > 0))


def _notes(*reasons: tuple[Ints, str]) -> list[str | None]:
    """The first reason that applies to each row."""
    return [
        next((text for holds, text in reasons if holds[row]), None)
        for row in range(len(reasons[0][0]))
    ]
