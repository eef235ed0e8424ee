"""Ranking and association metrics of words over images (Berg et al. 2022, So-B-IT).

Every prompt ranks the images by cosine. Measured for every attribute: Skew, MaxSkew, MinSkew and
entropy of the top k, NDKL of the whole ranking, and C-ASC of the cosines; each with its null (exact
where possible), interval, family-wise p-value, and p-value among neutral words. For a re-ranker its
order is measured, and its cosines are not.

The engine ranks the images (`tiltmeter.engine.ranking`), in one piece or by parts; the rows made
here are the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from tiltmeter.datasets.shards import ShardedFaces
from tiltmeter.engine.engines import Engine, LocalEngine
from tiltmeter.engine.indexing import rows_as_faces
from tiltmeter.engine.ranking.in_memory import InMemoryRanking
from tiltmeter.engine.ranking.job import Drawn, Ranking, RankingJob
from tiltmeter.engine.ranking.partitioned import PartitionedRanking
from tiltmeter.engine.ranking.reranked import reordering_of, with_rerank_note
from tiltmeter.engine.ranking.samples import checked
from tiltmeter.engine.vectors import InMemoryVectors, Vectors
from tiltmeter.errors import InputError
from tiltmeter.metrics.arrays import unit
from tiltmeter.metrics.convention import Convention
from tiltmeter.probes.embeddings import image_embeddings, text_embeddings
from tiltmeter.probes.probe import AuditContext, Probe, ProbeResult
from tiltmeter.probes.ranking.answers import QUESTION, answer_embeddings
from tiltmeter.probes.ranking.levels import AggregationLevels
from tiltmeter.probes.ranking.opposites import opposites
from tiltmeter.probes.ranking.rows import constants_of, estimate_rows, instances, words_first
from tiltmeter.probes.ranking.stored import counts_table, kept_faces, kept_texts
from tiltmeter.probes.ranking.tabulate import under_convention
from tiltmeter.probes.texts import opposite_words
from tiltmeter.results import INSTANCES, combined
from tiltmeter.stats.resampling import Resampling
from tiltmeter.types import Continuer, Faces, Progress, Prompt, TextEncoder


@dataclass(frozen=True, eq=False)
class RankingBackend:
    """Engine and device that rank the images, and where the image embeddings are."""

    engine: Engine = LocalEngine()  # noqa: RUF009
    device: str = "cpu"  # of the local engine: `cpu` or `cuda`
    images: Vectors | None = None  # None: those that come with the faces, otherwise the model's
    progress: Progress = lambda what, share: None

    def start(self, job: RankingJob, rng: np.random.Generator) -> Ranking:
        if self.engine.name == "local":
            return InMemoryRanking(job, rng, self.device, self.progress)
        if self.device != "cpu":
            raise InputError(
                f"--option ranking.device={self.device} needs --engine local: the other engines "
                "rank on the CPU"
            )
        return PartitionedRanking(job, rng, self.engine, self.progress)

    def record(self, ranked: Ranking, images: int) -> dict[str, Any]:
        """Number of images ranked by parts, and the parts that could not be read."""
        if self.engine.name == "local":
            return {}
        not_read = {str(first): reason for first, (reason, _) in ranked.failed.items()}
        return {
            "images": images - sum(n for _, n in ranked.failed.values()),
            "parts_not_read": not_read,
        }


def ranking(
    model: TextEncoder,
    faces: Faces,
    *,
    prompts: Sequence[Prompt],
    attributes: Sequence[str],
    convention: Convention,
    resampling: Resampling = Resampling(),  # noqa: B008
    backend: RankingBackend | None = None,
    pairs: Sequence[tuple[str, str]] = (),
) -> ProbeResult:
    """Skew, MaxSkew, MinSkew, NDKL, entropy and C-ASC, with nulls, intervals and neutral words.

    Parameters
    ----------
    model : TextEncoder
        The model to audit.
    faces : Faces
        Images with group labels.
    prompts : sequence of Prompt
        Words, and neutral words as a reference, in templates.
    attributes : sequence of str
        Attributes and intersections whose groups are compared.
    convention : Convention
        k and the definitions of the metrics.
    resampling : Resampling
        Numbers of permutations and bootstrap resamples, and the seed.
    backend : RankingBackend, optional
        Engine, device and image embeddings. On a GPU, sums in another order may round differently.
    pairs : sequence of (str, str)
        Favourable words and their opposites. WEAT is measured as well if enough are prompts.

    Returns
    -------
    ProbeResult
        Rows of RESULTS, the top images of each word by id, and counts from which the metrics can be
        recomputed.

    Raises
    ------
    InputError
        If there is no word to measure, or if embeddings and labels do not match.
    """
    backend = backend or RankingBackend()
    convention = convention.on(faces.name, faces.groups)
    prompts, words = words_first(prompts)
    reorder = reordering_of(model, faces)
    groups = {name: checked(faces.attribute(name)) for name in attributes}
    rng = np.random.default_rng(resampling.seed)
    text_vectors = text_embeddings(model, prompts)
    job = RankingJob(
        np.asarray(unit(text_vectors, "texts")),
        words,
        backend.images or InMemoryVectors(image_embeddings(model, faces)),
        groups,
        faces.groups,
        convention,
        resampling,
        reorder,
    )
    ranked = backend.start(job, rng)
    constants = constants_of(model, faces, convention, resampling.seed)
    layout = AggregationLevels.of(prompts)
    # the planted truth holds for the model's own order only
    planted = faces.truth if reorder is None else None

    def tabulated(drawn: Drawn) -> list[pa.Table]:
        estimate, estimate_rng = drawn
        estimate = under_convention(estimate, convention)
        rows = estimate_rows(
            estimate, layout, prompts, planted, rng=estimate_rng, constants=constants
        )
        return [with_rerank_note(table, reorder) for table in rows]

    tables: list[pa.Table] = []
    for batch in ranked.turns():  # one estimate keeps all cores busy
        tables += [table for drawn in batch for table in tabulated(drawn)]
    for sample in ranked.samples:
        for name, gaps in sample.gaps.items():
            sample_groups = sample.groups[name]
            tables.append(
                opposites(gaps, sample_groups, prompts, pairs, rng=rng, constants=constants)
            )
    found = combined(tables)
    tables.clear()  # `found` is a copy of them
    top_images = list(
        _instances(ranked, faces, prompts[:words], convention, constants, backend.engine)
    )
    return ProbeResult(
        found,
        top_images[0] if len(top_images) == 1 else combined(top_images, INSTANCES),
        {"counts": counts_table(ranked.samples, prompts, convention, constants),
         "texts": kept_texts(prompts[:words], text_vectors)},
        backend.record(ranked, len(faces)),
    )  # fmt: skip


def _instances(
    ranked: Ranking,
    faces: Faces,
    prompts: Sequence[Prompt],
    convention: Convention,
    constants: dict[str, object],
    engine: Engine,
) -> Iterator[pa.Table]:
    """The top images of each word's prompts, sample by sample."""
    for sample in ranked.samples:
        if sample.top is not None:
            top, scores = sample.top
            rows, by, experiment = sample.rows, convention.balance, None
            if rows is not None:
                experiment = f"balanced by {next(iter(sample.groups)) if by == 'balanced' else by}"
            top = top if rows is None else rows[top]
            shown = faces
            if isinstance(faces, ShardedFaces):
                image_rows, places = np.unique(top, return_inverse=True)
                shown, top = rows_as_faces(faces, image_rows, engine), places.reshape(top.shape)
            yield instances(constants, shown, prompts, top, scores, experiment)


