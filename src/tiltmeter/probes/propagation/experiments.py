"""The eight experiments of Ghate et al. (2025): two scores for each query.

The intrinsic score is an SC-EAT effect of the query's embedding, the extrinsic score the mean
valence, or a group's share, of its top k retrieved items. Both are also computed with the items'
labels permuted: their correlation then does not come from the labels.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from tiltmeter.errors import InputError, UnknownNameError
from tiltmeter.metrics.arrays import like, namespace, similarities, to_numpy, unit
from tiltmeter.metrics.propagation import MIXED, group_effects, valence_effects
from tiltmeter.metrics.retrieval import mean_value_of_top_k
from tiltmeter.probes.probe import CannotRunError
from tiltmeter.types import Array, Floats, Groups, Ints

#: Queries and items of a retrieval, as named in messages.
ROLES = {
    "faces": "faces",
    "valence": "valence images",
    "lexicon": "lexicon sentences",
    "groups": "group sentences",
}
#: Their numbers in the paper (sentences: in each template).
PUBLISHED_SIZE = {"faces": 6000, "valence": 900, "lexicon": 20_000, "groups": 864}
VALENCE_SETS = ("cross", "own")
TEMPLATES = ("per_template", "pooled", "rho_per_template")
#: Valence that separates pleasant from unpleasant queries (Figure 7).
MIDDLE = 0.5
BANDS = ("pleasant", "unpleasant")
K_AS = ("auto", "count", "share")
_MAX_COSINES = 2**24  # cosines in memory at a time
_MAX_PERMUTED = 2**25  # scores under permuted labels in memory at a time


class Experiment(NamedTuple):
    """Queries retrieve items; `content` of the items is measured."""

    queries: str  # a role
    items: str
    content: str  # valence or group

    @property
    def grouped(self) -> bool:
        """Whether the queries have groups."""
        return self.queries in ("faces", "groups")


EXPERIMENTS = {
    "1*-a": Experiment("valence", "lexicon", "valence"),
    "1*-b": Experiment("lexicon", "valence", "valence"),
    "2*-a": Experiment("faces", "groups", "group"),
    "2*-b": Experiment("groups", "faces", "group"),
    "1-a": Experiment("faces", "lexicon", "valence"),
    "1-b": Experiment("groups", "valence", "valence"),
    "2-a": Experiment("valence", "groups", "group"),
    "2-b": Experiment("lexicon", "faces", "group"),
}


@dataclass(frozen=True, eq=False)
class ExperimentInput:
    """Embeddings of images, or of words in templates, with their labels."""

    role: str
    ids: tuple[str, ...]
    vectors: list[Array]  # images: one matrix; words: one per template
    valence: Floats | None = None
    groups: Groups | None = None
    dataset: str = ""
    notes: tuple[str, ...] = ()
    #: What each one shares with others: the parents of a morph, the words of a phrase.
    clusters: tuple[tuple[str, ...], ...] = ()

    def __post_init__(self) -> None:
        if any(len(matrix) != len(self.ids) for matrix in self.vectors):
            sizes = ", ".join(str(len(matrix)) for matrix in self.vectors)
            raise InputError(
                f"{ROLES[self.role]}: {len(self.ids)} ids, but {sizes} embeddings; "
                "expected one for each"
            )
        if self.valence is not None:
            v = np.asarray(self.valence, dtype=float)
            if not (np.isfinite(v).all() and v.min() >= 0 and v.max() <= 1):
                raise InputError(
                    f"{ROLES[self.role]}: valences range from {np.nanmin(v):g} to "
                    f"{np.nanmax(v):g}, {int(np.isnan(v).sum())} are missing; expected 0 "
                    "(unpleasant) to 1 (pleasant). Give the ends of their scale "
                    "(lexicon:FILE?scale=LOW,HIGH), or rescale them to 0 to 1"
                )

    def __len__(self) -> int:
        return len(self.ids)

    def pooled(self) -> ExperimentInput:
        """The sentences of all templates as one set."""
        times = len(self.vectors)
        if times == 1:
            return self
        xp = namespace(self.vectors[0])
        groups = self.groups
        return replace(
            self,
            ids=self.ids * times,
            # sentences of one phrase share it
            clusters=(self.clusters or tuple((name,) for name in self.ids)) * times,
            vectors=[xp.concatenate(self.vectors)],
            valence=None if self.valence is None else np.tile(self.valence, times),
            groups=groups and replace(groups, codes=np.tile(groups.codes, times)),
        )


@dataclass(frozen=True)
class PropagationConfig:
    """Sizes, and choices that the paper leaves open."""

    k: tuple[int, ...] = (500,)
    k_as: str = "count"  # or `share`: scale k by the number of items, relative to the paper's
    extremes: int = 25
    members: int = 140
    valence_sets: str = "cross"
    mixed: str = "all"
    templates: str = "per_template"
    ties: str = "expected"

    def __post_init__(self) -> None:
        for name, known in (("valence_sets", VALENCE_SETS), ("mixed", MIXED),
                            ("templates", TEMPLATES), ("k_as", K_AS)):  # fmt: skip
            if getattr(self, name) not in known:
                raise UnknownNameError(f"value of {name!r}", getattr(self, name), known)
        for name, minimum in (("extremes", 1), ("members", 2)):
            if getattr(self, name) < minimum:
                raise InputError(f"{name} must be at least {minimum}; got {getattr(self, name)}")
        if not self.k or min(self.k) < 1:
            raise InputError(f"k must be one or more integers of at least 1; got {self.k}")

    def compares_own(self, name: str) -> bool:
        """Whether an experiment takes its valence sets from the queries' own kind."""
        return "1*" in name and self.valence_sets == "own"

    def label(self, name: str) -> str:
        """The experiment's name, with the choices that differ from the default."""
        content = EXPERIMENTS[name].content
        unusual = [
            *([self.valence_sets] if self.compares_own(name) else []),
            *([self.mixed] if content == "group" and self.mixed != "all" else []),
            *([self.templates] if self.templates != "per_template" else []),
        ]
        return f"{name} ({', '.join(unusual)})" if unusual else name

    def k_of(self, name: str, items: ExperimentInput) -> list[int]:
        """Numbers of items to retrieve.

        Raises
        ------
        CannotRunError
            If there are fewer items.
        """
        ks = list(self.k)
        if self.k_as == "share":
            part = len(items) / PUBLISHED_SIZE[items.role]
            ks = list(dict.fromkeys(max(1, round(k * part)) for k in ks))
        if max(ks) > len(items):
            raise CannotRunError(
                f"{name} retrieves the top {max(ks)} of {len(items)} {ROLES[items.role]}: give "
                f"more of them, or a smaller k (--option propagation.k={max(1, len(items) // 2)})"
            )
        return ks


