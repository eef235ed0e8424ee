"""Who comes up first for a word, and how near is each group to it? (Berg et al. 2022, So-B-IT)

For every prompt the images are ranked by cosine. Skew, MaxSkew, MinSkew and the entropy of the
top k, NDKL of the whole ranking, and C-ASC of the cosines themselves, for every attribute; each
with its null (exact where it can be), interval, family-wise p-value, and p among placebo words.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from tiltmeter.errors import InputError
from tiltmeter.metrics import numpy_kernels as loops
from tiltmeter.metrics.arrays import matrix, to_numpy, unit
from tiltmeter.metrics.association import c_asc_of_moments
from tiltmeter.metrics.convention import Convention
from tiltmeter.metrics.ranking import (
    entropy_of_shares,
    log_shares,
    max_of,
    skew_of_shares,
    target_shares,
)
from tiltmeter.metrics.summary import Moments, check_k
from tiltmeter.probes.agreement import agreement
from tiltmeter.probes.figure import Figure, Layout, tabulate
from tiltmeter.probes.probe import Effort, Probe, Setting
from tiltmeter.probes.wording import wording
from tiltmeter.results import INSTANCES, combined
from tiltmeter.stats import defined, kernels
from tiltmeter.stats.bootstrap import small_sample_stretch, stratified_weights
from tiltmeter.stats.intervals import wilson_of_draws
from tiltmeter.stats.null import (
    Band,
    band_of,
    draw_top_counts,
    p_of_sample,
    top_count_null,
    top_count_p,
)
from tiltmeter.types import Faces, Floats, Groups, Ints, Progress, Prompt, TextEncoder

BLOCK = 64  # prompts at one time: their scores and rankings are all that is held
NULL_DRAWS = 10_000  # random top-k counts, for the null of MaxSkew, MinSkew and entropy
#: Ranks walked over for NDKL's relabellings, and for its intervals: seconds, not minutes.
NDKL_STEPS, FEWEST_DRAWS = 4 * 10**8, 99
MANY_TIES = 0.001  # share of tied ranks from which ties are spoken of


@dataclass(frozen=True, eq=False)
class Sample:
    """The images that some attributes are measured on, and all that is drawn for them."""

    rows: Ints | None  # None: all of them
    groups: dict[str, Groups]
    #: By attribute, permutations x images: the codes dealt out anew, together for all attributes.
    relabelled: dict[str, Ints]
    #: By attribute, bootstraps x images.
    weights: dict[str, Ints]
    shuffled: Ints  # the images in random order


class _Parts:
    """What the blocks of prompts leave for one attribute: lists that are joined at the end."""

    def __init__(self) -> None:
        self.lists: dict[str, list[Floats]] = {}

    def add(self, name: str, part: Floats) -> None:
        self.lists.setdefault(name, []).append(part)

    def values(self, name: str) -> Floats:
        """Prompts x columns."""
        return np.concatenate(self.lists[name])

    def draws(self, name: str) -> Floats | None:
        """Draws x prompts x columns, handed over for good; None where there are none."""
        return np.concatenate(self.lists.pop(name), axis=1) if name in self.lists else None


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
) -> tuple[pa.Table, pa.Table]:
    """Skew, MaxSkew, MinSkew, NDKL, entropy and C-ASC, with nulls, intervals and placebos.

    Returns rows of RESULTS and, for each word, its top images by id.
    """
    effort, progress = effort or Effort(), progress or (lambda what, share: None)
    # words first: only they need the costly draws
    prompts = sorted(prompts, key=lambda prompt: prompt.role != "word")
    words = sum(prompt.role == "word" for prompt in prompts)
    if any(prompt.role == "word" and prompt.category == "placebo" for prompt in prompts):
        raise InputError("the category 'placebo' is kept for placebos: give those words another")
    if not words:
        raise InputError("there is no word to measure: every prompt is a placebo")
    groups = {name: checked(faces.attribute(name)) for name in attributes}
    rng = np.random.default_rng(seed)
    samples = [_drawn(*part, effort, rng) for part in _samples(groups, convention, rng)]
    for sample in samples:
        for k in convention.k:
            check_k(k, len(next(iter(sample.groups.values()))))
    texts, images = unit_vectors(model, faces, prompts, convention)
    constants = {
        "probe": "ranking",
        "model": getattr(model, "name", type(model).__name__),
        "dataset": faces.name,
        "convention": convention.name,
        "seed": seed,
    }
    tables, instances, layout = [], [], Layout.of(prompts)
    for turn, sample in enumerate(samples):

        def part_done(what: str, share: float, turn: int = turn) -> None:
            progress(what, (turn + share) / len(samples))

        chosen = images if sample.rows is None else images[sample.rows]
        parts, top = _measure(texts, chosen, sample, words, convention, part_done)
        instances.append(_instances(constants, faces, sample, prompts[:words], *top))
        for done, (name, part) in enumerate(parts.items()):
            part_done(f"statistics of {name}", 0.8 + 0.2 * done / len(parts))
            labels = sample.relabelled[name]
            for figure in _figures(part, sample.groups[name], convention, words, labels, rng):
                truth = faces.truth and faces.truth(figure.metric, prompts, figure.groups)
                tables.append(tabulate(figure, layout, rng=rng, constants=constants, truth=truth))
                tables.append(wording(figure, layout, rng=rng, constants=constants))
                tables.append(agreement(figure, layout, truth, rng=rng, constants=constants))
    progress("done", 1.0)
    return combined(tables), combined(instances, INSTANCES)


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


def _samples(
    groups: dict[str, Groups], convention: Convention, rng: np.random.Generator
) -> Iterator[tuple[Ints | None, dict[str, Groups]]]:
    """All images for all attributes, or, where groups are balanced, some for each."""
    if convention.balance == "asis":
        yield None, groups
        return
    for name, attribute in groups.items():
        rows = balanced_rows(attribute, rng)
        yield rows, {name: attribute[rows]}


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
    codes = {name: g.codes.astype(np.min_scalar_type(len(g.names))) for name, g in groups.items()}
    relabelled = {
        name: np.empty((effort.permutations, count), c.dtype) for name, c in codes.items()
    }
    for draw in range(effort.permutations):
        dealt = rng.permutation(count)
        for name in groups:
            relabelled[name][draw] = codes[name][dealt]
    weights = {name: stratified_weights(g, effort.bootstraps, rng) for name, g in groups.items()}
    return Sample(rows, groups, relabelled, weights, rng.permutation(count).astype(np.int32))


def _measure(
    texts: Floats,
    images: Floats,
    sample: Sample,
    words: int,
    convention: Convention,
    progress: Progress,
) -> tuple[dict[str, _Parts], tuple[Ints, Floats]]:
    """Goes over the prompts in blocks; scores and rankings of a block are gone after it."""
    parts = {name: _Parts() for name in sample.groups}
    top_ids, top_scores = [], []
    few = int(np.clip(NDKL_STEPS // (len(images) * words), FEWEST_DRAWS, 10**9))
    drawing = any(map(len, (*sample.relabelled.values(), *sample.weights.values())))
    for start in range(0, len(texts), BLOCK):
        progress("ranking images", 0.8 * start / len(texts))
        scores = texts[start : start + BLOCK] @ images.T
        order = loops.rank(scores)
        here = max(0, min(words - start, len(scores)))  # words come first
        top = order[:here, : max(convention.k)].copy()
        top_ids.append(top)
        top_scores.append(loops.take(scores[:here], top))
        z = kernels.standardized(scores) if drawing else scores
        tied = loops.tied_ranks(scores, order)
        loose = order
        if convention.ties == "expected" and tied.max() >= MANY_TIES and drawing:
            # which of two tied images a draw meets first must not hang on the order of the rows
            loose = sample.shuffled[loops.rank(np.ascontiguousarray(scores[:, sample.shuffled]))]
        for name, groups in sample.groups.items():
            part, labels, weights = parts[name], sample.relabelled[name], sample.weights[name]
            part.add("tied", tied)
            _add_c_asc(part, scores, z, groups, labels, weights)
            _add_counts(part, scores, order, loose, top, groups, labels, weights, convention)
            shares = target_shares(convention.target, groups)
            part.add("ndkl", loops.ndkl(order, groups.codes, log_shares(shares)))
            if here and len(labels):
                drawn = kernels.relabelled_ndkl(order[:here], labels[:few], shares)
                part.add("ndkl null", drawn)
            if here and len(weights):
                drawn = kernels.weighted_ndkl(loose[:here], groups.codes, weights[:few], shares)
                part.add("ndkl boot", drawn)
    return parts, (np.concatenate(top_ids), np.concatenate(top_scores))


def _add_c_asc(
    part: _Parts, scores: Floats, z: Floats, groups: Groups, labels: Ints, weights: Ints
) -> None:
    size = len(groups.names)
    part.add("c_asc", c_asc_of_moments(Moments.of(scores, groups)))
    if len(labels):
        sums = kernels.relabelled_sums(z, labels, size)
        drawn = kernels.c_asc_of_sums(sums, groups.counts)
        part.add("c_asc null", drawn.astype(np.float32))  # draws are many: half the memory
    if len(weights):
        sums, squares = kernels.weighted_sums(z, groups.codes, weights, size)
        drawn = kernels.c_asc_of_sums(sums, groups.counts, squares)
        part.add("c_asc boot", drawn.astype(np.float32))


def _add_counts(
    part: _Parts,
    scores: Floats,
    order: Ints,
    loose: Ints,
    top: Ints,
    groups: Groups,
    labels: Ints,
    weights: Ints,
    convention: Convention,
) -> None:
    size, ks = len(groups.names), tuple(sorted(convention.k))
    for k in ks:
        counts = loops.ranked_top_counts(scores, order, groups.codes, size, k, convention.ties)
        part.add(f"top {k}", counts)
        if len(weights):
            drawn = kernels.weighted_top_counts(loose, groups.codes, weights, k, size)
            part.add(f"top {k} boot", drawn)
    if len(labels) and len(top):
        for k, drawn in zip(ks, kernels.relabelled_top_counts(top, labels, ks, size), strict=True):
            part.add(f"top {k} null", drawn)


def _figures(
    part: _Parts,
    groups: Groups,
    convention: Convention,
    words: int,
    labels: Ints,
    rng: np.random.Generator,
) -> Iterator[Figure]:
    """The attribute's figures, one metric after the other."""
    yield Figure(
        "c_asc",
        groups,
        part.values("c_asc"),
        side="two",
        ideal=0.0,
        null=part.draws("c_asc null"),
        boot=part.draws("c_asc boot"),
        stretch=small_sample_stretch(groups.counts),
        undefined="all images have the same score",
    )
    for k in sorted(convention.k):
        yield from _top_k_figures(part, groups, convention, k, words, rng)
    yield _ndkl_figure(part, groups, convention, labels)


