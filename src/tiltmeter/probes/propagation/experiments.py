"""Two numbers for each query: what its vector is near to, and what it retrieves.

The eight experiments of Ghate et al. (2025). The intrinsic number is an SC-EAT effect, the
extrinsic one the mean valence, or a group's share, of the top k. Both are taken again with the
items' labels permuted: what they have in common then is not what the labels say.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from tiltmeter.errors import InputError, UnknownNameError
from tiltmeter.metrics.arrays import like, namespace, to_numpy, unit
from tiltmeter.metrics.propagation import MIXED, group_effects, valence_effects
from tiltmeter.metrics.retrieval import top_means
from tiltmeter.probes.probe import CannotRunError
from tiltmeter.types import Array, Floats, Groups, Ints

#: What stands on either side of a retrieval, in words.
ROLES = {
    "faces": "faces",
    "valence": "valence pictures",
    "lexicon": "lexicon sentences",
    "groups": "group sentences",
}
#: How many of them the study has (sentences: in each template).
PUBLISHED_SIZE = {"faces": 6000, "valence": 900, "lexicon": 20_000, "groups": 864}
VALENCE_SETS = ("cross", "own")
TEMPLATES = ("per_template", "pooled")
K_AS = ("auto", "count", "share")
_HELD = 2**24  # cosines in memory at one time
_PERMUTED = 2**25  # numbers under permuted labels in memory at one time


class Experiment(NamedTuple):
    queries: str  # a role
    items: str
    content: str  # valence or group: what is measured of the items

    @property
    def grouped(self) -> bool:
        """Whether queries belong to groups themselves."""
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
    """Images, or words in templates, with what is known of them."""

    role: str
    ids: tuple[str, ...]
    vectors: list[Array]  # images: one matrix; words: one per template
    valence: Floats | None = None
    groups: Groups | None = None
    dataset: str = ""
    notes: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if any(len(one) != len(self.ids) for one in self.vectors):
            sizes = ", ".join(str(len(one)) for one in self.vectors)
            raise InputError(f"{ROLES[self.role]}: {len(self.ids)} of them, but {sizes} vectors")
        if self.valence is not None:
            v = np.asarray(self.valence, dtype=float)
            if not (np.isfinite(v).all() and v.min() >= 0 and v.max() <= 1):
                raise InputError(
                    f"{ROLES[self.role]}: valences run from {np.nanmin(v):g} to {np.nanmax(v):g}, "
                    f"{int(np.isnan(v).sum())} are missing; expected 0 (unpleasant) to 1 "
                    "(pleasant). Name the ends of their scale (lexicon:FILE?scale=LOW,HIGH), or "
                    "move them to 0 to 1"
                )

    def __len__(self) -> int:
        return len(self.ids)

    def pooled(self) -> ExperimentInput:
        """Every sentence on its own, whatever its template."""
        times = len(self.vectors)
        if times == 1:
            return self
        xp = namespace(self.vectors[0])
        groups = self.groups
        return replace(
            self,
            ids=self.ids * times,
            vectors=[xp.concatenate(self.vectors)],
            valence=None if self.valence is None else np.tile(self.valence, times),
            groups=groups and replace(groups, codes=np.tile(groups.codes, times)),
        )


@dataclass(frozen=True)
class PropagationConfig:
    """What the study leaves open, and its sizes."""

    k: tuple[int, ...] = (500,)
    k_as: str = "count"  # or `share`: the same part of the items as k is of the study's
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
                raise UnknownNameError(f"choice for {name!r}", getattr(self, name), known)
        for name, least in (("extremes", 1), ("members", 2)):
            if getattr(self, name) < least:
                raise InputError(f"{name} must be at least {least}; got {getattr(self, name)}")
        if not self.k or min(self.k) < 1:
            raise InputError(f"k must be one or more whole numbers from 1 up; got {self.k}")

    def told(self, name: str) -> str:
        """An experiment's name, with the readings that are not the usual ones."""
        content = EXPERIMENTS[name].content
        unusual = [
            *([self.valence_sets] if "1*" in name and self.valence_sets != "cross" else []),
            *([self.mixed] if content == "group" and self.mixed != "all" else []),
            *([self.templates] if self.templates != "per_template" else []),
        ]
        return f"{name} ({', '.join(unusual)})" if unusual else name

    def k_of(self, name: str, items: ExperimentInput) -> list[int]:
        """How many items to retrieve; more than there are cannot be."""
        found = list(self.k)
        if self.k_as == "share":
            part = len(items) / PUBLISHED_SIZE[items.role]
            found = list(dict.fromkeys(max(1, round(k * part)) for k in found))
        if max(found) > len(items):
            raise CannotRunError(
                f"{name} retrieves the top {max(found)} of {len(items)} {ROLES[items.role]}: give "
                f"more of them, or a smaller k (--option propagation.k={max(1, len(items) // 2)})"
            )
        return found