@dataclass(frozen=True, eq=False)
class ExperimentResult:
    """Scores of one experiment, under the true labels or several permutations of them."""

    name: str
    queries: ExperimentInput
    items: ExperimentInput
    k: list[int]
    intrinsic: Floats  # queries x permutations x columns: valence, or one per group
    extrinsic: Floats  # queries x k x permutations x columns
    reach: Floats  # k x query groups (or 1) x items: an item's mean share of the top k
    pull: Floats | None  # query groups x items of the group sets: mean standing
    members: Ints | None  # the rows of these items
    notes: tuple[str, ...]

    #: 2 bands x items, of pleasant and unpleasant queries: `reach` at the last k, and `pull`.
    by_band: tuple[Floats, Floats] | None = None
    #: Scores by template, if rho is computed within each.
    by_template: tuple[tuple[Floats, Floats], ...] = ()

    @property
    def experiment(self) -> Experiment:
        return EXPERIMENTS[self.name]

    @property
    def rho_scores(self) -> tuple[tuple[Floats, Floats], ...]:
        """Pairs of intrinsic and extrinsic scores whose rhos are averaged."""
        return self.by_template or ((self.intrinsic, self.extrinsic),)

    @property
    def groups(self) -> Groups | None:
        """The groups to compare: of the queries, or of the items if only these have groups."""
        return self.queries.groups if self.experiment.grouped else self.items.groups


