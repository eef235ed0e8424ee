"""C-ASC under permuted labels and bootstrap weights, from sums of image embeddings.

A score is the product of a text and an image. So the sum of a text's scores over a group is its
product with the sum of the group's images, and only these sums have to be drawn: they do not
depend on the texts, and are small. C-ASC is computed from them when it is read.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tiltmeter.stats.kernels import c_asc_of_sums
from tiltmeter.types import Floats, Ints


@dataclass(frozen=True, eq=False)
class CAscDraws:
    """C-ASC of prompts in draws: reads like an array of shape (prompts, draws, groups).

    Parameters
    ----------
    texts : array of shape (prompts, features)
        Each divided by the standard deviation of its scores; NaN where all scores are the same.
    sums : array of shape (draws, groups, features)
        Sums of the images of each group, as differences from the mean of all images.
    sizes : array of int of shape (groups,)
        Sizes of the groups.
    squares : array of shape (prompts, draws), optional
        Sums of squared standardised scores; without them they do not change, as in permutations.

    Examples
    --------
    >>> sums = np.array([[[4.0], [-4.0]]], np.float32)  # one draw, two groups, one feature
    >>> draws = CAscDraws(np.array([[0.5]], np.float32), sums, np.array([2, 2]))
    >>> draws.shape, draws[:1][:, :1].tolist()
    ((1, 1, 2), [[[2.0, -2.0]]])
    """

    texts: Floats
    sums: Floats
    sizes: Ints
    squares: Floats | None = None

    dtype = np.dtype(np.float32)

    @property
    def shape(self) -> tuple[int, int, int]:
        return (len(self.texts), *self.sums.shape[:2])

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, at: Any) -> Any:
        """Some prompts, still to be computed; or the values of some prompts and draws."""
        if not isinstance(at, tuple):
            squares = None if self.squares is None else self.squares[at]
            return replace(self, texts=self.texts[at], squares=squares)
        prompts, draws = at
        texts, sums = self.texts[prompts], self.sums[draws]
        products = (texts @ sums.reshape(-1, sums.shape[2]).T).reshape(-1, *sums.shape[:2])
        squares = None if self.squares is None else self.squares[prompts][:, draws]
        return c_asc_of_sums(products, self.sizes, squares).astype(self.dtype)
