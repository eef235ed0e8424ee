"""The figures of `ranking` from one pass over the images, part by part, on any engine.

No score is kept: parts leave digests that merge. Counts in the top k are exact, and so are all
figures made of them; their nulls and intervals are drawn as in the local audit, for the images that
come up alone (`ranking_tops`). C-ASC and its noise come from the moments (`ranking_moments`). NDKL
of the whole ranking comes from histograms, with bounds, and so do its null and its interval
(`stats.whole_ranking`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
import pyarrow as pa

from tiltmeter.engine.seam import Engine, Failed
from tiltmeter.engine.vectors import Part, Vectors, parts_of, sample
from tiltmeter.errors import InputError
from tiltmeter.metrics.arrays import matrix, to_numpy, unit
from tiltmeter.metrics.convention import Convention
from tiltmeter.metrics.digest import IMAGES, Digest, digest_blocks, finest
from tiltmeter.metrics.histogram import Grid
from tiltmeter.metrics.numpy_kernels import ndkl_of_labels
from tiltmeter.metrics.ranking import log_shares, target_shares
from tiltmeter.metrics.summary import check_k
from tiltmeter.probes.draws import Draws
from tiltmeter.probes.figure import Figure, Layout
from tiltmeter.probes.opposites import opposites
from tiltmeter.probes.probe import Effort
from tiltmeter.probes.ranking import checked
from tiltmeter.probes.ranking_figures import Parts, Task, figures
from tiltmeter.probes.ranking_moments import boot_draws, c_asc_figure, gap, null_draws, together
from tiltmeter.probes.ranking_rows import constants_of, figure_rows, instances, words_first
from tiltmeter.probes.ranking_tops import Tops, held, relabelled
from tiltmeter.results import combined
from tiltmeter.stats.multiplicity import holm
from tiltmeter.stats.null import band_of, p_of_sample
from tiltmeter.stats.placebo import verdict
from tiltmeter.stats.whole_ranking import ndkl_by_chance, resampled_ndkl, stretch_counts
from tiltmeter.types import Faces, Floats, Groups, Ints, Progress, Prompt, TextEncoder

SAMPLE = 4096  # images that the bins are laid out by
RESAMPLES = 99  # for NDKL's interval: of their spread alone
#: Random rankings for NDKL's p, by word and at the most: Holm takes smaller ones than maxT.
DRAWS, MOST_DRAWS = 50, 20_000
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
    instances: pa.Table  # the top images of each word
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
    pairs: Sequence[tuple[str, str]] = (),
) -> Found:
    """What `ranking` measures, of faces whose vectors lie elsewhere."""
    effort = effort or Effort()
    convention = convention.on(faces.name, faces.groups)
    if convention.balance != "asis":
        raise InputError(
            f"the convention {convention.name!r} draws images so that groups are of one size: "
            "that takes --engine local"
        )
    prompts, words = words_first(prompts)
    by = {name: checked(faces.attribute(name)) for name in attributes}
    check_k(max(convention.k), len(faces))
    rows, some = sample(vectors, SAMPLE)
    some = scaled(some, convention.images)
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
        elif whole is None:
            whole = replace(found, histogram=found.histogram.unpacked())
        else:
            whole = whole.absorb(found)
        if progress:
            progress("ranking images", done / len(parts))
    if whole is None:
        raise InputError(f"no vectors could be read: {next(iter(failed.values()))}")
    rng = np.random.default_rng(seed)
    constants, layout = constants_of(model, faces, convention, seed), Layout.of(prompts)
    among = together(texts, some)
    tables = []
    for at, (name, groups) in enumerate(by.items()):
        groups = checked(groups[there]) if failed else groups
        mine = whole.regroup(kinds[:, at], len(groups.names))
        null, boot = None, None
        if effort.permutations:
            null = null_draws(among, groups.counts, effort.permutations, rng)
        if effort.bootstraps:
            within = together(texts, some, by[name].codes[rows])
            boot = boot_draws(within, mine.moments, effort.bootstraps, rng)
        near = c_asc_figure(mine.moments, groups, null=null, boot=boot and boot.c_asc)
        for figure in (near, *_ranked(mine, groups, convention, words, effort, rng)):
            dice = rng.spawn(1)[0]
            found = figure_rows(figure, layout, prompts, faces.truth, rng=dice, constants=constants)
            tables += [with_family(found[0]), *found[1:]]
        drawn = np.empty((len(texts), 0, len(groups.names))) if boot is None else boot.gap
        gaps = partial(_gaps, gap(mine.moments.mean, groups.counts), drawn.swapaxes(0, 1))
        tables.append(opposites(gaps, groups, prompts, pairs, rng=rng, constants=constants))
    best = max(convention.k)
    shown = instances(
        constants, faces, prompts[:words], whole.top.ids[:words, :best],
        whole.top.scores[:words, :best],
    )  # fmt: skip
    return Found(combined(tables), shown, failed, int(there.sum()), whole)


def _gaps(gap: Floats, drawn: Floats, at: Ints) -> tuple[Floats, Floats]:
    return gap[at], drawn[:, at]


def scaled(images: Floats, how: str, first: int = 0) -> Floats:
    """Image vectors as the convention takes them."""
    if how == "raw":
        return np.asarray(matrix(images, "images", "images", "dimensions", first))
    return np.asarray(unit(images, "images", first))


def _ranked(
    found: Digest,
    groups: Groups,
    convention: Convention,
    words: int,
    effort: Effort,
    rng: np.random.Generator,
) -> Iterator[Figure]:
    """Figures that take rankings: those of the top k, and NDKL of all and of the top k."""
    q = target_shares(convention.target, groups)
    part = Parts(len(found.top.scores), words)
    for k in convention.k:
        part.add(f"top {k}", found.top_counts(k, convention.ties))
    tops = Tops.of(found.top)
    tops.add_draws(part, groups, convention.k, words, effort, rng)
    bounded = found.whole_ndkl(q)
    part.add("ndkl", bounded.value)
    part.add("tied", np.zeros(len(bounded.value)))
    none: tuple[Ints, Ints] = (np.empty((0, len(groups)), np.uint8), np.arange(len(groups.names)))
    *top, plain = figures(Task(groups.attribute, True), part, groups, convention, words, none, rng)
    yield from top
    notes = [
        f"from histograms: between {low:.6g} and {high:.6g}"
        for low, high in zip(bounded.low, bounded.high, strict=True)
    ]
    log_q, sizes = log_shares(q), groups.counts
    yield _with_noise(
        replace(plain, notes=notes),
        bounded.low,  # whatever the order within bins: p is not below that
        words,
        effort,
        lambda draws: ndkl_by_chance(sizes, q, draws, rng),
        lambda draws: np.stack([
            resampled_ndkl(stretch_counts(*one), q, draws, rng)
            for one in zip(found.top.codes[:words], found.histogram.counts[:words], strict=True)
        ]),
    )  # fmt: skip
    for k in convention.k:
        values = found.ndkl(q, k)
        yield _with_noise(
            replace(plain, values=values[:, None], k=k, notes=None),
            values,
            words,
            effort,
            partial(_ndkl_by_chance, k, sizes, log_q, rng),
            partial(tops.resampled_ndkl, k, sizes, log_q, words, rng),
        )


def _ndkl_by_chance(
    k: int, sizes: Ints, log_q: Floats, rng: np.random.Generator, draws: int
) -> Floats:
    return ndkl_of_labels(relabelled(k, sizes, draws, rng), log_q)


def _with_noise(
    figure: Figure,
    least: Floats,
    words: int,
    effort: Effort,
    null: Callable[[int], Floats],
    boot: Callable[[int], Floats],
) -> Figure:
    """NDKL with its null, the p-value of the `least` that it can be, and draws of words."""
    if effort.permutations:
        drawn = null(max(effort.permutations, min(DRAWS * words, MOST_DRAWS)))
        p, band = p_of_sample(least, drawn, figure.side)[:, None], band_of(drawn[:, None])
        figure = replace(figure, exact_null=band, exact_p=p, alike=drawn)
    if effort.bootstraps:
        # in order, so that a mean over words has the widest interval that it can have
        spread = np.sort(boot(min(effort.bootstraps, RESAMPLES)), axis=1)
        figure = replace(figure, boot=Draws(spread[..., None]))
    return figure


def with_family(table: pa.Table) -> pa.Table:
    """Family-wise p-values and verdicts for words: by Holm, where there were no relabellings.

    Prompts are one family, words that stand in several templates another.
    """
    p, p_placebo, p_fwer = (
        np.array(table[name].to_pylist(), float) for name in ("p", "p_placebo", "p_fwer")
    )
    concept, category, template = (
        np.array(table[name].to_pylist(), object) for name in ("concept", "category", "template")
    )
    word = (concept != None) & (category != "placebo")  # noqa: E711
    told = np.zeros(len(p), bool)
    if not np.isfinite(p_fwer[word]).any():
        for level in (template == None, template != None):  # noqa: E711
            adjusted = holm(np.where(word & level, p, np.nan))
            told |= np.isfinite(adjusted)
            p_fwer = np.where(np.isfinite(adjusted), adjusted, p_fwer)
    columns = {
        "p_fwer": p_fwer,
        "verdict": [verdict(*pair) for pair in zip(p_fwer, p_placebo, strict=True)],
        "note": [
            "; ".join(filter(None, (note, "p_fwer by Holm" if new else None))) or None
            for new, note in zip(told, table["note"].to_pylist(), strict=True)
        ],
    }
    for name, values in columns.items():
        field = table.schema.field(name)
        column = pa.array(values, field.type, from_pandas=True)
        table = table.set_column(table.schema.get_field_index(name), field, column)
    return table
