"""Harmful zero-shot misclassification by group (Berg et al. 2022, App. G).

After Agarwal et al. (2021): each image gets the nearest of several classes, some benign (phrases
for people) and some harmful (animals, crime). Measured: the rate of harmful classes in each group,
the largest gap between groups, and the difference of each pair of groups.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from tiltmeter.engine.class_counts import count_classes, nearest
from tiltmeter.engine.engines import Engine, LocalEngine
from tiltmeter.engine.parts import ImageParts, cells_of
from tiltmeter.engine.ranking.job import scaled
from tiltmeter.engine.ranking.samples import checked, samples_of
from tiltmeter.engine.vectors import InMemoryVectors, SelectedVectors, Vectors
from tiltmeter.errors import InputError
from tiltmeter.metrics.arrays import unit
from tiltmeter.metrics.convention import Convention
from tiltmeter.probes.embeddings import image_embeddings, text_embeddings
from tiltmeter.probes.harm_splits import SplitGaps, gaps_by_splits, split_table
from tiltmeter.probes.probe import AuditContext, Probe, ProbeResult, unknown_word_cannot_run
from tiltmeter.probes.texts import harm_prompts
from tiltmeter.results import INSTANCES, combined, rows
from tiltmeter.stats.intervals import wilson
from tiltmeter.stats.lift_verdict import TOO_FEW_GROUPS, enough_images, left_out
from tiltmeter.stats.null import NullBand, top_count_null, top_count_p
from tiltmeter.stats.random_visible_splits import MOST_IMAGES
from tiltmeter.stats.resampling import Resampling
from tiltmeter.stats.significance import Interval, columns
from tiltmeter.types import (
    Faces,
    Floats,
    Groups,
    GroupSizes,
    Ints,
    Progress,
    Prompt,
    TextEncoder,
)

#: The category of benign classes.
PERSON = "person"
#: Methods of intervals.
BOOTSTRAP, NEWCOMBE = "bootstrap over images, standard error", "Newcombe"


@dataclass(frozen=True, eq=False)
class ClassAssignments:
    """Patterns of the nearest classes. Images that tie between the same classes share a pattern."""

    names: tuple[str, ...]  # classes
    categories: tuple[str, ...]  # of each class
    shares: Floats  # patterns x classes: 1 for the pick, or equal shares for ties

    @classmethod
    def of(cls, categories: Mapping[str, str], patterns: Ints) -> ClassAssignments:
        """Patterns x classes: whether the class has the highest score."""
        shares = patterns / patterns.sum(axis=1, keepdims=True)
        return cls(tuple(categories), tuple(categories.values()), shares)

    @property
    def picks(self) -> list[str]:
        """The class of each pattern; tied classes are joined by ` / `."""
        return [" / ".join(np.array(self.names)[row > 0]) for row in self.shares]

    def targets(self) -> tuple[list[str], list[str], Floats]:
        """Harmful categories, then harmful classes: names, categories, patterns x targets."""
        harmful = [row for row, category in enumerate(self.categories) if category != PERSON]
        kinds = list(dict.fromkeys(self.categories[row] for row in harmful))
        of_kind = [[category == kind for category in self.categories] for kind in kinds]
        by_kind = self.shares @ np.array(of_kind, float).T
        return (
            [*kinds, *(self.names[row] for row in harmful)],
            [*kinds, *(self.categories[row] for row in harmful)],
            np.concatenate([by_kind, self.shares[:, harmful]], axis=1),
        )


def harms(
    model: TextEncoder,
    faces: Faces,
    *,
    prompts: Sequence[Prompt],
    attributes: Sequence[str],
    convention: Convention,
    seed: int = 0,
    resampling: Resampling | None = None,
    progress: Progress | None = None,
    images: Vectors | None = None,
    engine: Engine = LocalEngine(),  # noqa: B008
) -> ProbeResult:
    """Rates of harmful zero-shot misclassification by group, and their gaps.

    Parameters
    ----------
    model : TextEncoder
        The model to audit.
    faces : Faces
        Images with group labels.
    prompts : sequence of Prompt
        The classes, in one or several templates, which are averaged. The category `person` is
        benign, all others are harmful.
    attributes : sequence of str
        Attributes and intersections whose groups are compared.
    convention : Convention
        Scaling of embeddings and balancing of groups.
    seed : int
        Seed of permutations and bootstrap.
    resampling : Resampling, optional
        Numbers of permutations and bootstrap resamples.
    progress : callable, optional
        Called as `progress(what, share)`.
    images : Vectors, optional
        Image embeddings; by default those of `faces`, or the model's.
    engine : Engine
        Where images are classified. In this process by default.

    Returns
    -------
    ProbeResult
        Rows of RESULTS, and on the local engine the class of each image (INSTANCES).

    Raises
    ------
    InputError
        If the classes have no benign or no harmful category, or a class has two categories.
    CannotRunError
        If the model does not know a word.
    """
    resampling, progress = resampling or Resampling(), progress or (lambda what, share: None)
    convention = convention.on(faces.name, faces.groups)
    groups = {name: checked(faces.attribute(name)) for name in attributes}
    progress("choosing classes", 0.0)
    categories, classes = class_vectors(model, prompts)
    vectors = images or InMemoryVectors(image_embeddings(model, faces))
    constants: dict[str, Any] = {
        "probe": "harms",
        "model": getattr(model, "name", type(model).__name__),
        "dataset": faces.name,
        "convention": convention.name,
        "seed": seed,
        "ideal": 0.0,
    }
    rng, rng_of_splits = np.random.default_rng(seed), np.random.default_rng([seed, 1])
    tables = []
    by_splits: list[SplitGaps] = []
    failed: dict[int, str] = {}
    for at_rows, sample in samples_of(groups, faces.groups, convention, rng):
        cells, kinds = cells_of(list(sample.values()))
        some = vectors if at_rows is None else SelectedVectors(vectors, at_rows)
        parts = ImageParts.of(some, cells, engine)
        found = count_classes(classes, len(kinds), convention.images, parts, engine, progress)
        failed |= found.failed
        picked = ClassAssignments.of(categories, found.patterns)
        if resampling.permutations:
            some_images = _classified_sample(categories, classes, parts, convention.images, engine)
        for column, (name, by) in enumerate(sample.items()):
            progress(f"rates by {name}", 0.9 + 0.1 * column / len(sample))
            sizes = GroupSizes(kinds[:, column], found.counts.sum(axis=0), by.names, by.attribute)
            table = np.zeros((len(found.patterns), len(by.names)), np.int64)
            np.add.at(table.T, kinds[:, column], found.counts.T)
            counted = _counted(picked, table, checked(sizes))
            tables += _tables(counted, picked.targets()[2], table, resampling, rng, constants)
            if resampling.permutations:
                judged = enough_images(sizes.counts)
                if len(judged) < 2:
                    continue
                rates = counted.counts[: counted.kinds, judged] / sizes.counts[judged]
                drawn = gaps_by_splits(*some_images, len(judged), rng_of_splits)
                n = int(sizes.counts[judged].sum())
                by_splits.append(SplitGaps(name, np.ptp(rates, axis=1), drawn, n))
    if by_splits:
        tables.append(split_table(by_splits, counted.names[: counted.kinds], constants))
    record = {} if not failed else {"parts_not_read": {str(at): why for at, why in failed.items()}}
    instances = rows(0, INSTANCES)
    if engine.name == "local":
        instances = _instances(categories, classes, vectors, faces, groups, convention, constants)
    return ProbeResult(combined(tables), instances, record=record)


def _classified_sample(
    categories: Mapping[str, str], classes: Floats, parts: ImageParts, scaling: str, engine: Engine
) -> tuple[Floats, Ints, Floats]:
    """Images to split at random: embeddings, cells, and shares in each harmful category."""
    images, cells = parts.sample(MOST_IMAGES, engine)
    images = scaled(images, scaling)
    picked = ClassAssignments.of(categories, nearest(classes, images)[0])
    kinds = {*categories.values()} - {PERSON}
    return images, cells, picked.targets()[2][:, : len(kinds)]


def class_vectors(model: TextEncoder, prompts: Sequence[Prompt]) -> tuple[dict[str, str], Floats]:
    """The category of each class, and its unit vector: the mean over its templates."""
    category: dict[str, str] = {}
    for prompt in prompts:
        if category.setdefault(prompt.concept, prompt.category) != prompt.category:
            raise InputError(f"the class {prompt.concept!r} is in two categories: keep one of them")
    kinds = set(category.values())
    if PERSON not in kinds or len(kinds) < 2 or "" in kinds:
        raise InputError(
            f"classes need the category {PERSON!r} for benign ones, and at least one harmful "
            f"category; got {', '.join(sorted(repr(kind) for kind in kinds)) or 'none'}"
        )
    with unknown_word_cannot_run():
        texts = np.asarray(unit(text_embeddings(model, prompts), "texts"))
    is_class = [[prompt.concept == name for prompt in prompts] for name in category]
    means = np.array(is_class, float) @ texts
    return category, np.asarray(means / np.linalg.norm(means, axis=1, keepdims=True))


def _instances(
    categories: Mapping[str, str],
    classes: Floats,
    vectors: Vectors,
    faces: Faces,
    groups: Mapping[str, Groups],
    convention: Convention,
    constants: Mapping[str, Any],
) -> pa.Table:
    """The class of each image and its score."""
    tied, best = nearest(classes, scaled(vectors.read(), convention.images))
    patterns, which = np.unique(tied, axis=0, return_inverse=True)
    picks = ClassAssignments.of(categories, patterns).picks
    labels = [[by.names[code] for code in by.codes] for by in groups.values()]
    return rows(
        len(faces),
        INSTANCES,
        model=constants["model"],
        dataset=faces.name,
        id=list(faces.ids),
        groups=[list(zip(groups, own, strict=True)) for own in zip(*labels, strict=True)],
        score=best,
        pick=[picks[pattern] for pattern in which.reshape(-1)],
    )


@dataclass(frozen=True, eq=False)
class GroupClassCounts:
    """Number of images of each group in each harmful class."""

    groups: Groups
    names: list[str]  # harmful categories, then harmful classes
    categories: list[str]
    counts: Floats  # targets x groups: fractions only for ties
    notes: list[str | None]

    @property
    def kinds(self) -> int:
        """Number of categories, which come first among the targets."""
        return len(set(self.categories))


def _counted(picked: ClassAssignments, table: Ints, groups: Groups) -> GroupClassCounts:
    """Images of each target and group, from the counts of patterns x groups."""
    names, categories, share = picked.targets()
    counts = share.T @ table
    ties = int(table[picked.shares.max(axis=1) < 1].sum())
    tied = f"{ties:,} images tie between classes and are counted in fractions" if ties else None
    notes = [
        tied if row.any() else "no image of any group was assigned to this class" for row in counts
    ]
    return GroupClassCounts(groups, names, categories, counts, notes)


def _tables(
    counted: GroupClassCounts,
    share: Floats,
    table: Ints,
    resampling: Resampling,
    rng: np.random.Generator,
    constants: dict[str, Any],
) -> list[pa.Table]:
    """Rows of one attribute; `share` is patterns x targets, `table` patterns x groups."""
    constants = {**constants, "attribute": counted.groups.attribute}
    return [
        _rates(counted, constants),
        _largest_gaps(counted, table, share, resampling, rng, constants),
        _pairs(counted, constants),
    ]


def _rates(counted: GroupClassCounts, constants: dict[str, Any]) -> pa.Table:
    """Each group's rate, with its null under permuted labels."""
    groups, counts = counted.groups, counted.counts
    sizes, n_groups = groups.counts, len(groups.names)
    null = np.array([_null(row, sizes) for row in counts])  # targets x 3 x groups
    return rows(
        counts.size,
        **constants,
        metric="group_rates",
        group=list(groups.names) * len(counts),
        target=np.repeat(counted.names, n_groups).tolist(),
        category=np.repeat(counted.categories, n_groups).tolist(),
        **columns(
            counts / sizes,
            null=NullBand(*null.swapaxes(0, 1)),
            p=np.stack([_p(row, sizes) for row in counts]),
            side="two",
            family="holm",
            interval=Interval(
                edges=wilson(counts, np.broadcast_to(sizes, counts.shape)), method="Wilson"
            ),
        ),
        n=len(groups),
        n_group=sizes.tolist() * len(counts),
        note=[note for note in counted.notes for _ in range(n_groups)],
    )


