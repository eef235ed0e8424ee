"""The figures of `ranking` from one pass over the images, part by part, on any engine.

No score is kept: parts leave digests that merge. Counts in the top k are exact, and so are all
figures made of them; their nulls and intervals are drawn as in the local audit, for the images that
come up alone (`ranking_tops`). C-ASC and its null come from the moments: where labels are dealt out
anew, its variance is n / (n_G (n - n_G)), and with so many images it is normal. NDKL of the whole
ranking comes with bounds, and without a null.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import pyarrow as pa
from scipy.stats import norm

from tiltmeter.engine.seam import Engine, Failed
from tiltmeter.engine.vectors import Part, Vectors, parts_of, sample
from tiltmeter.errors import InputError
from tiltmeter.metrics.arrays import matrix, to_numpy, unit
from tiltmeter.metrics.convention import Convention
from tiltmeter.metrics.digest import IMAGES, Digest, digest_blocks, finest
from tiltmeter.metrics.histogram import Grid
from tiltmeter.metrics.ranking import target_shares
from tiltmeter.metrics.summary import Moments, check_k
from tiltmeter.probes.figure import Figure, Layout, tabulate
from tiltmeter.probes.probe import Effort
from tiltmeter.probes.ranking import checked
from tiltmeter.probes.ranking_figures import Parts, Task, figures
from tiltmeter.probes.ranking_tops import Tops, held
from tiltmeter.results import combined
from tiltmeter.stats.multiplicity import holm
from tiltmeter.stats.null import Band
from tiltmeter.stats.placebo import verdict
from tiltmeter.types import Faces, Floats, Groups, Ints, Progress, Prompt, TextEncoder

SAMPLE = 4096  # images that the bins are laid out by
LEAST_P = 1e-300  # a normal tail gives no 0
#: Images of a part: all but few are cut into as many parts, whoever works on them.
SMALLEST, LARGEST, PARTS = 1 << 14, 1 << 20, 16


@dataclass(frozen=True, eq=False)
class Digesting:
    """What travels to a worker: the texts, and how images are counted."""

    texts: Floats
    groups: int
    k: int
    grid: Grid
    images: str  # the convention's choice

    def __call__(self) -> Callable[[Part], Digest]:
        return self.work

    def work(self, part: Part) -> Digest:
        """The digest of a part, of which no more than a block is in memory."""
        found = digest_blocks(
            self.texts, self._blocks(part),
            groups=self.groups, k=self.k, grid=self.grid, first=part.first,
        )  # fmt: skip
        return replace(found, histogram=found.histogram.packed())

    def _blocks(self, part: Part) -> Iterator[tuple[Floats, Ints]]:
        for at in range(0, len(part.codes), IMAGES):
            vectors = part.vectors.part(at, at + IMAGES).read()
            yield scaled(vectors, self.images, part.first + at), part.codes[at : at + IMAGES]


@dataclass(frozen=True, eq=False)
class Found:
    """Rows of RESULTS, and parts that could not be read: their first image and the reason."""

    table: pa.Table
    failed: dict[int, str]
    images: int  # that were measured
    digest: Digest


def ranking_by_parts(
    model: TextEncoder,
    faces: Faces,
    vectors: Vectors,
    *,
    prompts: Sequence[Prompt],
    attributes: Sequence[str],
    convention: Convention,
    engine: Engine,
    seed: int = 0,
    effort: Effort | None = None,
    size: int | None = None,
    progress: Progress | None = None,
) -> Found:
    """Skew, MaxSkew, MinSkew, entropy, NDKL and C-ASC of faces whose vectors lie elsewhere."""
    effort = effort or Effort()
    if convention.balance != "asis":
        raise InputError(
            f"the convention {convention.name!r} draws images so that groups are of one size: "
            "that takes --engine local"
        )
    prompts = sorted(prompts, key=lambda prompt: prompt.role != "word")
    words = sum(prompt.role == "word" for prompt in prompts)
    if not words:
        raise InputError("there is no word to measure: every prompt is a placebo")
    by = {name: checked(faces.attribute(name)) for name in attributes}
    check_k(max(convention.k), len(faces))
    some = scaled(sample(vectors, SAMPLE), convention.images)
    texts = unit(to_numpy(model.encode_texts([prompt.text for prompt in prompts])), "texts")
    if texts.shape[1] != some.shape[1]:
        raise InputError(
            f"texts have {texts.shape[1]} dimensions, images {some.shape[1]}: "
            "they must come from one model"
        )
    texts = np.asarray(texts, some.dtype)
    codes, kinds = finest(list(by.values()))
    size = size or int(np.clip(-(-len(faces) // PARTS), SMALLEST, LARGEST))
    parts = parts_of(vectors, codes, size)
    k = held(max(convention.k), len(faces))
    make = Digesting(texts, len(kinds), k, Grid.around(texts @ some.T), convention.images)
    whole: Digest | None = None
    failed: dict[int, str] = {}
    there = np.ones(len(faces), bool)
    for done, (part, found) in enumerate(zip(parts, engine.run(make, parts), strict=True), 1):
        if isinstance(found, Failed):
            failed[part.first] = found.reason
            there[part.first : part.first + len(part.codes)] = False
        else:
            whole = found if whole is None else whole.merge(found)
        if progress:
            progress("ranking images", done / len(parts))
    if whole is None:
        raise InputError(f"no vectors could be read: {next(iter(failed.values()))}")
    rng = np.random.default_rng(seed)
    constants: dict[str, object] = {
        "probe": "ranking",
        "model": getattr(model, "name", type(model).__name__),
        "dataset": faces.name,
        "convention": convention.name,
        "seed": seed,
    }
    layout, tables = Layout.of(prompts), []
    for at, groups in enumerate(by.values()):
        groups = checked(groups[there]) if failed else groups
        mine = whole.regroup(kinds[:, at], len(groups.names))
        for figure in _figures(mine, groups, convention, words, effort, rng):
            table = tabulate(figure, layout, rng=rng.spawn(1)[0], constants=constants)
            tables.append(with_family(table))
    return Found(combined(tables), failed, int(there.sum()), whole)


def scaled(images: Floats, how: str, first: int = 0) -> Floats:
    """Image vectors as the convention takes them."""
    if how == "raw":
        return np.asarray(matrix(images, "images", "images", "dimensions", first))
    return np.asarray(unit(images, "images", first))


def _figures(
    found: Digest,
    groups: Groups,
    convention: Convention,
    words: int,
    effort: Effort,
    rng: np.random.Generator,
) -> list[Figure]:
    q = target_shares(convention.target, groups)
    part = Parts(len(found.top.scores), words)
    for k in convention.k:
        part.add(f"top {k}", found.top_counts(k, convention.ties))
    Tops.of(found.top).add_draws(part, groups, convention.k, words, effort, rng)
    bounded = found.whole_ndkl(q)
    part.add("ndkl", bounded.value)
    part.add("tied", np.zeros(len(bounded.value)))
    none: tuple[Ints, Ints] = (np.empty((0, len(groups)), np.uint8), np.arange(len(groups.names)))
    top = list(figures(Task(groups.attribute, True), part, groups, convention, words, none, rng))
    notes = [
        f"from histograms: between {low:.6g} and {high:.6g}"
        for low, high in zip(bounded.low, bounded.high, strict=True)
    ]
    exact = [
        replace(top[-1], values=found.ndkl(q, k)[:, None], k=k, notes=None) for k in convention.k
    ]
    return [c_asc_figure(found.moments, groups, found.c_asc()), *top[:-1],
            replace(top[-1], notes=notes), *exact]  # fmt: skip


def with_family(table: pa.Table) -> pa.Table:
    """Family-wise p-values and verdicts for words: by Holm, where there were no relabellings."""
    p, p_placebo, p_fwer = (
        np.array(table[name].to_pylist(), float) for name in ("p", "p_placebo", "p_fwer")
    )
    concept, category = table["concept"].to_pylist(), table["category"].to_pylist()
    word = np.array([c is not None for c in concept]) & (np.array(category) != "placebo")
    adjusted = holm(np.where(word, p, np.nan))
    told = np.isfinite(adjusted) & ~np.isfinite(p_fwer[word]).any()
    p_fwer = np.where(told, adjusted, p_fwer)
    columns = {
        "p_fwer": p_fwer,
        "verdict": [verdict(*pair) for pair in zip(p_fwer, p_placebo, strict=True)],
        "note": [
            "p_fwer by Holm" if new else note
            for new, note in zip(told, table["note"].to_pylist(), strict=True)
        ],
    }
    for name, values in columns.items():
        field = table.schema.field(name)
        column = pa.array(values, field.type, from_pandas=True)
        table = table.set_column(table.schema.get_field_index(name), field, column)
    return table


def c_asc_figure(moments: Moments, groups: Groups, values: Floats) -> Figure:
    """C-ASC with null, p and interval from counts, means and second moments."""
    n, size = float(moments.count.sum()), np.asarray(moments.count, float)
    spread = np.sqrt(n / (size * (n - size)))
    null = Band(0 * spread, norm.ppf(0.025) * spread, norm.ppf(0.975) * spread)
    p = np.maximum(2 * norm.sf(np.abs(values) / spread), LEAST_P)
    errors = [c_asc_error(moments.regroup(np.arange(len(size)) != g, 2)) for g in range(len(size))]
    reach = norm.ppf(0.975) * np.stack(errors, axis=1)
    return Figure(
        "c_asc",
        groups,
        values,
        side="two",
        ideal=0.0,
        exact_null=null,
        exact_p=p,
        exact_ci=(values - reach, values + reach),
        exact_ci_method="delta method on moments",
        undefined="all images have the same score",
    )


def c_asc_error(two: Moments) -> Floats:
    """The standard error of C-ASC of the first of two groups, by the delta method.

    C = gap / S and S^2 = p v_1 + (1 - p) v_2 + p (1 - p) gap^2: the means move the gap and S, the
    variances v (which scatter as those of normal scores do) move S alone.
    """
    count = np.asarray(two.count, float)
    share = count / count.sum()
    v = two.m2 / (count - 1)
    gap = two.mean[:, 0] - two.mean[:, 1]
    within = (share * v).sum(axis=1)
    total = within + share.prod() * gap**2
    cubed = np.where(total > 0, total, np.nan) ** 1.5
    of_means = (within / cubed) ** 2 * (v / count).sum(axis=1)
    of_spread = (gap / (2 * cubed)) ** 2 * (share**2 * 2 * v**2 / count).sum(axis=1)
    return np.asarray(np.sqrt(of_means + of_spread))
