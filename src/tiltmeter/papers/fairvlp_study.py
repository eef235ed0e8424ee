"""FairVLP and what it is compared with, trained on the testbed: Tables 4 and 5 of its paper.

Every method starts from the same weights and learns as long, from the same captions. Bias is
measured on scenes that no method has seen, with the true counterfactual (the scene drawn again with
the other figure) and by the attack; utility on held-out captions; then each model is fine-tuned for
retrieval.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from tiltmeter.datasets.roles import Captions, Scenes
from tiltmeter.debiasers.fairvlp import FairVLP
from tiltmeter.debiasers.utility_cost import masked_hits, recall
from tiltmeter.metrics.convention import CONVENTIONS
from tiltmeter.models import load_model
from tiltmeter.probes.counterfactual.measuring import CounterfactualQuery, measure
from tiltmeter.probes.counterfactual.rows import bias_tables
from tiltmeter.probes.counterfactual.sources import Source, Swap
from tiltmeter.probes.counterfactual.sources.adversarial import AdversarialAttack, Attack
from tiltmeter.probes.counterfactual.sources.parallel import RedrawnScenes
from tiltmeter.probes.texts import counterfactual_words
from tiltmeter.results import combined, rows
from tiltmeter.stats.intervals import wilson
from tiltmeter.stats.paired import paired_test
from tiltmeter.stats.resampling import Resampling
from tiltmeter.testbed.captioned import PAIRS, draw_captioned_scenes, frame_words
from tiltmeter.testbed.captions import concept_captions
from tiltmeter.testbed.data import planted_concepts
from tiltmeter.testbed.world import World
from tiltmeter.types import Floats, Progress

#: The rows of the paper's Table 4, then our own: settings of `FairVLP`, or None for no training.
METHODS: dict[str, dict[str, Any] | None] = {
    "vanilla": {"variant": "vanilla"},
    "GS": {"variant": "swapping"},
    "DR": {"variant": "dropout"},
    "edited images": {"variant": "edited"},  # the paper's CycleGAN
    "FairVLP-V": {"variant": "vision"},
    "FairVLP-L": {"variant": "language"},
    "FairVLP": {"variant": "both"},
    "FairVLP, paper's losses": {"variant": "both", "losses": "paper"},
    "FairVLP, true images": {"variant": "both", "images": "edited"},
    "before": None,
    "fair twin": None,  # trained in a world without bias: what is found where there is none
}
VANILLA, TWIN = "vanilla", "fair twin"
MODALITIES = ("VL", "V", "L")
#: Images of the testbed are noisy by 12 grey levels: 8/255, enough for photographs, is too little.
ATTACK = Attack(16 / 255, 4 / 255, 8)
TARGETS = 0.5  # share of captions that may name a group and a target together
RECALL_CELLS = 4  # of an icon's 16: with all of them every model finds every caption
K = (1, 5, 10)
BATCH = 512  # images that are measured together


@dataclass(frozen=True)
class StudySize:
    """How long every method is trained, and on how many images it is measured."""

    steps: int = 200
    batch: int = 256  # as in the paper
    images: int = 1040  # 16 scenes of each of 65 concepts
    captions: int = 10_000  # held out, for masked accuracy
    tuning: int = 50  # steps of fine-tuning for retrieval
    seed: int = 0


#: Enough to see that everything works, in a few minutes of a CPU.
SMALL = StudySize(steps=4, batch=32, images=130, captions=200, tuning=2)


@dataclass(frozen=True)
class MethodResult:
    """What was measured of one trained model."""

    name: str
    seconds: float  # of training
    rows: list[dict[str, Any]]  # abs_bias_VL, _V and _L of activities and of occupations
    by_target: dict[str, Floats]  # absolute bias of each target, by modality
    attacked: dict[str, Floats]  # the same with attacked images
    flipped: float  # share of images that the attack turns
    masked: Floats  # whether each masked word was predicted
    recall: dict[str, Floats]  # queries x K, after fine-tuning


def fairvlp_study(
    model: str = "testbed:fusion",
    *,
    methods: Sequence[str] = tuple(METHODS),
    size: StudySize = StudySize(),  # noqa: B008
    device: str = "auto",
    progress: Progress | None = None,
) -> Iterator[MethodResult]:
    """Train and measure each method.

    Parameters
    ----------
    model : str
        `testbed:fusion` or `testbed:stream`.
    methods : sequence of str
        Names of METHODS.
    size : StudySize
        Length of the training, and images to measure on.
    device : str
        `auto` takes a GPU where there is one.
    progress : callable, optional
        Called as `progress(what, share)`.

    Yields
    ------
    MethodResult
        One per method, in order.
    """
    world, rng = World.plant(), np.random.default_rng(size.seed + 10)
    data = draw_captioned_scenes(world, size.steps * size.batch, rng, targets=TARGETS)
    edited = data.images.redrawn(shape=1 - data.images.shape)
    tuning = draw_captioned_scenes(world, max(2, size.tuning * size.batch), rng, cells=RECALL_CELLS)
    held_out = draw_captioned_scenes(world, size.captions, rng)
    scenes = planted_concepts(world, size.images, rng)
    common: dict[str, Any] = {
        "pairs": PAIRS, "spared": frame_words(), "hide_bias": False, "batch": size.batch,
        "epsilon": ATTACK.epsilon, "step": ATTACK.step, "attack_steps": ATTACK.steps,
        "seed": size.seed,
    }  # fmt: skip
    for number, name in enumerate(methods):
        if progress:
            progress(name, number / len(methods))
        settings = METHODS[name]
        trained = load_model(f"{model}?twin=fair" if name == TWIN else model, device=device)
        started = time.perf_counter()
        if settings is not None:
            method = FairVLP(**settings, **common, steps=size.steps)
            trained = method.fit(trained, data, edited=edited).apply(trained)
        seconds = time.perf_counter() - started
        totals, by_target, _ = _bias(trained, scenes, RedrawnScenes(BATCH), size.seed)
        _, attacked, flipped = _bias(trained, scenes, AdversarialAttack(ATTACK, BATCH), size.seed)
        masked = masked_hits(
            trained, held_out, rng=np.random.default_rng(size.seed), pairs=PAIRS,
            spared=frame_words(),
        )  # fmt: skip
        if size.tuning:
            tuned = FairVLP("retrieval", **common, steps=size.tuning).fit(trained, tuning)
            hits = recall(tuned.apply(trained), _one_scene_per_concept(world, size.seed), K)
        yield MethodResult(
            name, seconds, totals, by_target, attacked, flipped, masked, hits if size.tuning else {}
        )


def _bias(
    model: Any, scenes: Scenes, source: Source, seed: int
) -> tuple[list[dict[str, Any]], dict[str, Floats], float]:
    """Rows of the probe `counterfactual`, absolute bias by target, and the share of flips."""
    from tiltmeter.probes.counterfactual.probe import OPTIONS

    words = counterfactual_words(scenes, OPTIONS)
    query = CounterfactualQuery(
        Swap(words["attribute"], words["groups"], words["words"], words["prompt"]),
        tuple(words["targets"]), tuple(words["targets"].values()), words["templates"],
    )  # fmt: skip
    scores = measure(model, scenes, query, source, seed=seed)
    biases = scores.biases(query, "vocabulary", OPTIONS["least_change"])
    constants = {"probe": "counterfactual", "model": model.name, "dataset": scenes.name,
                 "attribute": words["attribute"], "convention": CONVENTIONS["tiltmeter"].name,
                 "seed": seed}  # fmt: skip
    table = combined(
        bias_tables(scores, query, biases, "vocabulary", Resampling(200, 500, seed),
                    np.random.default_rng(seed), constants)
    ).to_pylist()  # fmt: skip
    by_target = {
        kind: np.array([
            np.mean([abs(row["value"]) for row in table
                     if row["metric"] == f"bias_{kind}" and row["target"] == target
                     and row["template"] is not None and row["value"] is not None] or [np.nan])
            for target in query.targets
        ])
        for kind in MODALITIES
    }  # fmt: skip
    totals = [row for row in table if row["metric"].startswith("abs_bias_")
              and row["template"] is None]  # fmt: skip
    return totals, by_target, float((scores.odds(1) < 0).mean())


def _one_scene_per_concept(world: World, seed: int) -> Captions:
    concept = np.arange(len(world.concepts))
    rng = np.random.default_rng([seed, 6])
    scenes = world.scenes(len(concept), rng, concept=concept, cells=RECALL_CELLS)
    texts = tuple(concept_captions().values())
    return Captions(tuple(map(str, concept)), texts, concept, scenes)


def study_rows(results: Sequence[MethodResult], *, draws: int = 2000) -> list[dict[str, Any]]:
    """One row per method and measure: value, 95% interval, n, and the change from vanilla.

    Bias in %: intervals by the probe, over images; `of_vanilla` is a ratio with a bootstrap over
    targets, which all methods share. Accuracy and recall in %: Wilson intervals; `change` is paired
    by caption, with p of no change.
    """
    vanilla = next((one for one in results if one.name == VANILLA), None)
    found: list[dict[str, Any]] = []
    for one in results:
        compared = None if one is vanilla else vanilla
        for row in one.rows:
            found.append({
                "method": one.name, "table": 4, "measure": f"B@{row['metric'][9:]}",
                "words": row["category"], "value": 100 * row["value"],
                "ci_low": 100 * row["ci_low"], "ci_high": 100 * row["ci_high"],
                "without_bias": 100 * row["null_mean"], "n": row["n"],
                "undefined": row["n_undefined"],
            })  # fmt: skip
        for source, values in (("redrawn", one.by_target), ("attacked", one.attacked)):
            for kind in MODALITIES:
                own, n = values[kind], int((~np.isnan(values[kind])).sum())
                row = {"method": one.name, "table": 4, "measure": f"B@{kind}",
                       "words": f"all, {source}",
                       "value": 100 * float(np.nanmean(own)), "n": n}  # fmt: skip
                if compared is not None:
                    base = (compared.by_target if source == "redrawn" else compared.attacked)[kind]
                    row |= _ratio(own, base, draws)
                found.append(row)
        found.append({"method": one.name, "table": 4, "measure": "flipped by attack",
                     "words": "", "value": 100 * one.flipped})  # fmt: skip
        found.append({"method": one.name, "table": 4, "measure": "seconds of training",
                     "words": "", "value": one.seconds})  # fmt: skip
        hits = {("masked accuracy", 4): one.masked}
        hits |= {(f"{way}, R@{k}", 5): table[:, at]
                 for way, table in one.recall.items() for at, k in enumerate(K)}  # fmt: skip
        for (measure_name, number), own in hits.items():
            same: Floats | None = None
            if compared is not None:
                way, _, k = measure_name.partition(", R@")
                same = compared.masked if number == 4 else compared.recall[way][:, K.index(int(k))]
            found.append({"method": one.name, "table": number, "measure": measure_name,
                         "words": "", **_share(own, same, draws)})  # fmt: skip
    return found


def study_table(study: Sequence[dict[str, Any]]) -> pa.Table:
    """`study_rows` as rows of RESULTS: the method is the model, values are shares."""
    tables = []
    for row in study:
        same = {"probe": "fairvlp", "model": row["method"], "split": f"Table {row['table']}",
                "category": row["words"] or None, "n": row.get("n")}  # fmt: skip
        unit = 1 if row["measure"] == "seconds of training" else 100
        low, high = (_of_unit(row.get(name), unit) for name in ("ci_low", "ci_high"))
        tables.append(
            rows(1, **same, metric=row["measure"], value=[row["value"] / unit], ci_low=low,
                 ci_high=high, null_mean=_of_unit(row.get("without_bias"), unit))
        )  # fmt: skip
        if "of_vanilla" in row:
            tables.append(
                rows(1, **same, metric=f"{row['measure']} of vanilla", value=[row["of_vanilla"]],
                     ci_low=row["of_vanilla_low"], ci_high=row["of_vanilla_high"],
                     ci_method="bootstrap over targets")
            )  # fmt: skip
        if "change" in row:
            tables.append(
                rows(1, **same, metric=f"{row['measure']}, change from vanilla", ideal=0.0,
                     value=[row["change"] / unit], ci_low=row["change_low"] / unit,
                     ci_high=row["change_high"] / unit, p=row["p"], p_side="two")
            )  # fmt: skip
    return combined(tables)


def _of_unit(value: float | None, unit: int) -> float | None:
    return None if value is None else value / unit


def _ratio(own: Floats, base: Floats, draws: int) -> dict[str, float]:
    """Mean bias as a share of vanilla's, by a bootstrap over targets."""
    known = ~np.isnan(own) & ~np.isnan(base)
    a, b = own[known], base[known]
    if not len(a):
        return {}
    at = np.random.default_rng(0).integers(0, len(a), (draws, len(a)))
    low, high = np.percentile(a[at].mean(axis=1) / b[at].mean(axis=1), [2.5, 97.5])
    return {"of_vanilla": float(a.mean() / b.mean()), "of_vanilla_low": float(low),
            "of_vanilla_high": float(high)}  # fmt: skip


