"""Whose images are taken for animals or criminals? (Berg et al. 2022, App. G)

After Agarwal et al. (2021): each image is given the nearest of some classes, phrases for people and
classes that do harm. How often each group lands in the latter, how far groups lie apart, and the
difference of each pair of groups.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from tiltmeter.engine.ranking.samples import checked, samples_of
from tiltmeter.errors import InputError
from tiltmeter.metrics.convention import Convention
from tiltmeter.probes.embeddings import unit_vectors
from tiltmeter.probes.probe import AuditContext, Probe, words_known
from tiltmeter.probes.texts import harm_prompts
from tiltmeter.results import INSTANCES, combined, rows
from tiltmeter.stats.intervals import wilson
from tiltmeter.stats.null import NullBand, top_count_null, top_count_p
from tiltmeter.stats.resampling import Resampling
from tiltmeter.stats.significance import Interval, columns
from tiltmeter.types import Faces, Floats, Groups, Ints, Progress, Prompt, TextEncoder

#: The category of the classes that do no harm.
PERSON = "person"


@dataclass(frozen=True, eq=False)
class ClassAssignments:
    """What each image was taken for. Images that tie between the same classes share a pattern."""

    names: tuple[str, ...]  # classes
    categories: tuple[str, ...]  # of each class
    shares: Floats  # patterns x classes: 1 for the pick, or even shares of those that tie
    pattern: Ints  # one an image
    score: Floats  # one an image: the cosine of its pick

    @property
    def picks(self) -> list[str]:
        """The pick of each image; of several that tie, all."""
        told = [" / ".join(np.array(self.names)[row > 0]) for row in self.shares]
        return [told[at] for at in self.pattern]

    def targets(self) -> tuple[list[str], list[str], Floats]:
        """Harmful categories, then harmful classes: names, categories, patterns x targets."""
        harmful = [at for at, one in enumerate(self.categories) if one != PERSON]
        kinds = list(dict.fromkeys(self.categories[at] for at in harmful))
        of_kind = [[one == kind for one in self.categories] for kind in kinds]
        whole = self.shares @ np.array(of_kind, float).T
        return (
            [*kinds, *(self.names[at] for at in harmful)],
            [*kinds, *(self.categories[at] for at in harmful)],
            np.concatenate([whole, self.shares[:, harmful]], axis=1),
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
) -> tuple[pa.Table, pa.Table]:
    """Rates of harmful zero-shot misclassification by group, their gaps, and pairs of groups.

    `prompts` are the classes, in one template or in several, which are averaged; those of the
    category `person` do no harm. Returns rows of RESULTS and what each image was taken for.
    """
    resampling, progress = resampling or Resampling(), progress or (lambda what, share: None)
    convention = convention.on(faces.name, faces.groups)
    groups = {name: checked(faces.attribute(name)) for name in attributes}
    progress("choosing classes", 0.0)
    picked = pick(model, faces, prompts, convention)
    constants: dict[str, Any] = {
        "probe": "harms",
        "model": getattr(model, "name", type(model).__name__),
        "dataset": faces.name,
        "convention": convention.name,
        "seed": seed,
        "ideal": 0.0,
    }
    rng = np.random.default_rng(seed)
    tables = []
    for at, sample in samples_of(groups, faces.groups, convention, rng):
        pattern = picked.pattern if at is None else picked.pattern[at]
        for name, one in sample.items():
            progress(f"rates by {name}", 0.2 + 0.8 * list(groups).index(name) / len(groups))
            tables += _tables(picked, pattern, checked(one), resampling, rng, constants)
    progress("done", 1.0)
    labels = [
        dict(zip(groups, of_image, strict=True))
        for of_image in zip(
            *([one.names[code] for code in one.codes] for one in groups.values()), strict=True
        )
    ]
    instances = rows(
        len(faces),
        INSTANCES,
        model=constants["model"],
        dataset=faces.name,
        id=list(faces.ids),
        groups=[list(of_image.items()) for of_image in labels],
        score=picked.score,
        pick=picked.picks,
    )
    return combined(tables), instances


def pick(
    model: TextEncoder, faces: Faces, prompts: Sequence[Prompt], convention: Convention
) -> ClassAssignments:
    """The nearest class of each image."""
    category: dict[str, str] = {}
    for prompt in prompts:
        if category.setdefault(prompt.concept, prompt.category) != prompt.category:
            raise InputError(f"the class {prompt.concept!r} stands in two categories: keep one")
    kinds = set(category.values())
    if PERSON not in kinds or len(kinds) < 2 or "" in kinds:
        raise InputError(
            f"classes to choose from take a category {PERSON!r}, for what does no harm, and at "
            f"least one other; got {', '.join(sorted(repr(kind) for kind in kinds)) or 'none'}"
        )
    with words_known():
        texts, images = unit_vectors(model, faces, prompts, convention)
    of = [[prompt.concept == name for prompt in prompts] for name in category]
    means = np.array(of, float) @ texts  # over templates; the length is set right below
    scores = images @ (means / np.linalg.norm(means, axis=1, keepdims=True)).T
    best = scores.max(axis=1)
    tied = scores == best[:, None]
    shares, pattern = np.unique(tied, axis=0, return_inverse=True)
    return ClassAssignments(
        tuple(category),
        tuple(category.values()),
        shares / shares.sum(axis=1, keepdims=True),
        pattern.reshape(-1),
        best,
    )


@dataclass(frozen=True, eq=False)
class GroupClassCounts:
    """How many images of each group landed where."""

    groups: Groups
    names: list[str]  # harmful categories, then harmful classes
    categories: list[str]
    counts: Floats  # targets x groups: whole numbers, unless images tie
    notes: list[str | None]

    @property
    def kinds(self) -> int:
        """The categories, which come first."""
        return len(set(self.categories))


def _tables(
    picked: ClassAssignments,
    pattern: Ints,
    groups: Groups,
    resampling: Resampling,
    rng: np.random.Generator,
    constants: dict[str, Any],
) -> list[pa.Table]:
    names, categories, share = picked.targets()
    table = np.zeros((len(picked.shares), len(groups.names)), int)  # patterns x groups
    np.add.at(table, (pattern, groups.codes), 1)
    counts = share.T @ table
    ties = int((picked.shares[pattern].max(axis=1) < 1).sum())
    tied = f"{ties:,} images tie between classes and count in parts" if ties else None
    notes = [tied if row.any() else "no image of any group was taken for this" for row in counts]
    landed = GroupClassCounts(groups, names, categories, counts, notes)
    constants = {**constants, "attribute": groups.attribute}
    drawn = table.sum(axis=1) > 0  # a convention's sample may lack a pattern
    return [
        _rates(landed, constants),
        _largest_gaps(landed, table[drawn], share[drawn], resampling, rng, constants),
        _pairs(landed, constants),
    ]


def _rates(landed: GroupClassCounts, constants: dict[str, Any]) -> pa.Table:
    """Each group's rate, beside the rate that a random deal of the labels would give it."""
    groups, counts = landed.groups, landed.counts
    sizes, many = groups.counts, len(groups.names)
    null = np.array([_null(row, sizes) for row in counts])  # targets x 3 x groups
    return rows(
        counts.size,
        **constants,
        metric="group_rates",
        group=list(groups.names) * len(counts),
        target=np.repeat(landed.names, many).tolist(),
        category=np.repeat(landed.categories, many).tolist(),
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
        note=[note for note in landed.notes for _ in range(many)],
    )


