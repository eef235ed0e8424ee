"""Who comes up first for a word, and how near is each group to it? (Berg et al. 2022, So-B-IT)

For every prompt the images are ranked by cosine. Skew, MaxSkew, MinSkew and the entropy of the
top k, NDKL of the whole ranking, and C-ASC of the cosines themselves, for every attribute; each
with its null (exact where it can be), interval, family-wise p-value, and p among placebo words.
Of a re-ranker the order that it shows is measured instead (`reordered`), and its cosines are not.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from tiltmeter.errors import InputError
from tiltmeter.metrics import numpy_kernels as loops
from tiltmeter.metrics.arrays import matrix, to_numpy, unit
from tiltmeter.metrics.association import c_asc_of_moments
from tiltmeter.metrics.convention import Convention
from tiltmeter.metrics.ranking import log_shares, target_shares
from tiltmeter.metrics.summary import Moments, TopItems, check_k
from tiltmeter.probes.figure import Figure, Layout
from tiltmeter.probes.opposites import gaps_of, opposites
from tiltmeter.probes.probe import Effort, Probe, Setting
from tiltmeter.probes.ranking_figures import MANY_TIES, Parts, Task, figures, passes
from tiltmeter.probes.ranking_rows import constants_of, figure_rows, instances, words_first
from tiltmeter.probes.reordered import Reordering, add_shown, noted, orders, reordering_of
from tiltmeter.prompting import opposite_words
from tiltmeter.results import INSTANCES, combined
from tiltmeter.stats import kernels
from tiltmeter.stats.bootstrap import stratified_weights
from tiltmeter.types import Array, Faces, Floats, Groups, Ints, Progress, Prompt, TextEncoder

#: Prompts at one time, by device: their scores and rankings are all that is held.
BLOCK, BLOCK_OF_TENSORS = 64, 512
#: Figures whose statistics are made at one time where another device draws: more took no less time.
THREADS = 4
#: Ranks walked over for NDKL's relabellings, and for its intervals: seconds, not minutes.
NDKL_STEPS, FEWEST_DRAWS = 4 * 10**8, 99


@dataclass(frozen=True, eq=False)
class Sample:
    """The images that some attributes are measured on, and all that is drawn for them."""

    rows: Ints | None  # None: all of them
    groups: dict[str, Groups]
    #: Permutations x images: labels dealt out anew, those of all attributes together ...
    relabelled: Ints
    #: ... and by attribute the group that such a label stands for.
    group_of: dict[str, Ints]
    #: By attribute, bootstraps x images.
    weights: dict[str, Ints]
    shuffled: Ints  # the images in random order


@dataclass(frozen=True, eq=False)
class Place:
    """Where the work is done: NumPy arrays and their loops, or tensors on a device and theirs."""

    loops: Any
    kernels: Any
    device: str | None = None

    @classmethod
    def on(cls, device: str) -> Place:
        if device == "cpu":
            return cls(loops, kernels)
        from tiltmeter.metrics import torch_kernels as tensor_loops
        from tiltmeter.stats import torch_kernels as tensor_kernels

        return cls(tensor_loops, tensor_kernels, device)

    def put(self, x: Array) -> Array:
        """An array where the work is done; whole numbers as indices, but for single bytes."""
        if self.device is None:
            return x
        import torch

        wide = x.dtype.kind in "iu" and x.dtype.itemsize > 1
        return torch.as_tensor(x.astype(np.int64) if wide else x, device=self.device)


def ranking(
    model: TextEncoder,
    faces: Faces,
    *,
    prompts: Sequence[Prompt],
    attributes: Sequence[str],
    convention: Convention,
    seed: int = 0,
    effort: Effort | None = None,
    progress: Progress | None = None,
    device: str = "cpu",
    pairs: Sequence[tuple[str, str]] = (),
) -> tuple[pa.Table, pa.Table]:
    """Skew, MaxSkew, MinSkew, NDKL, entropy and C-ASC, with nulls, intervals and placebos.

    Where both words of enough `pairs` (a favourable one, its opposite) are among the prompts, WEAT
    as well.
    Returns rows of RESULTS and, for each word, its top images by id. On another `device` (`cuda`)
    scores, rankings and draws are tensors there; sums in another order may round differently.
    """
    effort, progress = effort or Effort(), progress or (lambda what, share: None)
    convention = convention.on(faces.name, faces.groups)
    prompts, words = words_first(prompts)
    by = {name: checked(faces.attribute(name)) for name in attributes}
    reorder = reordering_of(model, faces)
    if reorder is not None:
        effort, device = replace(effort, bootstraps=0), "cpu"
    rng = np.random.default_rng(seed)
    samples = [
        _drawn(rows, {name: checked(one) for name, one in groups.items()}, effort, rng)
        for rows, groups in samples_of(by, faces.groups, convention, rng)
    ]
    for sample in samples:
        for k in convention.k:
            check_k(k, len(next(iter(sample.groups.values()))))
    texts, images = unit_vectors(model, faces, prompts, convention)
    constants = constants_of(model, faces, convention, seed)
    turns = [
        (sample, wanted)
        for sample in samples
        for tasks in passes(sample.groups, len(prompts), words, convention, effort)
        if (wanted := [task for task in tasks if task.ranks or reorder is None])
    ]
    tables, tops, layout = [], {}, Layout.of(prompts)

    def tabulated(job: tuple[Figure, np.random.Generator]) -> list[pa.Table]:
        figure, dice = job
        # nothing was planted in an order that is not the model's
        planted = faces.truth if reorder is None else None
        found = figure_rows(figure, layout, prompts, planted, rng=dice, constants=constants)
        return [noted(table, reorder) for table in found]

    for turn, (sample, tasks) in enumerate(turns):

        def turn_done(what: str, share: float, turn: int = turn) -> None:
            progress(what, (turn + share) / len(turns))

        chosen = images if sample.rows is None else images[sample.rows]
        parts, top = _measure(
            texts, chosen, sample, tasks, words, convention, turn_done, Place.on(device), reorder
        )
        if top is not None:
            tops[id(sample)] = (sample, *top)

        def jobs(
            sample: Sample = sample, tasks: list[Task] = tasks, parts: dict[Task, Parts] = parts
        ) -> Iterator[tuple[Figure, np.random.Generator]]:
            for done, task in enumerate(tasks):
                turn_done(f"statistics of {task.attribute}", 0.8 + 0.2 * done / len(tasks))
                groups, of = sample.groups[task.attribute], sample.group_of[task.attribute]
                labels = (sample.relabelled, of)
                shown = None if reorder is None else max(convention.k)
                for figure in figures(
                    task, parts.pop(task), groups, convention, words, labels, rng, shown
                ):
                    yield figure, rng.spawn(1)[0]  # dice of its own

        if device == "cpu":  # its cores are busy with one figure, its memory is full with two
            tables += [table for job in jobs() for table in tabulated(job)]
            continue
        with ThreadPoolExecutor(THREADS) as pool:
            tables += [table for some in pool.map(tabulated, jobs()) for table in some]
    for sample in samples if reorder is None else ():
        chosen = images if sample.rows is None else images[sample.rows]
        for groups in sample.groups.values():
            gaps = gaps_of(texts, chosen, groups, effort.bootstraps, rng)
            tables.append(opposites(gaps, groups, prompts, pairs, rng=rng, constants=constants))
    shown = [
        instances(
            constants, faces, prompts[:words], top if one.rows is None else one.rows[top], score,
            _sampled_by(one, convention),
        )
        for one, top, score in tops.values()
    ]  # fmt: skip
    progress("done", 1.0)
    return combined(tables), shown[0] if len(shown) == 1 else combined(shown, INSTANCES)


def unit_vectors(
    model: TextEncoder, faces: Faces, prompts: Sequence[Prompt], convention: Convention
) -> tuple[Floats, Floats]:
    """Unit vectors of the texts, and the images' vectors: those brought along, or the model's."""
    texts = unit(to_numpy(model.encode_texts([prompt.text for prompt in prompts])), "texts")
    if len(texts) != len(prompts):
        raise InputError(f"the model gave {len(texts)} vectors for {len(prompts)} texts")
    if faces.vectors is not None:
        images = faces.vectors
    elif faces.images is not None and hasattr(model, "encode_images"):
        images = to_numpy(model.encode_images(faces.images))
    else:
        raise InputError(
            f"{faces.name} has no image vectors, and no images that the model could see: "
            "pass --images embeddings:DIR"
        )
    if len(images) != len(faces):
        raise InputError(f"{len(images)} image vectors for {len(faces)} labelled images")
    if texts.shape[1] != images.shape[1]:
        raise InputError(
            f"texts have {texts.shape[1]} dimensions, images {images.shape[1]}: "
            "they must come from one model"
        )
    if convention.images == "raw":
        images = matrix(images, "images", "images", "dimensions")
    else:
        images = unit(images, "images")
    return np.asarray(texts, dtype=images.dtype), np.asarray(images)


def checked(groups: Groups) -> Groups:
    """Groups that can be compared: at least two, each of at least two images."""
    if len(groups.names) < 2:
        raise InputError(
            f"{groups.attribute!r} has one group only ({groups.names[0]!r}): a tilt is between "
            "groups, and takes at least two"
        )
    for name, count in zip(groups.names, groups.counts, strict=True):
        if count < 2:
            images = "1 image" if count == 1 else "no images"
            raise InputError(
                f"group {name!r} of {groups.attribute!r} has {images}: "
                "nothing can be said of it; leave it out, or merge it with another"
            )
    return groups


def samples_of(
    groups: Mapping[str, Groups],
    labels: Mapping[str, Groups],
    convention: Convention,
    rng: np.random.Generator,
) -> Iterator[tuple[Ints | None, dict[str, Groups]]]:
    """The rows (None: all) that attributes are measured on, and their groups there.

    All rows for all attributes; a balanced sample for each; or one for all of them, balanced by
    one of the `labels`. Draws from `rng` as it goes: what is drawn in between belongs to the audit.
    """
    if convention.balance == "asis":
        yield None, dict(groups)
    elif convention.balance == "balanced":
        for name, attribute in groups.items():
            rows = balanced_rows(attribute, rng)
            yield rows, {name: attribute[rows]}
    else:
        by = convention.balance
        if by not in labels:
            raise InputError(
                f"the convention {convention.name!r} balances {by}, but the images have no labels "
                f"of {by}; they have {', '.join(labels)}"
            )
        rows = balanced_rows(labels[by], rng)
        yield rows, {name: attribute[rows] for name, attribute in groups.items()}


def _sampled_by(sample: Sample, convention: Convention) -> str | None:
    """Which attribute a sample was balanced by, as the instances say it."""
    if sample.rows is None:
        return None
    own = next(iter(sample.groups))
    return f"balanced by {own if convention.balance == 'balanced' else convention.balance}"


def balanced_rows(groups: Groups, rng: np.random.Generator) -> Ints:
    """Rows of as many items of each group as the smallest has, drawn at random, in order."""
    least = int(groups.counts.min())
    chosen = [
        rng.choice(np.flatnonzero(groups.codes == code), least, replace=False)
        for code in range(len(groups.names))
    ]
    return np.sort(np.concatenate(chosen))


def _drawn(
    rows: Ints | None, groups: dict[str, Groups], effort: Effort, rng: np.random.Generator
) -> Sample:
    count = len(next(iter(groups.values())))
    codes = np.stack([g.codes for g in groups.values()], axis=1)
    cells = np.zeros(count, np.int64)
    for one in groups.values():
        cells = cells * len(one.names) + one.codes
    _, first, labels = np.unique(cells, return_index=True, return_inverse=True)
    kinds = codes[first]  # of the finest partition, the group by each attribute
    labels = labels.astype(np.min_scalar_type(len(kinds)))
    relabelled = np.empty((effort.permutations, count), labels.dtype)
    for draw in range(effort.permutations):
        relabelled[draw] = labels[rng.permutation(count)]
    weights = {name: stratified_weights(g, effort.bootstraps, rng) for name, g in groups.items()}
    return Sample(
        rows,
        groups,
        relabelled,
        dict(zip(groups, kinds.T, strict=True)),
        weights,
        rng.permutation(count).astype(np.int32),
    )


def _measure(
    texts: Floats,
    images: Floats,
    sample: Sample,
    tasks: Sequence[Task],
    words: int,
    convention: Convention,
    progress: Progress,
    place: Place,
    reorder: Reordering | None = None,
) -> tuple[dict[Task, Parts], tuple[Ints, Floats] | None]:
    """Goes over the prompts in blocks; scores and rankings of a block are gone after it.

    Also gives the top images of words, unless no task needs rankings.
    """
    parts = {task: Parts(len(texts), words) for task in tasks}
    texts, images, shuffled = (place.put(x) for x in (texts, images, sample.shuffled))
    drawn = _Drawn.of_sample(sample, place)
    top_ids, top_scores = [], []
    few = int(np.clip(NDKL_STEPS // (len(images) * words), FEWEST_DRAWS, 10**9))
    drawing = any(map(len, (sample.relabelled, *sample.weights.values())))
    block = BLOCK if place.device is None else BLOCK_OF_TENSORS
    for start in range(0, len(texts), block):
        progress("ranking images", 0.8 * start / len(texts))
        scores = texts[start : start + block] @ images.T
        here = max(0, min(words - start, len(scores)))  # words come first
        if reorder is not None:
            shown = orders(reorder, scores, convention, sample.rows, images)
            for task in tasks:
                groups, of = sample.groups[task.attribute], sample.group_of[task.attribute]
                labels = (sample.relabelled, of)
                add_shown(parts[task], start, shown, here, few, groups, labels, convention)
            top_ids.append(shown[max(shown)][:here])
            top_scores.append(place.loops.take(scores[:here], top_ids[-1]))
            continue
        near = [task for task in tasks if not task.ranks]
        z = place.kernels.standardized(scores) if drawing and near else scores
        for task in near:
            _add_c_asc(parts[task], start, scores, z, drawn[task.attribute])
        del z
        if len(near) == len(tasks):
            continue
        order = place.loops.rank(scores)
        top = order[:here, : max(convention.k)]
        top_ids.append(np.array(to_numpy(top), np.int32))
        top_scores.append(to_numpy(place.loops.take(scores[:here], top)))
        tied = to_numpy(place.loops.tied_ranks(scores, order))
        loose = order
        if convention.ties == "expected" and tied.max() >= MANY_TIES and drawing:
            # which of two tied images a draw meets first must not hang on the order of the rows
            mixed = scores[:, shuffled]
            if place.device is None:
                mixed = np.ascontiguousarray(mixed)
            loose = shuffled[place.loops.rank(mixed)]
        for task in tasks:
            if task.ranks:
                part, own = parts[task], drawn[task.attribute]
                part.add("tied", tied)
                _add_counts(part, start, scores, order, loose, top, own, convention)
                _add_ndkl(part, start, order, loose, here, few, own, convention)
        del scores, order, loose  # before the next block's are there
    top_images = (np.concatenate(top_ids), np.concatenate(top_scores)) if top_ids else None
    return parts, top_images


@dataclass(frozen=True, eq=False)
class _Drawn:
    """What is drawn for one attribute, where the work is done."""

    place: Place
    groups: Groups
    codes: Array
    labels: Array
    of: Array
    weights: Array

    @classmethod
    def of_sample(cls, sample: Sample, place: Place) -> dict[str, _Drawn]:
        labels = place.put(sample.relabelled)  # shared by all
        return {
            name: cls(
                place,
                groups,
                place.put(groups.codes),
                labels,
                place.put(sample.group_of[name]),
                place.put(sample.weights[name]),
            )
            for name, groups in sample.groups.items()
        }

    @property
    def size(self) -> int:
        return len(self.groups.names)


def _add_c_asc(part: Parts, start: int, scores: Array, z: Array, own: _Drawn) -> None:
    sizes, of_sums = own.groups.counts, kernels.c_asc_of_sums
    part.add("c_asc", to_numpy(c_asc_of_moments(Moments.of(scores, own.groups))))
    if len(own.labels):
        sums = own.place.kernels.relabelled_sums(z, own.labels, own.size, own.of)
        part.draw("c_asc null", start, of_sums(sums, sizes), np.float32, words=False)
    if len(own.weights):
        sums, squares = own.place.kernels.weighted_sums(z, own.codes, own.weights, own.size)
        part.draw("c_asc boot", start, of_sums(sums, sizes, squares), np.float32, words=False)


def _add_counts(
    part: Parts,
    start: int,
    scores: Array,
    order: Array,
    loose: Array,
    top: Array,
    own: _Drawn,
    convention: Convention,
) -> None:
    place, ks = own.place, tuple(sorted(convention.k))
    found = TopItems.of(scores, own.groups, max(ks), order=order)
    for k in ks:
        part.add(f"top {k}", to_numpy(found.counts(k, convention.ties)))
        if len(own.weights):
            drawn = place.kernels.weighted_top_counts(loose, own.codes, own.weights, k, own.size)
            part.draw(f"top {k} boot", start, drawn, np.min_scalar_type(k), words=False)
    if len(own.labels) and len(top):
        each = place.kernels.relabelled_top_counts(top, own.labels, ks, own.size, own.of)
        for k, drawn in zip(ks, each, strict=True):
            part.draw(f"top {k} null", start, drawn, np.min_scalar_type(k), words=True)


def _add_ndkl(
    part: Parts,
    start: int,
    order: Array,
    loose: Array,
    here: int,
    few: int,
    own: _Drawn,
    convention: Convention,
) -> None:
    place, shares = own.place, target_shares(convention.target, own.groups)
    found = place.loops.ndkl(order, own.codes, place.put(log_shares(shares)))
    part.add("ndkl", to_numpy(found))
    if here and len(own.labels):
        drawn = place.kernels.relabelled_ndkl(order[:here], own.labels[:few], shares, own.of)
        part.draw("ndkl null", start, drawn, float, words=True)
    if here and len(own.weights):
        drawn = place.kernels.weighted_ndkl(loose[:here], own.codes, own.weights[:few], shares)
        part.draw("ndkl boot", start, drawn, float, words=True)


def _run(
    model: TextEncoder, data: Mapping[str, Any], setting: Setting
) -> tuple[pa.Table, pa.Table]:
    faces = setting.seen(data["faces"])
    return ranking(
        model,
        faces,
        prompts=setting.prompts(),
        attributes=setting.attributes_of(faces),
        convention=setting.convention,
        seed=setting.seed,
        effort=setting.effort,
        progress=setting.progress,
        device=setting.options.get("device", "cpu"),
        pairs=opposite_words(),
    )


PROBE = Probe(
    "Who comes up for a word, and how near? C-ASC, Skew, MaxSkew, MinSkew, entropy, NDKL.",
    _run,
    needs=("faces",),
    options={"device": "cpu"},
    ranks=True,
)
