"""Random but visible splits of images: what any difference between images does to lift.

People who differ in gender differ in clothes, poses and light as well. Whether words move more by
an attribute than by other visible differences is told by splitting the same images at random
directions of their embeddings. Directions are taken within the annotated cells (every combination
of known labels), so that no split follows an attribute.
"""

from __future__ import annotations

import numpy as np

from tiltmeter.errors import InputError
from tiltmeter.types import Floats, Ints

#: Images that splits are made of, at most: more cost time, and add little.
MOST_IMAGES = 4096


def random_visible_splits(
    embeddings: Floats, cells: Ints, groups: int, splits: int, rng: np.random.Generator
) -> Ints:
    """Split images at random directions of their embeddings.

    Parameters
    ----------
    embeddings
        Images x dimensions.
    cells
        Code of the annotated cell of each image, such as its race, gender and age together.
    groups
        Groups to make. Two are the halves by one direction; more are by the direction, of as many
        as there are groups, along which an image goes furthest.
    splits
        How many splits to make.
    rng
        Source of the directions.

    Returns
    -------
    Ints
        Splits x images: codes of groups.

    Examples
    --------
    >>> rng = np.random.default_rng(0)
    >>> found = random_visible_splits(rng.normal(size=(100, 8)), np.arange(100) % 4, 2, 3, rng)
    >>> found.shape, found.sum(axis=1)
    ((3, 100), array([50, 50, 50]))
    """
    embeddings, cells = np.asarray(embeddings), np.asarray(cells)
    if embeddings.dtype != np.float32:
        embeddings = embeddings.astype(float)
    if len(embeddings) != len(cells) or groups < 2:
        raise InputError(
            f"{len(embeddings)} embeddings, {len(cells)} cells and {groups} groups: give a cell "
            "for each embedding, and at least 2 groups"
        )
    if splits < 0:
        raise InputError(f"the number of splits must be 0 or more; got {splits}")
    _, cells = np.unique(cells, return_inverse=True)
    counts = np.bincount(cells)
    means = np.stack([np.bincount(cells, column) for column in embeddings.T], axis=1)
    within = embeddings - (means / counts[:, None])[cells].astype(embeddings.dtype)
    directions = 1 if groups == 2 else groups
    drawn = rng.normal(size=(embeddings.shape[1], splits * directions)).astype(embeddings.dtype)
    along = (within @ drawn).T.reshape(splits, directions, len(cells))
    if groups > 2:
        along /= along.std(axis=2, keepdims=True)
        furthest, made = along[:, 0], np.zeros((splits, len(cells)), np.int64)
        for code in range(1, groups):  # NumPy's argmax takes several times as long here
            made[along[:, code] > furthest] = code
            np.maximum(furthest, along[:, code], out=furthest)
        return made
    order = np.argsort(along[:, 0], axis=1, kind="stable")
    made = np.zeros((splits, len(cells)), np.int64)
    np.put_along_axis(made, order[:, len(cells) - len(cells) // 2 :], 1, axis=1)
    return made