def _largest_gaps(
    counted: GroupClassCounts,
    table: Ints,
    share: Floats,
    resampling: Resampling,
    rng: np.random.Generator,
    constants: dict[str, Any],
) -> pa.Table:
    """Highest minus lowest rate over groups; all classes share the permutations.

    Groups with few images are left out, since they would set the largest gap and hide the others.
    `table` is patterns x groups, `share` patterns x targets. Without bootstrap, and at rates of 0
    and 1, where it has no spread, the interval is Newcombe's of the two groups: every gap has one,
    so that the gaps of two runs can be compared.
    """
    from scipy.stats import random_table

    groups = counted.groups
    targets = {"metric": "gaps", "target": counted.names, "category": counted.categories}
    judged = enough_images(groups.counts)
    if len(judged) < 2:
        undefined = np.full(len(counted.names), np.nan)
        return rows(len(undefined), **constants, **targets, value=undefined, note=TOO_FEW_GROUPS)
    few = left_out(groups.names, groups.counts)
    sizes, table, counts = (x[..., judged] for x in (groups.counts, table, counted.counts))
    present = table.sum(axis=1) > 0  # these groups may lack a pattern
    table, share = table[present], share[present]

    def gap(tables: Ints) -> Floats:
        return np.asarray(np.ptp(np.einsum("pt,rpg->rtg", share, tables) / sizes, axis=2))

    value = gap(table[None])[0]
    null = boot = None
    if resampling.permutations:
        # permuting labels is drawing a table with the same margins
        margins = random_table(table.sum(axis=1), sizes)
        null = gap(margins.rvs(resampling.permutations, random_state=rng))
    if resampling.bootstraps:
        resampled = [
            rng.multinomial(n, column / n, resampling.bootstraps)
            for n, column in zip(sizes, table.T, strict=True)
        ]
        boot = gap(np.stack(resampled, axis=2))
        boot = np.where(boot.std(axis=0) > 0, boot, np.nan)
    rates = counts / sizes
    _, low, high = _newcombe(counts, sizes, rates.argmax(axis=1), rates.argmin(axis=1))
    by_bootstrap = np.zeros(len(value), bool)
    if boot is not None and (edges := Interval(boot=boot, regular=False).around(value)):
        by_bootstrap = ~np.isnan(edges[0])
        low, high = (np.where(by_bootstrap, edge, other)
                     for edge, other in zip(edges, (low, high), strict=True))  # fmt: skip
    return rows(
        len(value),
        **constants,
        **targets,
        **columns(
            value,
            null=null,
            side="greater",
            family="maxT",
            interval=Interval(
                edges=(low, high),
                bounds=(0, 1),
                method=np.where(by_bootstrap, BOOTSTRAP, NEWCOMBE),
            ),
        ),
        n=int(sizes.sum()),
        note=["; ".join(filter(None, (note, few))) or None for note in counted.notes],
    )


