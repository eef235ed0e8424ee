"""Counts to figures: shares, pointwise mutual information and log-odds, each with its interval."""

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
#: Captions that name both groups count on each side, or on none.
BOTH, EXCLUSIVE = "both", "exclusive"
HALF = 0.5  # added to each count of a log-odds, so that 0 is no infinity (Haldane and Anscombe)

#: Captions for the eye: some that hold a word and a sign of a group.
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


def figures(tally: CaptionCounts, listed: Sequence[Word], *, dataset: str, seed: int) -> pa.Table:
    """All rows of results. Metrics:

    frequency     share of all captions that hold the word
    named         share of the word's captions that name any group, by a pronoun, noun or race word
    group_share   of a word's captions that name groups, the share that names this one; `null_mean`
                  is the same share over all captions
    pmi           ln P(word, group) / P(word) P(group), over all captions
    log_odds      ln of women's to men's captions, less the same over all captions; only captions
                  that name one of them
    """
    vocabulary = tally.vocabulary
    number = {text: at for at, text in enumerate(vocabulary.terms)}
    at = np.array([number[word.text] for word in listed])
    same = {
        "probe": PROBE, "dataset": dataset, "concept": [word.text for word in listed],
        "category": [word.category or None for word in listed], "seed": seed,
    }  # fmt: skip
    own = own_signs(vocabulary)[at]
    n, everything = tally.captions[at], int(tally.captions[-1])
    of_all = columns(
        n / everything, interval=Interval(edges=wilson(n, np.full(len(n), everything)))
    )
    tables = [
        rows(len(at), metric="frequency", **of_all, ci_method="wilson", n=everything, n_group=n,
             **same)
    ]  # fmt: skip
    for sign, what in enumerate(vocabulary.signs):
        alike = vocabulary.sign_axes == vocabulary.sign_axes[sign]
        for counting, table in ((BOTH, tally.holding), (EXCLUSIVE, tally.only)):
            tables.append(_shares(table, sign, alike, at, own[:, alike].any(axis=1), what,
                                  f"{what.axis} {counting}", same))  # fmt: skip
        tables.append(_pmi(tally, sign, at, own[:, sign], what, same))
    for axis, axis_name in enumerate(vocabulary.axes):
        tables.append(_named(tally.named[at, axis], n, axis_name, same))
        pair = [s for s, what in enumerate(vocabulary.signs) if what.axis == axis_name]
        if len(pair) == 2:
            what = vocabulary.signs[pair[1]]
            tables.append(_log_odds(tally.only, pair, at, own[:, pair].any(axis=1), what, same))
    return combined(tables)


def own_signs(vocabulary: Vocabulary) -> Ints:
    """Which signs each term holds in itself (terms x signs): a delivery man is always a man."""
    texts = [" ".join(form) for form, item in vocabulary.items if item < len(vocabulary.terms)]
    items = [item for _, item in vocabulary.items if item < len(vocabulary.terms)]
    own = np.zeros((len(vocabulary.terms), len(vocabulary.signs)), bool)
    for text, item in zip(texts, items, strict=True):
        own[item] |= count(pa.array([text]), vocabulary).holding[-1] > 0
    return own


def samples(tally: CaptionCounts) -> pa.Table:
    """The captions kept for each word and sign."""
    terms, signs = tally.vocabulary.terms, tally.vocabulary.signs
    listed = [
        {"concept": terms[term], "experiment": signs[sign].axis,
         "attribute": signs[sign].attribute, "group": signs[sign].group,
         "rank": rank, "caption": caption}
        for (term, sign), kept in sorted(tally.samples.items())
        for rank, (_, caption) in enumerate(kept)
    ]  # fmt: skip
    return pa.Table.from_pylist(listed, schema=SAMPLES)


def _named(k: Ints, n: Ints, axis: str, same: dict[str, object]) -> pa.Table:
    return rows(
        len(k), metric="named", experiment=axis,
        **columns(_over(k, n), interval=Interval(edges=wilson(k, n))),
        ci_method="wilson", n=n, n_group=k, note=_notes((n == 0, "no caption holds the word")),
        **same,
    )  # fmt: skip


def _shares(
    table: Ints,
    sign: int,
    alike: Ints,
    at: Ints,
    own: Ints,
    what: GroupWordKind,
    experiment: str,
    same: dict[str, object],
) -> pa.Table:
    k, n = table[at, sign], table[at][:, alike].sum(axis=1)
    value = np.where(own, np.nan, _over(k, n))
    note = _notes((own, "the word itself names a group"),
                  (n == 0, "no caption of the word names a group"))  # fmt: skip
    base = _over(table[-1:, sign], table[-1:, alike].sum(axis=1))[0]
    return rows(
        len(at), metric="group_share", experiment=experiment, attribute=what.attribute,
        group=what.group, null_mean=float(base),
        **columns(value, interval=Interval(edges=wilson(k, n))),
        ci_method="wilson", n=n, n_group=k, note=note, **same,
    )  # fmt: skip


def _pmi(
    tally: CaptionCounts,
    sign: int,
    at: Ints,
    own: Ints,
    what: GroupWordKind,
    same: dict[str, object],
) -> pa.Table:
    k, n = tally.holding[at, sign], tally.captions[at]
    group, everything = tally.holding[-1, sign], tally.captions[-1]
    with np.errstate(divide="ignore", invalid="ignore"):
        value = np.log(k) - np.log(n) - np.log(group) + np.log(everything)
    value = np.where(own | (k == 0), np.nan, value)
    note = _notes((own, "the word itself names the group"),
                  (k == 0, "no caption holds the word and names the group"))  # fmt: skip
    return rows(
        len(at), metric="pmi", experiment=what.axis, attribute=what.attribute, group=what.group,
        value=value, ideal=0.0, n=n, n_group=k, note=note, **same,
    )  # fmt: skip


def _log_odds(
    only: Ints, pair: list[int], at: Ints, own: Ints, what: GroupWordKind, same: dict[str, object]
) -> pa.Table:
    """Of the second group against the first."""
    a, b = only[at, pair[1]], only[at, pair[0]]
    base = np.log((only[-1, pair[1]] + HALF) / (only[-1, pair[0]] + HALF))
    value = np.log((a + HALF) / (b + HALF)) - base
    half = Z * np.sqrt(1 / (a + HALF) + 1 / (b + HALF))
    hidden = own | (a + b == 0)
    value = np.where(hidden, np.nan, value)
    note = _notes((own, "the word itself names a group"),
                  (a + b == 0, "no caption of the word names one group alone"))  # fmt: skip
    return rows(
        len(at), metric="log_odds", experiment=what.axis, attribute=what.attribute,
        group=what.group, ideal=0.0,
        **columns(value, interval=Interval(edges=(value - half, value + half))),
        ci_method="wald", n=a + b, n_group=a, note=note, **same,
    )  # fmt: skip


def _over(k: Ints, n: Ints) -> Floats:
    return np.asarray(np.divide(k, n, out=np.full(len(k), np.nan), where=n > 0))


def _notes(*reasons: tuple[Ints, str]) -> list[str | None]:
    """For each row the first reason that holds."""
    return [
        next((text for holds, text in reasons if holds[row]), None)
        for row in range(len(reasons[0][0]))
    ]