@dataclass(frozen=True, eq=False)
class ExperimentResult:
    """One experiment's numbers, for one or several ways to label the items."""

    name: str
    queries: ExperimentInput
    items: ExperimentInput
    k: list[int]
    intrinsic: Floats  # queries x ways x columns: valence, or one per group
    extrinsic: Floats  # queries x k x ways x columns
    reach: Floats  # k x query groups (or 1) x items: how much of the top k an item fills
    pull: Floats | None  # query groups x items of the group sets: how near these are, on average
    members: Ints | None  # the rows of these items
    notes: tuple[str, ...]

    @property
    def experiment(self) -> Experiment:
        return EXPERIMENTS[self.name]

    @property
    def groups(self) -> Groups | None:
        """Those that are compared: of the queries, or of the items where only these have any."""
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
    """The intrinsic and the extrinsic number of each query, mean over templates.

    With `permutations` the items' labels are permuted so many times, and the true ones are left
    out. `members` are the rows of the group sets; without them they are drawn.
    """
    if choices.templates == "pooled":
        queries, items = queries.pooled(), items.pooled()
    ks = choices.k_of(name, items)
    # items are many: their lengths are set where they are used, some at a time
    pairs = [(unit(q, ROLES[queries.role]), x) for q in queries.vectors for x in items.vectors]
    notes = [*queries.notes, *items.notes]
    by_valence = EXPERIMENTS[name].content == "valence"
    own = by_valence and "*" in name and choices.valence_sets == "own"
    if by_valence:
        values, sets = _valence_ways(name, items, choices, permutations, rng)
        if own:
            _, sets = _valence_ways(name, queries, choices, permutations, rng)
        values = values[..., None]
    else:
        assert items.groups is not None
        if members is None:
            members, note = _group_sets(items, choices, rng)
            notes += [note] if note else []
        labels = _group_ways(items.groups, members, permutations, rng)
        values = (labels.T[..., None] == np.arange(len(items.groups.names))).astype(float)
    flat, tied = values.reshape(len(items), -1), 0
    total: list[Floats] = []
    for q, x in pairs:
        if by_valence:
            effects, pull = _by_valence(q, q if own else x, sets)[..., None], np.zeros(0)
        else:
            assert members is not None
            assert items.groups is not None
            effects, pull = _by_group(
                q, x, members, labels, items.groups, queries.groups, choices.mixed
            )
        top = top_means(q, x, ks, like(q, flat), by=queries.groups, ties=choices.ties)
        parts = [effects, pull, to_numpy(top.means), to_numpy(top.reach)]
        total = total or [np.zeros(part.shape) for part in parts]
        for whole, part in zip(total, parts, strict=True):
            whole += part
        tied += int(top.tied[-1])
    intrinsic, pull, extrinsic, reach = (whole / len(pairs) for whole in total)
    if tied > len(queries) * len(pairs) / 10:  # some always do, by rounding
        way = "shared evenly" if choices.ties == "expected" else "given to the earlier rows"
        notes.append(f"{tied:,} retrievals tie for their last places, which are {way}")
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
    )