def _pairs(counted: GroupClassCounts, constants: dict[str, Any]) -> pa.Table:
    """Difference of each pair of groups by category, with Newcombe's interval and exact test."""
    names, sizes, counts = (
        counted.groups.names,
        counted.groups.counts,
        counted.counts[: counted.kinds],
    )
    pairs = list(itertools.combinations(range(len(names)), 2))
    first, second = np.array(pairs).T
    each = (
        np.repeat(counts, len(pairs), axis=0),
        sizes,
        *(np.tile(x, len(counts)) for x in (first, second)),
    )
    value, low, high = _newcombe(*each)  # pairs of the first category, then of the next
    paired_counts = [(row[[a, b]], sizes[[a, b]]) for row in counts for a, b in pairs]
    null = np.array([_gap_null(*pair) for pair in paired_counts])
    kinds, n_pairs = counted.kinds, len(pairs)
    return rows(
        value.size,
        **constants,
        metric="gaps",
        experiment=[f"{names[a]} against {names[b]}" for a, b in pairs] * kinds,
        group=[names[a] for a, _ in pairs] * kinds,
        target=np.repeat(counted.names[:kinds], n_pairs).tolist(),
        category=np.repeat(counted.names[:kinds], n_pairs).tolist(),
        **columns(
            value,
            null=NullBand(np.zeros(len(null)), *null.T),
            p=[_p(*pair)[0] for pair in paired_counts],
            side="two",
            family="holm",
            interval=Interval(edges=(low, high), method=NEWCOMBE),
        ),
        n=(sizes[first] + sizes[second]).tolist() * kinds,
        n_group=sizes[first].tolist() * kinds,
        note=[note for note in counted.notes[:kinds] for _ in pairs],
    )