def _top_k_figures(
    part: _Parts,
    groups: Groups,
    convention: Convention,
    k: int,
    words: int,
    rng: np.random.Generator,
) -> Iterator[Figure]:
    q = target_shares(convention.target, groups)

    def skew(p: Floats) -> Floats:
        return np.asarray(skew_of_shares(p, q, k=k, empty=convention.empty))

    def largest(p: Floats) -> Floats:
        found = skew(p)
        return np.asarray(max_of(np.abs(found) if convention.skew == "absolute" else found))

    def smallest(p: Floats) -> Floats:
        return np.asarray(-max_of(-skew(p)))

    counts = part.values(f"top {k}")
    null, boot = (_shares(part.draws(f"top {k} {kind}"), k) for kind in ("null", "boot"))
    spread = None if boot is None else boot[:, :words]  # draws that only words need
    random = draw_top_counts(groups.counts, k, NULL_DRAWS, rng) / k
    exact = top_count_null(groups.counts, k)
    low, high = wilson_of_draws(counts, boot, k)
    yield Figure(
        "skew",
        groups,
        skew(counts / k),
        side="two",
        ideal=0.0,
        k=k,
        null=None if null is None else skew(null),
        boot=None if spread is None else skew(spread),
        exact_null=Band(defined.mean(skew(random)), skew(exact.lo / k), skew(exact.hi / k)),
        exact_p=top_count_p(counts, groups.counts, k),
        exact_ci=None if boot is None else (skew(low), skew(high)),
        exact_ci_method="Wilson with the bootstrap's variance",
        undefined="the group is absent from the top k",
    )
    entropy_of_prior = float(entropy_of_shares(groups.shares))
    # some skew is at most 0, unless absence is left out or may count as more than its share
    least = np.inf if convention.empty in ("nan", "floor") else 0.0
    for name, of, side, ideal, bounds in (
        ("max_skew", largest, "greater", 0.0, (0.0, np.inf)),
        ("min_skew", smallest, "less", 0.0, (-np.inf, least)),
        ("normalized_entropy", entropy_of_shares, "two", entropy_of_prior, (0.0, 1.0)),
    ):
        values, drawn = of(counts / k), of(random)
        yield Figure(
            name,
            groups,
            values[:, None],
            side=side,
            ideal=ideal,
            k=k,
            by_group=False,
            null=None if null is None else of(null)[..., None],
            boot=None if spread is None else of(spread)[..., None],
            exact_null=band_of(drawn[:, None]),
            exact_p=p_of_sample(values, drawn, side)[:, None],
            regular=False,
            bounds=bounds,
            undefined="every group is absent from the top k",
        )


