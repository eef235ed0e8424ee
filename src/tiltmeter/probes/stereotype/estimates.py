"""Figures of caption choice: how often which caption is picked, where a tilt comes from, each case.

Everything here is made from the scores of one reading of a model: no model is called.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from tiltmeter.metrics import stereotype as metrics
from tiltmeter.probes.stereotype.caption_choice import KINDS, PICTURES, CaptionCases
from tiltmeter.probes.stereotype.statistics import (
    RESAMPLED,
    CaptionSets,
    Ratio,
    row_of,
    share_interval,
)
from tiltmeter.stats.significance import Interval
from tiltmeter.types import Floats, Ints

IDEAL = {"vlrs": 100.0, "vlbs": 0.0, "vlbs_excess": 0.0, "ivlas": 100.0}
#: A random model's relevance: two of three captions are.
RELEVANT_BY_CHANCE = 2 / 3
WITHOUT = {
    "true": "no pictures: pass a folder of them (?images=DIR)",
    "wrong": "no pictures: pass a folder of them (?images=DIR)",
    "none": "this model scores no caption without a picture",
    "white": "not scored beside a white picture",
}
UNLABELLED = "nobody says which pictures go against the stereotype"
NONE_AGAINST = "no picture goes against the stereotype"


@dataclass(frozen=True, eq=False)
class CaptionScores:
    """What one reading of a model scored, with each kind of image.

    Columns of `scores` are the three captions, then the first two without their target term.
    """

    cases: CaptionCases
    sets: CaptionSets
    reading: str
    scores: Mapping[str, Floats | None]

    @property
    def against(self) -> Ints:
        against = self.cases.against
        return np.zeros(len(self.cases), bool) if against is None else against

    @property
    def lacking(self) -> str | None:
        """Why there is no bias to measure, if there is none."""
        if self.cases.against is None:
            return UNLABELLED
        return None if self.cases.against.any() else NONE_AGAINST

    @cached_property
    def known(self) -> Ints:
        """Cases whose captions have a neutral form."""
        return np.array([pair is not None for pair in self.cases.neutral])

    def parts(self) -> Iterator[tuple[str | None, Ints]]:
        """All cases, then those of each category that has any."""
        yield None, np.ones(len(self.cases), bool)
        for code, name in enumerate(self.cases.categories.names):
            if (mine := self.cases.categories.codes == code).any():
                yield name, mine

    def wrongly(self, scores: Floats) -> Floats:
        """Share of each choice that falls to the other relevant caption than the image's."""
        picked = metrics.picks(scores[:, :3])
        return np.asarray(np.where(self.against, picked[:, 0], picked[:, 1]))

    def rows(self) -> list[dict[str, Any]]:
        """vlrs, vlbs, ivlas and how far vlbs exceeds the errors the other way."""
        found: list[dict[str, Any]] = []
        for picture in PICTURES:
            scores, where = self.scores[picture], experiment(self.reading, picture)
            if scores is None:
                found += [
                    {"metric": metric, "experiment": where, "note": WITHOUT[picture], "n": 0}
                    for metric in ("vlrs", "vlbs", "vlbs_excess", "ivlas")
                ]
                continue
            for category, part in self.parts():
                best = self.cases.best if picture == "true" else None
                for row in self._of_part(scores[:, :3], part, best):
                    if picture == "true":  # nothing is ideal beside another image
                        row["ideal"] = IDEAL[row["metric"]]
                    found.append({**row, "experiment": where, "category": category})
        return found

    def _of_part(self, scores: Floats, part: Ints, best: Floats | None) -> Iterator[dict[str, Any]]:
        anti, n, chosen = self.against[part], int(part.sum()), metrics.picks(scores)

        def truth(metric: Any, *labels: Ints) -> float | None:
            return None if best is None else float(metric(best[part], *labels))

        relevant, ones = 1 - chosen[:, 2], np.ones(len(chosen))
        of_sets = self.sets.sums(relevant, part), self.sets.sums(ones, part)
        weights = self.sets.weights
        drawn = None if weights is None else (weights @ of_sets[0]) / (weights @ of_sets[1])
        value = float(metrics.vlrs(scores[part])) / 100
        irrelevant = self.sets.picked_by_chance(chosen, part, KINDS.index("irrelevant"))
        by_chance = None if irrelevant is None else 1 - irrelevant / n
        yield {
            "metric": "vlrs",
            **row_of(value, 100, null=by_chance, interval=share_interval(value, n, drawn)),
            "null_mean": 100 * RELEVANT_BY_CHANCE,  # known: no need to estimate it from draws
            "n": n,
            "truth": truth(metrics.vlrs),
        }
        if self.lacking or not anti.any():
            note = self.lacking or NONE_AGAINST
            for metric in ("vlbs", "vlbs_excess", "ivlas"):
                yield {"metric": metric, "note": note, "n": 0}
            return
        ratio = Ratio(self.wrongly(scores), ones, self.against, part, self.sets)
        yield {
            "metric": "vlbs",
            **ratio.row(share=True, times=100),
            "value": float(metrics.vlbs(scores[part], anti)),
            "truth": truth(metrics.vlbs, anti),
        }
        excess = ratio.excess_row(100)
        if np.isnan(excess["value"]):
            excess["note"] = "no picture fits the stereotype"
        yield {"metric": "vlbs_excess", **excess}
        ability = float(metrics.ivlas(scores[part], anti))
        interval = None
        if drawn is not None and ratio.resampled is not None:
            again = _harmonic(drawn, 1 - ratio.resampled[0])
            interval = Interval(again[:, None], method=RESAMPLED)
        wrong = self.sets.picked_by_chance(
            chosen, part & self.against, KINDS.index("stereotypical")
        )
        null = None
        if by_chance is not None and wrong is not None:
            null = _harmonic(by_chance, 1 - wrong / anti.sum())
        yield {
            "metric": "ivlas",
            **row_of(ability / 100, 100, null=null, interval=interval),
            "value": ability,
            "n": n,
            "truth": truth(metrics.ivlas, anti),
        }

    def shifts(self, scale: float) -> Iterator[tuple[str, str, Floats, Floats]]:
        """lmss and each vlss: name, image, and both roles' values, one per case."""
        shown = self.scores["true"]
        if shown is None:
            return
        captions, neutral = scale * shown[:, :2], scale * shown[:, 3:]
        yield "lmss", "true", *(metrics.lmss(captions[:, s], neutral[:, s]) for s in _ROLES)
        for picture in PICTURES[1:]:
            if (blank := self.scores[picture]) is not None:
                blind = scale * blank[:, 3:]
                yield "vlss", picture, *(metrics.vlss(neutral[:, s], blind[:, s]) for s in _ROLES)

    def shift_rows(self, scale: float, reading: str) -> list[dict[str, Any]]:
        """lmss and vlss, mean and share above 0: of all images against the stereotype (`all`),
        and of those where the model picked it (`selected`, as in the paper)."""
        shown = self.scores["true"]
        if shown is None or self.lacking:
            note = self.lacking or WITHOUT["true"]
            return [{"metric": metric, "experiment": reading, "split": "all", "note": note, "n": 0}
                    for metric in ("lmss", "vlss")]  # fmt: skip
        wrongly, found = self.wrongly(shown), []
        for metric, picture, first, second in self.shifts(scale):
            shift = np.where(self.against, first, second)
            where = experiment(reading, picture)
            for split, weight in (("all", 1.0 * self.known), ("selected", self.known * wrongly)):
                for category, part in self.parts():
                    at = {"experiment": where, "split": split, "category": category}
                    undefined = int((part & self.against & ~self.known).sum())
                    for name, value, share in (
                        (metric, shift, False),
                        (f"{metric}_above_zero", 1.0 * (shift > 1e-9), True),
                    ):
                        ratio = Ratio(value * weight, weight, self.against, part, self.sets)
                        row = ratio.row(share=share)
                        row["note"] = _why(row, split, undefined)
                        ideal = {"lmss": 0.0, "vlss": 0.0}.get(name)
                        found.append(
                            {"metric": name, **at, **row, "ideal": ideal,
                             "n_undefined": undefined}
                        )  # fmt: skip
        return found

    def cases_picked(self, scale: float, reading: str) -> list[dict[str, Any]]:
        """The three probabilities of each case, one row a caption."""
        found = []
        for picture in PICTURES:
            if (scores := self.scores[picture]) is None:
                continue
            where = experiment(reading, picture)
            p = probabilities(scale * scores[:, :3])
            chosen = metrics.picks(scores[:, :3])
            rank = (scores[:, None, :3] > scores[:, :3, None]).sum(axis=2) + 1
            for row in range(len(p)):
                known = {"experiment": where, **self._case(row)}
                pick = " / ".join(k for k, x in zip(KINDS, chosen[row], strict=True) if x > 0)
                found += [
                    {**known, "concept": kind, "template": self.cases.captions[row][at],
                     "rank": int(rank[row, at]), "score": float(p[row, at]), "pick": pick}
                    for at, kind in enumerate(KINDS)
                ]  # fmt: skip
        return found

    def cases_shifted(self, scale: float, reading: str) -> list[dict[str, Any]]:
        """lmss and vlss of each image against the stereotype: their distributions."""
        found = []
        for metric, picture, value, _ in self.shifts(scale):
            where = experiment(reading, picture)
            found += [
                {"experiment": where, **self._case(row), "concept": metric,
                 "score": float(value[row])}
                for row in np.flatnonzero(self.against & self.known).tolist()
            ]  # fmt: skip
        return found

    def _case(self, row: int) -> dict[str, Any]:
        groups = {
            "category": self.cases.categories.names[self.cases.categories.codes[row]],
            "target": self.cases.targets[row],
        }
        if self.cases.against is not None:
            groups["picture"] = KINDS[int(self.cases.against[row])]
        return {"id": self.cases.ids[row], "groups": list(groups.items())}


