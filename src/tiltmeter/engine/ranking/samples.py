"""Which images groups are compared on: all of them, or a sample in which groups are balanced."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np

from tiltmeter.errors import InputError
from tiltmeter.metrics.convention import Convention
from tiltmeter.types import Groups, Ints


def samples_of(
    groups: Mapping[str, Groups],
    labels: Mapping[str, Groups],
    convention: Convention,
    rng: np.random.Generator,
) -> Iterator[tuple[Ints | None, dict[str, Groups]]]:
    """The rows (None: all) that attributes are measured on, and their groups there.

    All rows for all attributes; a balanced sample for each; or one for all of them, balanced by
    one of the `labels`.
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


def balanced_rows(groups: Groups, rng: np.random.Generator) -> Ints:
    """Rows of as many items of each group as the smallest has, drawn at random, in order."""
    least = int(groups.counts.min())
    chosen = [
        rng.choice(np.flatnonzero(groups.codes == code), least, replace=False)
        for code in range(len(groups.names))
    ]
    return np.sort(np.concatenate(chosen))


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
