"""Who fills the top k of each word and category (So-B-IT, Figure 7), read off a finished run.

The run keeps the top images of every word by id and group; these are counted here. Equal scores
keep the order of the images.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow.compute as pc

from tiltmeter.errors import InputError
from tiltmeter.metrics.ranking import entropy_of_shares
from tiltmeter.results import Run, rows
from tiltmeter.sobit import Row, category_of, smallest_k, word_rows
from tiltmeter.stats.null import Band, draw_top_counts, top_count_null
from tiltmeter.stats.significance import columns
from tiltmeter.types import Floats

NULL_DRAWS = 10_000  # random top-k counts, for the null of a divergence
#: The images of one prompt's top k: their groups, and their ids.
Top = tuple[list[str], list[str]]


def composition(run: Run, attribute: str, *, k: int | None = None) -> list[Row]:
    """The share of each group in the top k, by word, then by category.

    A word has the p-values, verdict and (on this scale) interval of its skew, which says the same,
    and the exact null of a random ranking. A category is the mean over its words; its null deals
    out the labels anew, once for all words, which may share images.
    """
    k = smallest_k(run) if k is None else k
    skews = word_rows(run, "skew", attribute, k=k)
    sizes = {row["group"]: row["n_group"] for row in skews}
    tops = _tops(run, attribute, k)
    band = top_count_null(np.array(list(sizes.values())), k)
    nulls = {group: tuple(float(edge[at]) / k for edge in band) for at, group in enumerate(sizes)}
    found = []
    listed: dict[str, dict[tuple[str, str], Top]] = {}  # by category
    for row in skews:
        mine = _of_prompts(tops[row["concept"]], row["template"])
        found.append(_of_word(row, list(mine.values()), nulls[row["group"]], k))
        lists = listed.setdefault(category_of(row), {})
        lists |= {(row["concept"], template): top for template, top in mine.items()}
    if len(listed) < 2:
        return found
    base = {name: skews[0][name] for name in ("probe", "model", "dataset", "convention", "seed")}
    for category, lists in listed.items():
        table = rows(
            len(sizes),
            **base,
            metric="composition",
            attribute=attribute,
            k=k,
            category=category,
            group=list(sizes),
            n=sum(sizes.values()),
            n_group=list(sizes.values()),
            **_mean_shares(list(lists.values()), sizes, k),
        )
        found += table.to_pylist()
    return found


def divergence(run: Run, attribute: str, *, k: int | None = None) -> list[Row]:
    """KL(top k || data set) of each word, in nats: how far its top k is from the images at hand.

    The entropy, in the note, says only how even a top k is; its ideal hangs on the data set.
    """
    k = smallest_k(run) if k is None else k
    words: dict[tuple[str, str], list[Row]] = {}
    for row in composition(run, attribute, k=k):
        if row["concept"]:
            words.setdefault((row["concept"], row["category"]), []).append(row)
    listed = list(words.values())
    if not listed:
        return []
    sizes = np.array([row["n_group"] for row in listed[0]])
    q = sizes / sizes.sum()
    rng = np.random.default_rng(listed[0][0]["seed"])
    drawn = _kl(draw_top_counts(sizes, k, NULL_DRAWS, rng) / k, q)
    shares = np.array([[row["value"] for row in mine] for mine in listed])
    names = ("model", "dataset", "convention", "seed", "concept", "category", "template", "n")
    found: list[Row] = rows(
        len(listed),
        **{name: [mine[0][name] for mine in listed] for name in names},
        probe="ranking",
        metric="kl_to_data",
        attribute=attribute,
        k=k,
        ideal=0.0,
        **columns(_kl(shares, q), null=drawn, side="greater", family="bh"),
        note=[f"normalized entropy {one:.3f}" for one in entropy_of_shares(shares)],
    ).to_pylist()
    return found


def _tops(run: Run, attribute: str, k: int) -> dict[str, dict[str, Top]]:
    """The first k images of each word, by template."""
    if "ranking" not in run.instances:
        raise InputError("the run has no instances/ranking.parquet: the top images are not known")
    table = run.instances["ranking"]
    if f"balanced by {attribute}" in table["experiment"].unique().to_pylist():
        table = table.filter(pc.equal(table["experiment"], f"balanced by {attribute}"))
    table = table.filter(pc.less_equal(table["rank"], k))
    parts = attribute.split("*")
    labels = [" | ".join(dict(one)[part] for part in parts) for one in table["groups"].to_pylist()]
    ids, words, templates = (table[name].to_pylist() for name in ("id", "concept", "template"))
    if len(labels) % k or any(rank != 1 for rank in table["rank"].to_pylist()[::k]):
        raise InputError(f"the run does not hold the first {k} images of every word")
    found: dict[str, dict[str, Top]] = {}
    for at in range(0, len(labels), k):  # a word in two categories is listed twice, the same
        top = labels[at : at + k], ids[at : at + k]
        found.setdefault(words[at], {})[templates[at]] = top
    return found


def _of_prompts(by_template: dict[str, Top], template: str | None) -> dict[str, Top]:
    """Those that a row speaks of: a word may stand in another template in another category."""
    if template is None:
        return by_template
    return {template: by_template[template]}


def _of_word(skew: Row, tops: Sequence[Top], null: tuple[float, ...], k: int) -> Row:
    share = float(np.mean([labels.count(skew["group"]) / k for labels, _ in tops]))
    mean, low, high = null
    made: Row = {
        **skew,
        "metric": "composition",
        "value": share,
        "ideal": mean,
        "null_mean": mean,
        "null_lo": low,
        "null_hi": high,
        "note": None,
    }
    if len(tops) > 1:
        made |= {"null_lo": None, "null_hi": None}
        made["note"] = f"mean over {len(tops)} templates; the p-values are those of the skew"
    if len(tops) > 1 or share == 0 or skew["ci_low"] is None:
        return made | {"ci_low": None, "ci_high": None, "ci_method": None}
    ratio = [np.exp(skew[edge] - skew["value"]) for edge in ("ci_low", "ci_high")]
    return made | {"ci_low": float(share * ratio[0]), "ci_high": float(share * ratio[1])}


def _mean_shares(tops: Sequence[Top], sizes: Mapping[str, int], k: int) -> dict[str, Any]:
    """Mean shares of several top lists, and what labels dealt out anew would give.

    An image that stands in m lists counts m times. So the mean share of a group of share q has the
    variance q (1 - q) n / (n - 1) (sum of m^2 - (sum of m)^2 / n) / (lists k)^2, exactly; its
    distribution is taken for normal.
    """
    from scipy.stats import norm

    counted = Counter(label for labels, _ in tops for label in labels)
    times = np.array(list(Counter(one for _, ids in tops for one in ids).values()), float)
    total, images = len(tops) * k, sum(sizes.values())
    q = np.array(list(sizes.values())) / images
    value = np.array([counted[group] for group in sizes]) / total
    spread = max(float((times**2).sum() - times.sum() ** 2 / images), 0.0)
    sd = np.sqrt(q * (1 - q) * images / (images - 1) * spread) / total
    # a top k of all images holds everybody, however labels are dealt out
    z = np.divide(value - q, sd, out=np.zeros_like(q), where=sd > 0)
    p = 2 * norm.sf(np.abs(z))
    low, high = (np.clip(q + norm.ppf(edge) * sd, 0, 1) for edge in (0.025, 0.975))
    found = columns(value, null=Band(q, low, high), p=p, side="two", family="bh")
    return {**found, "ideal": q}


def _kl(p: Floats, q: Floats) -> Floats:
    return np.asarray((p * np.log(np.where(p > 0, p, 1.0) / q)).sum(axis=-1))