_ROLES = (slice(None), slice(None, None, -1))  # as they are, and the two captions changed round


def experiment(reading: str, picture: str) -> str:
    """What a row of results calls a reading with a kind of image.

    >>> experiment("matching", "true"), experiment("cosine", "none")
    ('matching', 'cosine, no image')
    """
    shown = {"true": "", "none": ", no picture"}
    return reading + shown.get(picture, f", {picture} picture")


def probabilities(logits: Floats) -> Floats:
    """Softmax of each row.

    >>> probabilities(np.array([[0.0, 0.0]]))
    array([[0.5, 0.5]])
    """
    e = np.exp(logits - logits.max(axis=1, keepdims=True))
    return np.asarray(e / e.sum(axis=1, keepdims=True))


def _why(row: dict[str, Any], split: str, undefined: int) -> str | None:
    if np.isfinite(row["value"]):
        said = [f"{undefined} cases have captions without a neutral form"] * (undefined > 0)
        if "p_side" not in row:
            said.append("no null: no such picture or pick on the other side")
        return "; ".join(said) or None
    if split == "selected":
        return "the model picked no stereotype that the picture goes against"
    return "no picture goes against a stereotype whose target has a neutral form"


def _harmonic(a: Floats, b: Floats) -> Floats:
    return np.asarray(2 * a * b / np.where(a + b > 0, a + b, 1.0))