def _run(model: Any, data: Mapping[str, Any], context: AuditContext) -> ProbeResult:
    prompts = context.prompts()
    if isinstance(model, TextEncoder):
        ranked = context.embed_for_ranking(data["faces"])
    else:
        model, ranked, prompts = answer_embeddings(model, data["faces"], prompts, context)
    device = context.options.get("device", "cpu")
    result = ranking(
        model,
        ranked.faces,
        prompts=prompts,
        attributes=context.attributes_of(ranked.faces),
        convention=context.convention,
        resampling=context.resampling,
        backend=RankingBackend(context.engine, device, ranked.images, context.progress),
        pairs=opposite_words(),
    )
    if context.strict and result.record.get("parts_not_read"):
        raise InputError(next(iter(result.record["parts_not_read"].values())))
    if not context.keep_vectors:
        return result._replace(kept={"counts": result.kept["counts"]})
    return result._replace(kept={**result.kept, **kept_faces(ranked)})


PROBE = Probe(
    "Ranking of images by words: C-ASC, Skew, MaxSkew, MinSkew, entropy, NDKL.",
    _run,
    needs=("faces",),
    protocols=(TextEncoder, Continuer),
    options={"device": "cpu", "question": QUESTION, "images": 1000},
    ranks=True,
    by_parts=True,
    options_by_parts={"device": ("cpu",)},
)