def _newcombe(
    counts: Floats, sizes: Ints, first: Ints, second: Ints
) -> tuple[Floats, Floats, Floats]:
    """Difference of the rates of two groups, one pair per row of counts, and its interval.

    Newcombe 1998, method 10: from the two Wilson intervals.
    """
    at = np.arange(len(counts))
    (a, a_low, a_high), (b, b_low, b_high) = (
        (counts[at, group] / sizes[group], *wilson(counts[at, group], sizes[group]))
        for group in (first, second)
    )
    value = a - b
    return value, value - np.hypot(a - a_low, b_high - b), value + np.hypot(a_high - a, b - b_low)


def _p(counts: Floats, sizes: Ints) -> Floats:
    """Exact p given the total count: hypergeometric, as in Fisher's test."""
    total = round(counts.sum())
    if total == 0:
        return np.ones(len(counts))
    return top_count_p(np.minimum(counts, total), sizes, total)


def _null(counts: Floats, sizes: Ints) -> tuple[Floats, Floats, Floats]:
    total = round(counts.sum())
    if total == 0:
        return (np.zeros(len(sizes)),) * 3
    band = top_count_null(sizes, total)
    return band.mean / sizes, band.low / sizes, band.high / sizes


def _gap_null(counts: Floats, sizes: Ints) -> tuple[float, float]:
    """The difference of two rates whose counts have a fixed sum rises with the first count."""
    total = round(counts.sum())
    _, lo, hi = _null(counts, sizes)
    edges = [edge[0] - (total - edge[0] * sizes[0]) / sizes[1] for edge in (lo, hi)]
    return edges[0], edges[1]


def _run(model: TextEncoder, data: Mapping[str, Any], context: AuditContext) -> ProbeResult:
    embedded = context.embed_for_ranking(data["faces"])
    result = harms(
        model,
        embedded.faces,
        prompts=harm_prompts(context.classes, embedded.faces),
        attributes=context.attributes_of(embedded.faces),
        convention=context.convention,
        seed=context.seed,
        resampling=context.resampling,
        progress=context.progress,
        images=embedded.images,
        engine=context.engine,
    )
    if context.strict and result.record:
        raise InputError(next(iter(result.record["parts_not_read"].values())))
    return result


PROBE = Probe(
    "Harmful misclassification (animals, crime): rates by group and their gaps.",
    _run,
    needs=("faces",),
    by_parts=True,
)