def _ndkl_figure(part: _Parts, groups: Groups, convention: Convention, labels: Ints) -> Figure:
    values = part.values("ndkl")
    null, boot = part.draws("ndkl null"), part.draws("ndkl boot")
    band, p = None, None
    if len(labels):
        # labels dealt out anew are a random ranking, whatever the word
        drawn = loops.ndkl_of_labels(labels, log_shares(target_shares(convention.target, groups)))
        band, p = band_of(drawn[:, None]), p_of_sample(values, drawn, "greater")[:, None]
    return Figure(
        "ndkl",
        groups,
        values[:, None],
        side="greater",
        ideal=0.0,
        by_group=False,
        null=None if null is None else null[..., None],
        boot=None if boot is None else boot[..., None],
        exact_null=band,
        exact_p=p,
        regular=False,
        bounds=(0.0, np.inf),
        notes=[
            f"{share:.1%} of ranks are tied" if share >= MANY_TIES else None
            for share in part.values("tied")
        ],
    )


def _shares(counts: Floats | None, k: int) -> Floats | None:
    return None if counts is None else counts / np.float32(k)


def _instances(
    constants: dict[str, object],
    faces: Faces,
    sample: Sample,
    prompts: Sequence[Prompt],
    top: Ints,
    scores: Floats,
) -> pa.Table:
    """The top images of each word's prompts: ids, scores and groups, never pixels."""
    rows, k = top.shape
    experiment = None if sample.rows is None else f"balanced by {next(iter(sample.groups))}"
    at = (top if sample.rows is None else sample.rows[top]).ravel()
    names = list(faces.groups)
    labels = [np.array(faces.groups[name].names)[faces.groups[name].codes[at]] for name in names]
    keys = pa.array(np.tile(np.array(names), len(at)))
    groups = pa.MapArray.from_arrays(
        np.arange(0, len(at) * len(names) + 1, len(names), dtype=np.int32),
        keys,
        pa.array(np.stack(labels, axis=1).ravel()),
    )
    columns = {
        "model": [constants["model"]] * len(at),
        "dataset": [constants["dataset"]] * len(at),
        "experiment": [experiment] * len(at),
        "concept": np.repeat([prompt.concept for prompt in prompts], k),
        "template": np.repeat([prompt.template for prompt in prompts], k),
        "id": np.array(faces.ids)[at],
        "groups": groups,
        "rank": np.tile(np.arange(1, k + 1), rows),
        "score": scores.ravel().astype(np.float64),
        "pick": [None] * len(at),
    }
    arrays = [pa.array(columns[f.name], type=f.type) if f.name != "groups" else groups
              for f in INSTANCES]  # fmt: skip
    return pa.Table.from_arrays(arrays, schema=INSTANCES)


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
    )


PROBE = Probe(
    "Who comes up for a word, and how near? C-ASC, Skew, MaxSkew, MinSkew, entropy, NDKL.",
    _run,
    needs=("faces",),
)