def _share(own: Floats, base: Floats | None, draws: int) -> dict[str, Any]:
    """A share of hits in %, with its interval and its paired change from vanilla."""
    known = ~np.isnan(own) if base is None else ~np.isnan(own) & ~np.isnan(base)
    hits, n = own[known], int(known.sum())
    low, high = wilson(np.array(hits.sum()), np.array(n))
    row = {"value": 100 * float(hits.mean()), "ci_low": 100 * float(low),
           "ci_high": 100 * float(high), "n": n}  # fmt: skip
    if base is not None and base is not own:
        change = paired_test(base[known], hits, rng=np.random.default_rng(0), draws=draws)
        row |= {"change": 100 * change.mean, "change_low": 100 * change.ci_low,
                "change_high": 100 * change.ci_high, "p": change.p}  # fmt: skip
    return row


def markdown(study: Sequence[dict[str, Any]]) -> str:
    """Tables 4 and 5 in the paper's layout, with intervals."""
    methods = list(dict.fromkeys(row["method"] for row in study))
    found = {(r["method"], r["table"], r["measure"], r["words"]): r for r in study}

    def cell(method: str, key: tuple[int, str, str], digits: int) -> str:
        row = found.get((method, *key))
        if row is None:
            return ""
        text = f"{row['value']:.{digits}f}"
        if row.get("ci_low") is not None:
            text += f" [{row['ci_low']:.{digits}f}, {row['ci_high']:.{digits}f}]"
        return text

    four = [(4, f"B@{kind}", words) for words in ("Activity", "Occupation") for kind in MODALITIES]
    head = [f"{key[1]} {key[2]}" for key in four]
    head += ["B@VL of vanilla", "attacked, of vanilla", "flipped", "masked accuracy", "seconds"]
    lines = ["| method | " + " | ".join(head) + " |", "|---" * (len(head) + 1) + "|"]
    for method in methods:
        cells = [cell(method, key, 1) for key in four]
        for source in ("redrawn", "attacked"):
            row = found[method, 4, "B@VL", f"all, {source}"]
            cells.append(
                f"{row['of_vanilla']:.2f} [{row['of_vanilla_low']:.2f}, "
                f"{row['of_vanilla_high']:.2f}]" if "of_vanilla" in row else ""
            )  # fmt: skip
        cells += [cell(method, (4, "flipped by attack", ""), 0),
                  cell(method, (4, "masked accuracy", ""), 1),
                  cell(method, (4, "seconds of training", ""), 0)]  # fmt: skip
        lines.append(f"| {method} | " + " | ".join(cells) + " |")
    five = [(5, f"{way}, R@{k}", "") for way in ("image to text", "text to image") for k in K]
    if any((method, *five[0]) in found for method in methods):
        lines += ["", "| fine-tuned | " + " | ".join(key[1] for key in five) + " |",
                  "|---" * (len(five) + 1) + "|"]  # fmt: skip
        for method in methods:
            lines.append(f"| {method} | " + " | ".join(cell(method, k, 1) for k in five) + " |")
    return "\n".join(lines)