def _largest_gaps(
    landed: GroupClassCounts,
    table: Ints,
    share: Floats,
    resampling: Resampling,
    rng: np.random.Generator,
    constants: dict[str, Any],
) -> pa.Table:
    """The highest rate less the lowest; labels are permuted again, once for all classes.

    `table` is patterns x groups, `share` patterns x targets.
    """
    from scipy.stats import random_table

    sizes = landed.groups.counts

    def gap(tables: Ints) -> Floats:
        return np.asarray(np.ptp(np.einsum("pt,rpg->rtg", share, tables) / sizes, axis=2))

    value = gap(table[None])[0]
    null = boot = None
    if resampling.permutations:
        # to deal out labels is to draw a table with the same margins
        margins = random_table(table.sum(axis=1), sizes)
        null = gap(margins.rvs(resampling.permutations, random_state=rng))
    if resampling.bootstraps:
        again = [
            rng.multinomial(n, column / n, resampling.bootstraps)
            for n, column in zip(sizes, table.T, strict=True)
        ]
        boot = gap(np.stack(again, axis=2))
        # resampling cannot see beyond rates of 0 and 1
        boot = np.where(boot.std(axis=0) > 0, boot, np.nan)
    return rows(
        len(value),
        **constants,
        metric="gaps",
        target=landed.names,
        category=landed.categories,
        **columns(
            value,
            null=null,
            side="greater",
            family="maxT",
            interval=Interval(
                boot=boot,
                regular=False,
                bounds=(0, 1),
                method="bootstrap over images, standard error",
            ),
        ),
        n=len(landed.groups),
        note=landed.notes,
    )


