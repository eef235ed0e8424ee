"""Images on which groups are compared: all of them, or a balanced sample."""

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
    """The rows (None: all) on which attributes are measured, and their groups.

    Depending on the convention: all rows; a balanced sample for each attribute; or one sample for
    all of them, balanced by one of the `labels`.
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
    """Sorted rows of a random sample with as many items of each group as the smallest has."""
    smallest = int(groups.counts.min())
    chosen = [
        rng.choice(np.flatnonzero(groups.codes == code), smallest, replace=False)
        for code in range(len(groups.names))
    ]
    return np.sort(np.concatenate(chosen))


def checked(groups: Groups) -> Groups:
    """Return the groups; raise `InputError` unless there are two, each with two images."""
    if len(groups.names) < 2:
        raise InputError(
            f"{groups.attribute!r} has one group only ({groups.names[0]!r}): bias is a "
            "difference between at least two groups"
        )
    for name, count in zip(groups.names, groups.counts, strict=True):
        if count < 2:
            images = "1 image" if count == 1 else "no images"
            raise InputError(
                f"group {name!r} of {groups.attribute!r} has {images}: "
                "at least 2 are needed; take more images, merge the group with another, or choose "
                "other attributes (--attribute NAME)"
            )
    return groups
