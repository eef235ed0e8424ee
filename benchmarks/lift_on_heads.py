"""Lift of a model with heads on people: `python -m benchmarks.lift_on_heads MODEL --images SPEC`.

Per class of words: those that stand out most, and the size of the class with its interval and what
random splits of the images reach. `--adults N` takes the first N/2 adults of each group.
"""

from __future__ import annotations

import argparse
import math
from typing import Any

import numpy as np

import tiltmeter as tm
from tiltmeter.results import Run
from tiltmeter.types import Faces

CHILDREN = ("0-2", "3-9", "10-19")
SHOWN = 5  # words


def adults(faces: Faces, attribute: str, count: int) -> Faces:
    """The first adults of each group, equally many."""
    groups, ages = faces.attribute(attribute), faces.attribute("age")
    grown = ~np.isin(np.array(ages.names)[ages.codes], CHILDREN)
    each = count // len(groups.names)
    rows = [np.flatnonzero(grown & (groups.codes == code))[:each]
            for code in range(len(groups.names))]  # fmt: skip
    return faces.select(np.sort(np.concatenate(rows)).tolist())


def table_row(run: Run, experiment: str, attribute: str, group: str) -> str:
    """One class of words."""
    of: dict[str, Any] = {"experiment": experiment, "attribute": attribute}
    words = [row for row in run.where(metric="lift", group=group, **of) if row["concept"]]
    words.sort(key=lambda row: -abs(row["value"]))
    [size] = run.where(metric="lift_size", **of)
    named = ", ".join(f"{row['concept']} {times(row['value'])}" for row in words[:SHOWN])
    interval = f"{times(size['value'])} ({times(size['ci_low'])} to {times(size['ci_high'])})"
    return (
        f"{experiment} | {len(words)} | {named} | {interval} | {times(size['null_high'])} | "
        f"{size['verdict']}"
    )


def times(nats: Any) -> str:
    return "-" if nats is None else f"{math.exp(nats):.2f}x"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("model")
    parser.add_argument("--images", required=True)
    parser.add_argument("--attribute", default="gender")
    parser.add_argument("--group", required=True, help="whose lifts are shown")
    parser.add_argument("--adults", type=int)
    parser.add_argument("--scores", nargs="+", default=["masked", "matching"])
    parser.add_argument("--words", default="sobit+activities")
    options = parser.parse_args()
    model, faces = tm.load_model(options.model), tm.load_data(options.images)
    if options.adults:
        faces = adults(faces, options.attribute, options.adults)
    print(f"{len(faces)} images\nwords | count | largest with {options.group} | size | "
          "random splits reach | verdict")  # fmt: skip
    for scores in options.scores:
        run = tm.audit(model, faces, probes=["lift"], words=options.words,
                       attributes=[options.attribute], cross=[],
                       options={"lift": {"scores": scores}})  # fmt: skip
        for experiment in sorted({row["experiment"] for row in run.where(metric="lift_size")}):
            print(table_row(run, experiment, options.attribute, options.group), flush=True)


if __name__ == "__main__":
    main()
