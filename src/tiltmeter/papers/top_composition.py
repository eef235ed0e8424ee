"""Groups in the top k of each word and category (So-B-IT, Figure 7), from a finished run.

The run keeps how many of each group are in the top k of every word, and its top images by id: these
show which images several words of a category share. Where a run has no such counts, the images are
counted; equal scores then keep the order of the images.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from tiltmeter.errors import InputError
from tiltmeter.metrics.ranking import entropy_of_shares, kl_of_shares
from tiltmeter.papers.sobit import Row, attributes, category_of, smallest_k, word_rows
from tiltmeter.results import Run, rows
from tiltmeter.stats.null import draw_top_counts, null_of_shares_in_lists, top_count_null
from tiltmeter.stats.significance import columns

NULL_DRAWS = 10_000  # random top-k counts, for the null of a divergence


def with_composition(run: Run) -> Run:
    """The run with rows of `composition` for its attributes, where it kept its top images.

    Intersections have too many groups to tell apart. Nothing is written: a report reads them.
    """
    if "ranking" not in run.instances or "skew" not in run.table["metric"].unique().to_pylist():
        return run
    found = [row for name in attributes(run) if "*" not in name for row in composition(run, name)]
    table = pa.concat_tables([run.table, pa.Table.from_pylist(found, schema=run.table.schema)])
    return Run(table, run.meta, run.instances, run.vectors)


def composition(run: Run, attribute: str, *, k: int | None = None) -> list[Row]:
    """The share of each group in the top k, by word, then by category.

    A word has the p-values, verdict and (on this scale) interval of its skew, which says the same,
    and the exact null of a random ranking. A word over several templates, and a category, are means
    over lists that may share images: their null permutes the labels once for all lists.
    """
    k = smallest_k(run) if k is None else k
    skews = word_rows(run, "skew", attribute, k=k)
    sizes = {row["group"]: row["n_group"] for row in skews}
    counts = _counts(run, attribute, k)
    band = top_count_null(np.array(list(sizes.values())), k)
    nulls = {group: tuple(float(edge[at]) / k for edge in band) for at, group in enumerate(sizes)}
    found = []
    listed: dict[str, dict[tuple[str, str], Mapping[str, float]]] = {}  # by category, of prompts
    for row in skews:
        by_template = counts[row["concept"]]
        # a word may have another template in another category
        templates = by_template if row["template"] is None else [row["template"]]
        mine = {(row["concept"], template): by_template[template] for template in templates}
        shares = [count[row["group"]] / k for count in mine.values()]
        found.append(_of_word(row, shares, nulls[row["group"]]))
        listed.setdefault(category_of(row), {}).update(mine)
    over_templates = [row for row in found if row["null_low"] is None]
    if len(listed) < 2 and not (over_templates and "ranking" in run.instances):
        return found
    images = {(word, template): ids for word, template, ids, _ in _tops(run, attribute, k)}
    group_sizes = list(sizes.values())
    edges = {}
    for word in {row["concept"] for row in over_templates}:
        times = Counter(image for template in counts[word] for image in images[word, template])
        null, _ = null_of_shares_in_lists(band.mean / k, list(times.values()), group_sizes)
        ends = zip(null.low.tolist(), null.high.tolist(), strict=True)
        edges[word] = dict(zip(sizes, ends, strict=True))
    for row in over_templates:
        row["null_low"], row["null_high"] = edges[row["concept"]][row["group"]]
    if len(listed) < 2:
        return found
    base = {name: skews[0][name] for name in ("probe", "model", "dataset", "convention", "seed")}
    for category, mine in listed.items():
        value = np.array([[one[name] for name in sizes] for one in mine.values()]).mean(axis=0) / k
        times = Counter(image for prompt in mine for image in images[prompt])
        null, p = null_of_shares_in_lists(value, list(times.values()), list(sizes.values()))
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
            ideal=null.mean,
            **columns(value, side="two", null=null, p=p, family="bh"),
        )
        found += table.to_pylist()
    return found


def divergence(run: Run, attribute: str, *, k: int | None = None) -> list[Row]:
    """KL(top k || dataset) of each word, in nats: how far its top k is from all images.

    The entropy, in the note, says only how even a top k is; its ideal depends on the dataset.
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
    drawn = kl_of_shares(draw_top_counts(sizes, k, NULL_DRAWS, rng) / k, q)
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
        **columns(kl_of_shares(shares, q), null=drawn, side="greater", family="bh"),
        note=[f"normalized entropy {one:.3f}" for one in entropy_of_shares(shares)],
    ).to_pylist()
    return found


def _counts(run: Run, attribute: str, k: int) -> dict[str, dict[str, Mapping[str, float]]]:
    """How many of each group are in the top k of a word, by template."""
    found: dict[str, dict[str, Mapping[str, float]]] = {}
    if "counts" not in run.vectors:
        for word, template, _, labels in _tops(run, attribute, k):
            found.setdefault(word, {})[template] = Counter(labels)
        return found
    table = run.vectors["counts"]
    table = table.filter(
        pc.and_(pc.equal(table["attribute"], attribute), pc.equal(table["role"], "word"))
    )
    for row in table.select(["concept", "template", "groups", "k", "top"]).to_pylist():
        top = dict(zip(row["k"], row["top"], strict=True)).get(k)
        if top is None:
            raise InputError(f"the run does not have the top {k}; it has those of {row['k']}")
        found.setdefault(row["concept"], {})[row["template"]] = dict(
            zip(row["groups"], top, strict=True)
        )
    return found


def _tops(run: Run, attribute: str, k: int) -> Iterator[tuple[str, str, list[str], list[str]]]:
    """Word and template of each list of the first k images, their ids, and their groups."""
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
        raise InputError(f"the run does not have the first {k} images of every word")
    for at in range(0, len(labels), k):  # a word in two categories is listed twice, the same
        yield words[at], templates[at], ids[at : at + k], labels[at : at + k]


def _of_word(skew: Row, shares: Sequence[float], null: tuple[float, ...]) -> Row:
    share = float(np.mean(shares))
    mean, low, high = null
    made: Row = {
        **skew,
        "metric": "composition",
        "value": share,
        "ideal": mean,
        "null_mean": mean,
        "null_low": low,
        "null_high": high,
        "note": None,
    }
    if len(shares) > 1:
        made |= {"null_low": None, "null_high": None}
        made["note"] = f"mean over {len(shares)} templates; the p-values are those of the skew"
    if len(shares) > 1 or share == 0 or skew["ci_low"] is None:
        return made | {"ci_low": None, "ci_high": None, "ci_method": None}
    ratio = [np.exp(skew[edge] - skew["value"]) for edge in ("ci_low", "ci_high")]
    return made | {"ci_low": float(share * ratio[0]), "ci_high": float(share * ratio[1])}