def measure(
    name: str,
    queries: ExperimentInput,
    items: ExperimentInput,
    choices: PropagationConfig,
    rng: np.random.Generator,
    *,
    permutations: int = 0,
    members: Ints | None = None,
) -> ExperimentResult:
    """Intrinsic and extrinsic score of each query, averaged over templates.

    Parameters
    ----------
    name : str
        A key of `EXPERIMENTS`.
    queries, items : ExperimentInput
        What retrieves, and what is retrieved.
    choices : PropagationConfig
        Sizes and choices that the paper leaves open.
    rng : numpy.random.Generator
        Draws the group sets and permutes labels.
    permutations : int
        Measure under so many permutations of the items' labels instead of the true labels.
    members : array of int, optional
        Rows of the group sets; drawn at random if None.

    Returns
    -------
    ExperimentResult

    Raises
    ------
    CannotRunError
        If there are too few items for k, for the valence sets or for the group sets.
    """
    if choices.templates == "pooled":
        queries, items = queries.pooled(), items.pooled()
    ks = choices.k_of(name, items)
    # items are many: they are normalised in blocks, where they are used
    pairs = [(unit(q, ROLES[queries.role]), x) for q in queries.vectors for x in items.vectors]
    notes = [*queries.notes, *items.notes]
    by_valence = EXPERIMENTS[name].content == "valence"
    own_sets = choices.compares_own(name)
    if by_valence:
        values, sets = _permuted_valences(name, items, choices, permutations, rng)
        if own_sets:
            _, sets = _permuted_valences(name, queries, choices, permutations, rng)
        values = values[..., None]
    else:
        assert items.groups is not None
        if members is None:
            members, note = _group_sets(items, choices, rng)
            notes += [note] if note else []
        labels = _permuted_groups(items.groups, members, permutations, rng)
        values = (labels.T[..., None] == np.arange(len(items.groups.names))).astype(float)
    flat, tied = values.reshape(len(items), -1), 0
    # of queries without groups, pleasant and unpleasant ones are told apart
    bands = None if by_valence else valence_bands(queries)
    query_groups = queries.groups or bands
    total: list[Floats] = []
    by_template: list[tuple[Floats, Floats]] = []
    for q, x in pairs:
        if by_valence:
            effects, pull = _by_valence(q, q if own_sets else x, sets)[..., None], np.zeros(0)
        else:
            assert members is not None
            assert items.groups is not None
            effects, pull = _by_group(
                q, x, members, labels, items.groups, query_groups, choices.mixed
            )
        top = mean_value_of_top_k(q, x, ks, like(q, flat), by=query_groups, ties=choices.ties)
        parts = [effects, pull, to_numpy(top.means), to_numpy(top.reach)]
        total = total or [np.zeros(part.shape) for part in parts]
        for total_part, part in zip(total, parts, strict=True):
            total_part += part
        if choices.templates == "rho_per_template":
            scores = parts[2].reshape(len(q), len(ks), *values.shape[1:])
            by_template.append((effects, scores))
        tied += int(top.tied[-1])
    intrinsic, pull, extrinsic, reach = (total_part / len(pairs) for total_part in total)
    if tied > len(queries) * len(pairs) / 10:  # a few ties are due to rounding
        how = "shared equally" if choices.ties == "expected" else "given to the earlier rows"
        notes.append(f"{tied:,} retrievals tie for their last places; these are {how}")
    by_band = None
    if bands is not None:
        by_band, share = (reach[-1], pull), bands.counts / len(bands)
        reach, pull = np.einsum("b,kbi->ki", share, reach)[:, None], (share @ pull)[None]
    return ExperimentResult(
        name,
        queries,
        items,
        ks,
        intrinsic,
        extrinsic.reshape(*extrinsic.shape[:2], *values.shape[1:]),
        reach,
        None if by_valence else pull,
        members,
        tuple(dict.fromkeys(notes)),
        by_band,
        tuple(by_template),
    )


def valence_bands(queries: ExperimentInput) -> Groups | None:
    """Pleasant and unpleasant queries; None unless there are both."""
    if queries.valence is None:
        return None
    low = np.asarray(queries.valence) < MIDDLE
    return Groups(low.astype(np.int32), BANDS, "valence") if 0 < low.sum() < len(low) else None