def permuted(
    measured: ExperimentResult,
    choices: PropagationConfig,
    permutations: int,
    rng: np.random.Generator,
) -> Iterator[ExperimentResult]:
    """The same experiment with the items' labels permuted, as many times at once as memory holds.

    Retrievals are made again each time: to keep them takes more memory than the numbers do.
    """
    columns = measured.intrinsic.shape[-1] * max(1, len(measured.k))
    step = max(1, _PERMUTED // (columns * max(len(measured.queries), len(measured.items))))
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


def _valence_ways(
    name: str,
    side: ExperimentInput,
    choices: PropagationConfig,
    permutations: int,
    rng: np.random.Generator,
) -> tuple[Floats, Ints]:
    """Valences, items x ways; rows of the most pleasant and the most unpleasant, ways x 2 x n.

    Of equal valences the earlier rows count as the less pleasant.
    """
    assert side.valence is not None
    n, m = len(side), choices.extremes
    if n < 2 * m:
        raise CannotRunError(
            f"{name} compares the {m} most pleasant with the {m} most unpleasant of "
            f"{ROLES[side.role]}, but there are {n}: give more, or --option propagation.extremes="
            f"{max(1, n // 2)}"
        )
    ways = np.tile(side.valence, (permutations or 1, 1))
    if permutations:
        ways = rng.permuted(ways, axis=1)
    order = np.argsort(ways, axis=1, kind="stable")
    return ways.T, np.stack([order[:, n - m :], order[:, :m]], axis=1)


def _by_valence(queries: Array, items: Array, sets: Ints) -> Floats:
    """Valence SC-EAT, queries x ways."""
    # ways share most of their items: each cosine is computed once
    rows, columns = np.unique(sets, return_inverse=True)
    some, columns = _rows(items, rows, queries), columns.reshape(sets.shape)
    step = max(1, _HELD // len(rows))
    return np.concatenate(
        [
            valence_effects(to_numpy(queries[start : start + step] @ some.T), columns)
            for start in range(0, len(queries), step)
        ]
    )


def _rows(items: Array, rows: Ints, queries: Array) -> Array:
    """Unit vectors of some items, in the precision of the queries."""
    found = unit(items[like(items, rows, "int64")], "items")
    return like(queries, found, str(queries.dtype).rpartition(".")[2])


def _group_sets(
    items: ExperimentInput, choices: PropagationConfig, rng: np.random.Generator
) -> tuple[Ints, str | None]:
    """Rows of the group sets, all groups alike large; and a note."""
    groups = items.groups
    assert groups is not None
    each = min(choices.members, int(groups.counts.min()))
    note = None
    if each < choices.members:
        least = groups.names[int(groups.counts.argmin())]
        note = f"sets of {each} {ROLES[items.role]} a group, not {choices.members}: {least!r} has "
        note += f"{int(groups.counts.min())}"
    if each < 1 or len(groups.names) < 2:
        raise CannotRunError(
            f"a group SC-EAT of {ROLES[items.role]} takes at least two groups that have some; got "
            + ", ".join(f"{n} {c}" for n, c in zip(groups.names, groups.counts, strict=True))
        )
    chosen = [
        np.sort(rng.choice(np.flatnonzero(groups.codes == code), each, replace=False))
        for code in range(len(groups.names))
    ]
    return np.concatenate(chosen), note


def _group_ways(groups: Groups, members: Ints, permutations: int, rng: np.random.Generator) -> Ints:
    """Labels, ways x items. They are permuted among the items of the sets, and among the others."""
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
    asking: Groups | None,
    mixed: str,
) -> tuple[Floats, Floats]:
    """Group SC-EAT, queries x ways x groups; and the mean standing of each item of the sets.

    The standing of an item with a query is its cosine, from the mean of all and by their spread: a
    group's effect is the mean standing of its items. Means are over the queries of each group.
    """
    many = len(groups.names)
    asking = asking or Groups(np.zeros(len(queries), np.int32), ("all",))
    found, standing = [], np.zeros((len(asking.names), len(members)))
    count = np.zeros((len(asking.names), 1))
    step = max(1, _HELD // len(members))
    some = _rows(items, members, queries)
    for start in range(0, len(queries), step):
        cosines = to_numpy(queries[start : start + step] @ some.T).astype(np.float64)
        effects = group_effects(cosines, labels[:, members], groups=many, mixed=mixed)
        found.append(effects)
        there = ~np.isnan(effects[:, 0, 0])
        away = cosines[there] - cosines[there].mean(axis=1, keepdims=True)
        away /= cosines[there].std(axis=1, ddof=1, keepdims=True)
        codes = asking.codes[start : start + step][there]
        of = (codes == np.arange(len(asking.names))[:, None]).astype(float)
        standing, count = standing + of @ away, count + of.sum(axis=1, keepdims=True)
    scale = 1.0 if mixed == "all" else many / (many - 1)
    return np.concatenate(found), scale * standing / np.maximum(count, 1)
