"""Estimates from counts: shares, pointwise mutual information and log-odds, with intervals."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from tiltmeter.corpus.counting import CaptionCounts, count
from tiltmeter.corpus.vocabulary import GroupWordKind, Vocabulary
from tiltmeter.results import combined, rows
from tiltmeter.stats.intervals import Z, wilson
from tiltmeter.stats.significance import Interval, columns
from tiltmeter.stimuli import Word
from tiltmeter.types import Floats, Ints

PROBE = "captions"
#: Captions that name several groups count for each of them, or for none.
BOTH, EXCLUSIVE = "both", "exclusive"
HALF = 0.5  # added to each count of log-odds, which makes them finite (Haldane and Anscombe)

#: Example captions that contain a word and a group word.
SAMPLES = pa.schema(
    [
        ("concept", pa.string()),
        ("experiment", pa.string()),  # pronoun, noun, race
        ("attribute", pa.string()),
        ("group", pa.string()),
        ("rank", pa.int64()),
        ("caption", pa.string()),
    ]
)


def estimate_rows(
    counts: CaptionCounts, listed: Sequence[Word], *, dataset: str, seed: int
) -> pa.Table:
    """All rows of results.

    The metrics are:

    frequency     share of all captions that contain the word
    named         share of the word's captions that name any group, by a pronoun, noun or race word
    group_share   of a word's captions that name groups, the share that names this one; `null_mean`
                  is the same share over all captions
    pmi           ln P(word, group) / P(word) P(group), over all captions
    log_odds      ln of women's to men's captions, minus the same over all captions; only captions
                  that name one of the two
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
        for mode, table in ((BOTH, counts.holding), (EXCLUSIVE, counts.only)):
            experiment = f"{kind.axis} {mode}"
            tables.append(
                _shares(table, sign, same_axis, term_rows, names_axis, kind, experiment, constants)
            )
        tables.append(_pmi(counts, sign, term_rows, self_named[:, sign], kind, constants))
    for axis, axis_name in enumerate(vocabulary.axes):
        tables.append(_named(counts.named[term_rows, axis], n, axis_name, constants))
        pair = [s for s, kind in enumerate(vocabulary.signs) if kind.axis == axis_name]
        if len(pair) == 2:
            kind = vocabulary.signs[pair[1]]
            tables.append(
                _log_odds(
                    counts.only, pair, term_rows, self_named[:, pair].any(axis=1), kind, constants
                )
            )
    return combined(tables)


def contained_signs(vocabulary: Vocabulary) -> Ints:
    """Signs that a term itself contains (terms x signs): a delivery man is always a man."""
    texts = [" ".join(form) for form, item in vocabulary.items if item < len(vocabulary.terms)]
    items = [item for _, item in vocabulary.items if item < len(vocabulary.terms)]
    contained = np.zeros((len(vocabulary.terms), len(vocabulary.signs)), bool)
    for text, item in zip(texts, items, strict=True):
        contained[item] |= count(pa.array([text]), vocabulary).holding[-1] > 0
    return contained


def samples(counts: CaptionCounts) -> pa.Table:
    """The example captions of each word and sign."""
    terms, signs = counts.vocabulary.terms, counts.vocabulary.signs
    sample_rows = [
        {"concept": terms[term], "experiment": signs[sign].axis,
         "attribute": signs[sign].attribute, "group": signs[sign].group,
         "rank": rank, "caption": caption}
        for (term, sign), captions in sorted(counts.samples.items())
        for rank, (_, caption) in enumerate(captions)
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
    base = _over(table[-1:, sign], table[-1:, same_axis].sum(axis=1))[0]
    return rows(
        len(term_rows), metric="group_share", experiment=experiment, attribute=kind.attribute,
        group=kind.group, null_mean=float(base),
        **columns(value, interval=Interval(edges=wilson(k, n))),
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
    k, n = counts.holding[term_rows, sign], counts.captions[term_rows]
    group, everything = counts.holding[-1, sign], counts.captions[-1]
    with np.errstate(divide="ignore", invalid="ignore"):
        value = np.log(k) - np.log(n) - np.log(group) + np.log(everything)
    value = np.where(self_named | (k == 0), np.nan, value)
    note = _notes((self_named, "the word itself names the group"),
                  (k == 0, "no caption contains the word and names the group"))  # fmt: skip
    return rows(
        len(term_rows), metric="pmi", experiment=kind.axis, attribute=kind.attribute,
        group=kind.group, value=value, ideal=0.0, n=n, n_group=k, note=note, **constants,
    )  # fmt: skip


def _log_odds(
    only: Ints,
    pair: list[int],
    term_rows: Ints,
    self_named: Ints,
    kind: GroupWordKind,
    constants: dict[str, object],
) -> pa.Table:
    """Log-odds of the second group against the first."""
    a, b = only[term_rows, pair[1]], only[term_rows, pair[0]]
    base = np.log((only[-1, pair[1]] + HALF) / (only[-1, pair[0]] + HALF))
    value = np.log((a + HALF) / (b + HALF)) - base
    half = Z * np.sqrt(1 / (a + HALF) + 1 / (b + HALF))
    undefined = self_named | (a + b == 0)
    value = np.where(undefined, np.nan, value)
    note = _notes((self_named, "the word itself names a group"),
                  (a + b == 0, "no caption of the word names only one of the groups"))  # fmt: skip
    return rows(
        len(term_rows), metric="log_odds", experiment=kind.axis, attribute=kind.attribute,
        group=kind.group, ideal=0.0,
        **columns(value, interval=Interval(edges=(value - half, value + half))),
        ci_method="wald", n=a + b, n_group=a, note=note, **constants,
    )  # fmt: skip


def _over(k: Ints, n: Ints) -> Floats:
    return np.asarray(np.divide(k, n, out=np.full(len(k), np.nan), where=n > 0))


def _notes(*reasons: tuple[Ints, str]) -> list[str | None]:
    """The first reason that applies to each row."""
    return [
        next((text for holds, text in reasons if holds[row]), None)
        for row in range(len(reasons[0][0]))
    ]
