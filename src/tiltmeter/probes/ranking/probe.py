"""Which images come first for a word, and how near is each group to it? (Berg et al. 2022, So-B-IT)

For every prompt the images are ranked by cosine. Skew, MaxSkew, MinSkew and the entropy of the
top k, NDKL of the whole ranking, and C-ASC of the cosines themselves, for every attribute; each
with its null (exact where it can be), interval, family-wise p-value, and p among neutral words.
Of a re-ranker the order that it shows is measured instead, and its cosines are not.

How images are ranked is the engine's business (`tiltmeter.engine.ranking`): in one piece, or by
parts. What is made of it here is the same.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from tiltmeter.engine.engines import Engine, LocalEngine
from tiltmeter.engine.ranking.job import Drawn, Ranking, RankingJob
from tiltmeter.engine.ranking.parts import PartsRanking
from tiltmeter.engine.ranking.reranked import noted, reordering_of
from tiltmeter.engine.ranking.samples import checked
from tiltmeter.engine.ranking.whole import WholeRanking
from tiltmeter.engine.vectors import InMemoryVectors, Vectors
from tiltmeter.errors import InputError
from tiltmeter.metrics.arrays import unit
from tiltmeter.metrics.convention import Convention
from tiltmeter.probes.embeddings import image_embeddings, text_embeddings
from tiltmeter.probes.probe import AuditContext, Probe, ProbeResult
from tiltmeter.probes.ranking.opposites import opposites
from tiltmeter.probes.ranking.rows import constants_of, estimate_rows, instances, words_first
from tiltmeter.probes.ranking.stored import counts_table, kept_faces, kept_texts
from tiltmeter.probes.ranking.tabulate import RowLayout
from tiltmeter.probes.texts import opposite_words
from tiltmeter.results import INSTANCES, combined
from tiltmeter.stats.resampling import Resampling
from tiltmeter.types import Faces, Progress, Prompt, TextEncoder

#: Estimates whose statistics are made at one time where a GPU draws: more took no less time.
THREADS = 4


@dataclass(frozen=True, eq=False)
class RankingBackend:
    """On which engine and device images are ranked, and where their embeddings are."""

    engine: Engine = LocalEngine()  # noqa: RUF009
    device: str = "cpu"  # of `local`: tensors on `cuda`
    images: Vectors | None = None  # None: those that come with the faces, or the model's
    progress: Progress = lambda what, share: None

    def start(self, job: RankingJob, rng: np.random.Generator) -> Ranking:
        if self.engine.name == "local":
            return WholeRanking(job, rng, self.device, self.progress)
        if self.device != "cpu":
            raise InputError(
                f"--option ranking.device={self.device} takes --engine local: by parts, images "
                "are ranked on the processor"
            )
        return PartsRanking(job, rng, self.engine, self.progress)

    def record(self, found: Ranking, images: int) -> dict[str, Any]:
        """How many images were ranked by parts, and which parts could not be read."""
        if self.engine.name == "local":
            return {}
        lost = {str(at): why for at, (why, _) in found.failed.items()}
        return {"images": images - sum(n for _, n in found.failed.values()), "parts_not_read": lost}


def ranking(
    model: TextEncoder,
    faces: Faces,
    *,
    prompts: Sequence[Prompt],
    attributes: Sequence[str],
    convention: Convention,
    resampling: Resampling = Resampling(),  # noqa: B008
    where: RankingBackend | None = None,
    pairs: Sequence[tuple[str, str]] = (),
) -> ProbeResult:
    """Skew, MaxSkew, MinSkew, NDKL, entropy and C-ASC, with nulls, intervals and neutral words.

    Where both words of enough `pairs` (a favourable one, its opposite) are among the prompts, WEAT
    as well. `where` says on which engine and device, and where the image embeddings are.
    Returns rows of RESULTS, for each word its top images by id, and counts that others can
    recompute the metrics from. On a GPU, sums in another order may round differently.
    """
    where = where or RankingBackend()
    convention = convention.on(faces.name, faces.groups)
    prompts, words = words_first(prompts)
    reorder = reordering_of(model, faces)
    groups = {name: checked(faces.attribute(name)) for name in attributes}
    rng = np.random.default_rng(resampling.seed)
    spoken = text_embeddings(model, prompts)
    job = RankingJob(
        np.asarray(unit(spoken, "texts")),
        words,
        where.images or InMemoryVectors(image_embeddings(model, faces)),
        groups,
        faces.groups,
        convention,
        resampling,
        reorder,
    )
    found = where.start(job, rng)
    constants = constants_of(model, faces, convention, resampling.seed)
    layout = RowLayout.of(prompts)
    # nothing was planted in an order that is not the model's
    planted = faces.truth if reorder is None else None

    def tabulated(drawn: Drawn) -> list[pa.Table]:
        estimate, own = drawn
        rows = estimate_rows(estimate, layout, prompts, planted, rng=own, constants=constants)
        return [noted(table, reorder) for table in rows]

    tables: list[pa.Table] = []
    for turn in found.turns():
        if where.device == "cpu":  # its cores are busy with one estimate, its memory with two
            tables += [table for drawn in turn for table in tabulated(drawn)]
            continue
        with ThreadPoolExecutor(THREADS) as pool:
            tables += [table for some in pool.map(tabulated, turn) for table in some]
    for sample in found.samples:
        for name, gaps in sample.gaps.items():
            own = sample.groups[name]
            tables.append(opposites(gaps, own, prompts, pairs, rng=rng, constants=constants))
    shown = list(_instances(found, faces, prompts[:words], convention, constants))
    where.progress("done", 1.0)
    return ProbeResult(
        combined(tables),
        shown[0] if len(shown) == 1 else combined(shown, INSTANCES),
        {"counts": counts_table(found.samples, prompts, convention, constants),
         "texts": kept_texts(prompts[:words], spoken)},
        where.record(found, len(faces)),
    )  # fmt: skip


def _instances(
    found: Ranking,
    faces: Faces,
    prompts: Sequence[Prompt],
    convention: Convention,
    constants: dict[str, object],
) -> Iterator[pa.Table]:
    """The top images of each word's prompts, sample by sample."""
    for sample in found.samples:
        if sample.top is not None:
            top, scores = sample.top
            rows, by, experiment = sample.rows, convention.balance, None
            if rows is not None:
                experiment = f"balanced by {next(iter(sample.groups)) if by == 'balanced' else by}"
            top = top if rows is None else rows[top]
            yield instances(constants, faces, prompts, top, scores, experiment)


def _run(model: TextEncoder, data: Mapping[str, Any], setting: AuditContext) -> ProbeResult:
    ranked = setting.embedded(data["faces"])
    device = setting.options.get("device", "cpu")
    found = ranking(
        model,
        ranked.faces,
        prompts=setting.prompts(),
        attributes=setting.attributes_of(ranked.faces),
        convention=setting.convention,
        resampling=setting.resampling,
        where=RankingBackend(setting.engine, device, ranked.images, setting.progress),
        pairs=opposite_words(),
    )
    if setting.strict and found.record.get("parts_not_read"):
        raise InputError(next(iter(found.record["parts_not_read"].values())))
    if not setting.keep_vectors:
        return found._replace(kept={"counts": found.kept["counts"]})
    return found._replace(kept={**found.kept, "faces": kept_faces(ranked)})


PROBE = Probe(
    "Who comes up for a word, and how near? C-ASC, Skew, MaxSkew, MinSkew, entropy, NDKL.",
    _run,
    needs=("faces",),
    options={"device": "cpu"},
    ranks=True,
    by_parts=True,
)
