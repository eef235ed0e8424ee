"""The scale of a dual encoder: its own, or fitted on captions; and whether it says how sure it is.

Lift is in nats only if scale x cosine is a log ratio. With captions of other images than the model
was trained on, the scale can be fitted, and compared with the model's own.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

from tiltmeter.errors import InputError, UnknownNameError
from tiltmeter.io.image_files import GeneratedImages, ImageFiles
from tiltmeter.metrics.arrays import to_numpy, unit
from tiltmeter.probes.probe import AuditContext, CannotRunError
from tiltmeter.results import combined, rows
from tiltmeter.stats.intervals import wilson
from tiltmeter.stats.scale_fit import FittedScale, fit_scale, reliability
from tiltmeter.types import Floats, stated_scale

PAIRS = 1000  # an evenly spaced sample of the images, each with its first caption
TOLERANCE = 0.10  # a fitted scale that differs by more is a warning


@dataclass(frozen=True, eq=False)
class Scale:
    """The scale that scores are made with: `checkpoint` (the model's own), `fitted` or `none`."""

    value: float | None
    origin: str
    cosines: Floats | None = None  # of the pairs that a scale was fitted on
    fitted: FittedScale | None = None
    dataset: str | None = None
    reason: str | None = None  # why none could be fitted

    def record(self) -> dict[str, Any]:
        """For the record of the run."""
        fitted = None if self.fitted is None else self.fitted.value
        return {"value": self.value, "origin": self.origin, "fitted": fitted}

    def rows(self, constants: Mapping[str, Any]) -> pa.Table:
        """The scale, that of the captions beside it, and the reliability of its probabilities."""
        same = {**constants, "metric": "logit_scale"}
        own = self.value if self.origin == "checkpoint" else None
        missing = self.reason or "the model states no scale, and no captions are given to fit one"
        tables = [rows(1, **same, experiment="own", value=np.nan if own is None else own,
                       note="the model states none" if own is None else None)]  # fmt: skip
        on = {**constants, "dataset": self.dataset}
        if self.cosines is not None and self.value is not None:
            tables.append(self._matched(self.cosines, self.value, on))
        if self.fitted is None or self.cosines is None:
            if self.reason or own is None:
                tables.append(rows(1, **same, experiment="fitted", value=np.nan, note=missing))
            return combined(tables)
        fit, warning = self.fitted, None
        if own is not None and abs(own / fit.value - 1) > TOLERANCE:
            warning = (
                f"the model's own scale is {own / fit.value:.2f} times that of these captions: "
                "lift is that many times too large or small for them"
            )
        tables.append(
            rows(1, **on, metric="logit_scale", n=len(self.cosines), experiment="fitted",
                 value=fit.value, ci_low=fit.low, ci_high=fit.high,
                 ci_method="sandwich, over pairs", note=warning)
        )  # fmt: skip
        known = {"own": own, "fitted": fit.value}
        for name, scale in known.items():
            if scale is not None:
                tables.append(self._reliability(self.cosines, scale, {**on, "experiment": name}))
        return combined(tables)

    @staticmethod
    def _matched(cosines: Floats, scale: float, constants: Mapping[str, Any]) -> pa.Table:
        """How much higher captions score with their own images than with others, in nats."""
        n, own = len(cosines), np.diag(cosines)
        gap = scale * (own - cosines.mean(axis=1)) * n / max(n - 1, 1)
        mean, half = float(gap.mean()), 1.96 * float(gap.std()) / max(n - 1, 1) ** 0.5
        return rows(1, **constants, metric="matched_logit", experiment="captions", n=n, value=mean,
                    ci_low=mean - half, ci_high=mean + half, ci_method="over pairs")  # fmt: skip

    @staticmethod
    def _reliability(cosines: Floats, scale: float, constants: Mapping[str, Any]) -> pa.Table:
        """How often captions find their images, by how sure the model is on this scale."""
        found = reliability(cosines, scale)
        low, high = wilson(found.hits, found.count)
        return rows(
            len(found.count), **constants, metric="reliability",
            n=found.count.astype(int).tolist(), k=list(range(1, len(found.count) + 1)),
            value=found.hits / found.count, ideal=found.confidence, ci_low=low, ci_high=high,
            ci_method="Wilson",
        )  # fmt: skip


def model_scale(model: Any, captions: Any, context: AuditContext) -> Scale:
    """The scale that the model states; without one, that of the captions; both are compared.

    Raises
    ------
    CannotRunError
        The model states a scale that is not a positive number.
    """
    own = stated_scale(model)
    if own is not None and not (np.isfinite(own) and own > 0):
        raise CannotRunError(
            f"logit_scale must be a positive number; the model states {own}", value=own
        )
    origin = "none" if own is None else "checkpoint"
    if captions is None:
        return Scale(own, origin)
    cosines = None
    try:
        cosines = pair_cosines(model, captions, context)
        fitted = fit_scale(cosines)
    except (InputError, UnknownNameError) as error:
        return Scale(own, origin, cosines, dataset=captions.name, reason=str(error))
    value, origin = (fitted.value, "fitted") if own is None else (own, origin)
    return Scale(value, origin, cosines, fitted, captions.name)


def pair_cosines(model: Any, captions: Any, context: AuditContext) -> Floats:
    """Cosines of captions x images, of an evenly spaced sample of the pairs.

    Raises
    ------
    InputError
        The model cannot embed these images.
    """
    files = isinstance(captions.images, ImageFiles | GeneratedImages)
    if files and context.engine.name == "local":
        embedded = context.embed(captions)  # which the probe retrieval sees as well
        images, row_of = embedded.vectors, {row: at for at, row in enumerate(embedded.rows)}
    elif captions.images is not None and hasattr(model, "encode_images"):
        images, row_of = None, {row: row for row in range(len(captions.ids))}
    else:
        raise InputError("the model cannot embed the images of the captions")
    first = dict(zip(captions.of[::-1].tolist(), captions.texts[::-1], strict=True))
    known = [row for row in sorted(first) if row in row_of]
    chosen = [
        known[at] for at in np.linspace(0, len(known) - 1, min(PAIRS, len(known))).astype(int)
    ]
    if images is None:
        at = np.array(chosen)
        some = captions.images[at]
        images = to_numpy(model.encode_images(some if hasattr(some, "shape") else list(some)))
    else:
        images = images[[row_of[row] for row in chosen]]
    texts = to_numpy(model.encode_texts([first[row] for row in chosen]))
    return np.asarray(unit(texts, "texts") @ unit(images, "images").T)