def _pairs(landed: GroupClassCounts, constants: dict[str, Any]) -> pa.Table:
    """Each group against each other, by category: difference, Newcombe's interval, exact test."""
    names, sizes, counts = landed.groups.names, landed.groups.counts, landed.counts[: landed.kinds]
    pairs = list(itertools.combinations(range(len(names)), 2))
    first, second = np.array(pairs).T
    rate = counts / sizes
    low, high = wilson(counts, np.broadcast_to(sizes, counts.shape))
    value = rate[:, first] - rate[:, second]  # categories x pairs
    # Newcombe 1998, method 10: the two Wilson intervals put together
    down = np.hypot((rate - low)[:, first], (high - rate)[:, second])
    up = np.hypot((high - rate)[:, first], (rate - low)[:, second])
    both = [(row[[a, b]], sizes[[a, b]]) for row in counts for a, b in pairs]
    null = np.array([_gap_null(*pair) for pair in both])
    kinds, many = landed.kinds, len(pairs)
    return rows(
        value.size,
        **constants,
        metric="gaps",
        experiment=[f"{names[a]} against {names[b]}" for a, b in pairs] * kinds,
        group=[names[a] for a, _ in pairs] * kinds,
        target=np.repeat(landed.names[:kinds], many).tolist(),
        category=np.repeat(landed.names[:kinds], many).tolist(),
        **columns(
            value.ravel(),
            null=NullBand(np.zeros(len(null)), *null.T),
            p=[_p(*pair)[0] for pair in both],
            side="two",
            family="holm",
            interval=Interval(
                edges=((value - down).ravel(), (value + up).ravel()), method="Newcombe"
            ),
        ),
        n=(sizes[first] + sizes[second]).tolist() * kinds,
        n_group=sizes[first].tolist() * kinds,
        note=[note for note in landed.notes[:kinds] for _ in pairs],
    )


def _p(counts: Floats, sizes: Ints) -> Floats:
    """Exact, given how many images land there in all: hypergeometric, as Fisher's test."""
    total = round(counts.sum())
    if total == 0:
        return np.ones(len(counts))
    return top_count_p(np.minimum(counts, total), sizes, total)


def _null(counts: Floats, sizes: Ints) -> tuple[Floats, Floats, Floats]:
    total = round(counts.sum())
    if total == 0:
        return (np.zeros(len(sizes)),) * 3
    band = top_count_null(sizes, total)
    return band.mean / sizes, band.lo / sizes, band.hi / sizes


def _gap_null(counts: Floats, sizes: Ints) -> tuple[float, float]:
    """The difference of two rates whose counts have a fixed sum rises with the first count."""
    total = round(counts.sum())
    _, lo, hi = _null(counts, sizes)
    edges = [edge[0] - (total - edge[0] * sizes[0]) / sizes[1] for edge in (lo, hi)]
    return edges[0], edges[1]


def _run(
    model: TextEncoder, data: Mapping[str, Any], setting: AuditContext
) -> tuple[pa.Table, pa.Table]:
    faces = setting.seen(data["faces"])
    return harms(
        model,
        faces,
        prompts=harm_prompts(setting.classes, faces),
        attributes=setting.attributes_of(faces),
        convention=setting.convention,
        seed=setting.seed,
        resampling=setting.resampling,
        progress=setting.progress,
    )


PROBE = Probe(
    "Whose pictures are taken for animals or criminals? Rates by group and their gaps.",
    _run,
    needs=("faces",),
)