def permuted(
    measured: ExperimentResult,
    choices: PropagationConfig,
    permutations: int,
    rng: np.random.Generator,
) -> Iterator[ExperimentResult]:
    """The same experiment with the items' labels permuted, in batches that fit into memory.

    Retrievals are repeated for each batch: keeping them takes more memory than the scores do.
    """
    columns = measured.intrinsic.shape[-1] * len(measured.k) * len(measured.rho_scores)
    step = max(1, _MAX_PERMUTED // (columns * max(len(measured.queries), len(measured.items))))
    for start in range(0, permutations, step):
        yield measure(
            measured.name,
            measured.queries,
            measured.items,
            choices,
            rng,
            permutations=min(step, permutations - start),
            members=measured.members,
        )


def _permuted_valences(
    name: str,
    side: ExperimentInput,
    choices: PropagationConfig,
    permutations: int,
    rng: np.random.Generator,
) -> tuple[Floats, Ints]:
    """Valences, items x permutations; rows of the extremes, permutations x 2 x n.

    Of equal valences the earlier rows count as less pleasant.
    """
    assert side.valence is not None
    n, m = len(side), choices.extremes
    if n < 2 * m:
        raise CannotRunError(
            f"{name} compares the {m} most pleasant with the {m} most unpleasant "
            f"{ROLES[side.role]}, but there are {n}: give more of them, or pass "
            f"--option propagation.extremes={max(1, n // 2)}"
        )
    valences = np.tile(side.valence, (permutations or 1, 1))
    if permutations:
        valences = rng.permuted(valences, axis=1)
    order = np.argsort(valences, axis=1, kind="stable")
    return valences.T, np.stack([order[:, n - m :], order[:, :m]], axis=1)


def _by_valence(queries: Array, items: Array, sets: Ints) -> Floats:
    """Valence SC-EAT, queries x permutations."""
    # permutations share most items: each cosine is computed once
    rows, columns = np.unique(sets, return_inverse=True)
    vectors, columns = _unit_rows(items, rows, queries), columns.reshape(sets.shape)
    step = _block(queries, vectors)
    return np.concatenate(
        [
            valence_effects(to_numpy(similarities(queries[start : start + step], vectors)), columns)
            for start in range(0, len(queries), step)
        ]
    )


def _block(queries: Array, items: Array) -> int:
    """How many queries are compared with the items at a time."""
    vectors = max(x.shape[1] if x.ndim == 3 else 1 for x in (queries, items))
    return max(1, _MAX_COSINES // (len(items) * vectors))


def _unit_rows(items: Array, rows: Ints, queries: Array) -> Array:
    """Unit vectors of the given rows, in the precision of the queries."""
    vectors = unit(items[like(items, rows, "int64")], "items")
    return like(queries, vectors, str(queries.dtype).rpartition(".")[2])


def _group_sets(
    items: ExperimentInput, choices: PropagationConfig, rng: np.random.Generator
) -> tuple[Ints, str | None]:
    """Rows of the group sets, of equal size for all groups; and a note."""
    groups = items.groups
    assert groups is not None
    size = min(choices.members, int(groups.counts.min()))
    note = None
    if size < choices.members:
        smallest = groups.names[int(groups.counts.argmin())]
        note = f"sets of {size} {ROLES[items.role]} per group, not {choices.members}: "
        note += f"{smallest!r} has {int(groups.counts.min())}"
    if size < 1 or len(groups.names) < 2:
        raise CannotRunError(
            f"a group SC-EAT of {ROLES[items.role]} needs at least two groups with members; got "
            + ", ".join(f"{n} {c}" for n, c in zip(groups.names, groups.counts, strict=True))
        )
    chosen = [
        np.sort(rng.choice(np.flatnonzero(groups.codes == code), size, replace=False))
        for code in range(len(groups.names))
    ]
    return np.concatenate(chosen), note


def _permuted_groups(
    groups: Groups, members: Ints, permutations: int, rng: np.random.Generator
) -> Ints:
    """Labels, permutations x items; permuted within the sets, and within the other items."""
    labels = np.tile(groups.codes, (permutations or 1, 1))
    if permutations:
        for part in (members, np.setdiff1d(np.arange(len(groups)), members)):
            labels[:, part] = rng.permuted(labels[:, part], axis=1)
    return labels


def _by_group(
    queries: Array,
    items: Array,
    members: Ints,
    labels: Ints,
    groups: Groups,
    query_groups: Groups | None,
    mixed: str,
) -> tuple[Floats, Floats]:
    """Group SC-EAT, queries x permutations x groups; and the mean standing of each set item.

    The standing of an item for a query is the z-score of its cosine: a group's effect is the mean
    standing of its items. Means are over the queries of each group.
    """
    n_groups = len(groups.names)
    query_groups = query_groups or Groups(np.zeros(len(queries), np.int32), ("all",))
    effects_by_block, standing = [], np.zeros((len(query_groups.names), len(members)))
    count = np.zeros((len(query_groups.names), 1))
    item_vectors = _unit_rows(items, members, queries)
    step = _block(queries, item_vectors)
    for start in range(0, len(queries), step):
        block = similarities(queries[start : start + step], item_vectors)
        cosines = to_numpy(block).astype(np.float64)
        effects = group_effects(cosines, labels[:, members], groups=n_groups, mixed=mixed)
        effects_by_block.append(effects)
        known = ~np.isnan(effects[:, 0, 0])
        z_scores = cosines[known] - cosines[known].mean(axis=1, keepdims=True)
        z_scores /= cosines[known].std(axis=1, ddof=1, keepdims=True)
        codes = query_groups.codes[start : start + step][known]
        membership = (codes == np.arange(len(query_groups.names))[:, None]).astype(float)
        standing, count = (
            standing + membership @ z_scores,
            count + membership.sum(axis=1, keepdims=True),
        )
    scale = 1.0 if mixed == "all" else n_groups / (n_groups - 1)
    return np.concatenate(effects_by_block), scale * standing / np.maximum(count, 1)
