"""How well the model sees each group in the images: its evidence is texts that name the groups."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from tiltmeter.errors import UnknownNameError
from tiltmeter.metrics.arrays import to_numpy, unit
from tiltmeter.results import combined, rows
from tiltmeter.stats.lift_verdict import enough_images
from tiltmeter.stats.visibility import evidence_worth, visibility
from tiltmeter.stimuli import fill, load
from tiltmeter.types import Floats, Groups, TextEncoder, planted_world

TEMPLATE = "a photo of a {}"
_GENDER = {"m": "male", "man": "male", "men": "male", "f": "female", "woman": "female",
           "women": "female"}  # fmt: skip


def group_texts(attribute: str, group: str, *, planted: bool = False) -> list[str]:
    """Texts that name a group.

    >>> group_texts("gender", "Female"), group_texts("race", "Latino_Hispanic")
    (['a photo of a woman'], ['a photo of a Latino person'])
    >>> group_texts("hue", "red", planted=True)
    ['a photo of a red ball', 'a photo of a red block']
    """
    if planted:
        from tiltmeter.testbed.language import HUES, PHRASES, SHAPES
        from tiltmeter.testbed.oracle import ATTRIBUTES, membership

        if group not in (groups := ATTRIBUTES.get(attribute, ())):
            raise UnknownNameError("group of the testbed", group, groups or (*SHAPES, *HUES))
        own = membership(attribute)[:, groups.index(group)]
        names = [phrase for phrase, is_own in zip(PHRASES, own, strict=True) if is_own]
    else:
        known = load("group-nouns").table.get(attribute, {})
        words = known.get(group) or known.get(_GENDER.get(group.lower(), group.lower())) or {}
        adjective = words.get("adjective", [group.replace("_", " ")])[0]
        names = [words["singular"][0] if "singular" in words else f"{adjective} person"]
    return [fill(TEMPLATE, name) for name in names]


def visibility_rows(
    model: TextEncoder, images: Floats, groups: Mapping[str, Groups], scale: float,
    constants: Mapping[str, Any],
) -> pa.Table:  # fmt: skip
    """Visibility of each group with enough images; and of each attribute what a nat is worth, and
    how much higher an image scores with the text of its group than with the others' (matched).
    """
    planted = planted_world(model) is not None
    tables = []
    for attribute, by in groups.items():
        enough = enough_images(by.counts)
        if len(enough) < 2 or "*" in attribute:  # captions name no intersections
            continue
        names = [by.names[code] for code in enough]
        same = {**constants, "metric": "visibility", "attribute": attribute}
        try:
            texts = [group_texts(attribute, name, planted=planted) for name in names]
            told = to_numpy(model.encode_texts([text for own in texts for text in own]))
        except UnknownNameError as error:
            tables.append(rows(1, **same, value=np.nan, note=str(error)))
            continue
        at = np.isin(by.codes, enough)
        ends = np.cumsum([len(own) for own in texts])
        of_groups = np.split(np.asarray(unit(told, "texts")), ends[:-1])
        evidence = scale * images[at] @ np.stack([own.mean(axis=0) for own in of_groups]).T
        own = np.searchsorted(enough, by.codes[at])
        found, worth = visibility(evidence, own), evidence_worth(evidence, own)
        half = 1.96 * found.error
        tables.append(
            rows(len(names), **same, group=names, value=found.value, ideal=1.0,
                 ci_low=found.value - half, ci_high=found.value + half, ci_method="images only",
                 n=int(at.sum()), n_group=by.counts[enough].tolist(),
                 note=[f"evidence: {text[0]!r}" for text in texts])
        )  # fmt: skip
        each = np.arange(len(own))
        gap = (evidence[each, own] - evidence.mean(axis=1)) * len(names) / (len(names) - 1)
        mean, spread = float(gap.mean()), 1.96 * float(gap.std(ddof=1)) / len(gap) ** 0.5
        tables.append(
            rows(1, **{**same, "metric": "matched_logit"}, experiment="groups", value=mean,
                 ci_low=mean - spread, ci_high=mean + spread, ci_method="images only", n=len(gap))
        )  # fmt: skip
        value, low, high = worth or (np.nan, np.nan, np.nan)
        surely = None if worth else "the texts tell the groups apart surely, so there is no limit"
        tables.append(
            rows(1, **{**same, "metric": "nat_worth"}, value=value, ideal=1.0, ci_low=low,
                 ci_high=high, ci_method="jackknife over images", n=int(at.sum()), note=surely)
        )  # fmt: skip
    return combined(tables)
