"""C-ASC under permuted labels and bootstrap weights, from sums of image embeddings.

A score is the product of a text and an image. So the sum of a text's scores over a group is its
product with the sum of the group's images, and only these sums have to be drawn: they do not
depend on the texts, and are small. The same is true of gaps between groups, which are differences
of such sums. C-ASC is computed from them when it is read.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from tiltmeter.stats.kernels import gaps_of_sums
from tiltmeter.types import Floats, Ints


@dataclass(frozen=True, eq=False)
class CAscDraws:
    """C-ASC of prompts in draws: reads like an array of shape (prompts, draws, groups).

    Parameters
    ----------
    texts : array of shape (prompts, features)
        Each divided by the standard deviation of its scores; NaN where all scores are the same.
    gaps : array of shape (draws, groups, features)
        Mean image of each group minus that of all others; with `squares` one more row, the sum of
        all images as differences from their mean.
    images : int
        Number of images.
    squares : array of shape (prompts, draws), optional
        Sums of squared standardised scores; without them they do not change, as in permutations.

    Examples
    --------
    >>> sums = np.array([[[4.0], [-4.0]]], np.float32)  # one draw, two groups, one feature
    >>> draws = CAscDraws.of_sums(np.array([[0.5]], np.float32), sums, np.array([2, 2]))
    >>> draws.shape, draws[:1][:, :1].tolist()
    ((1, 1, 2), [[[2.0, -2.0]]])
    """

    texts: Floats
    gaps: Floats
    images: int
    squares: Floats | None = None

    dtype = np.dtype(np.float32)

    @classmethod
    def of_sums(
        cls, texts: Floats, sums: Floats, sizes: Ints, squares: Floats | None = None
    ) -> CAscDraws:
        """From sums of the images of each group, as differences from the mean of all images."""
        gaps = gaps_of_sums(sums, sizes, axis=1)
        if squares is not None:
            gaps = np.concatenate([gaps, sums.sum(axis=1, keepdims=True)], axis=1)
        return cls(texts, gaps, int(sizes.sum()), squares)

    @property
    def shape(self) -> tuple[int, int, int]:
        draws, columns = self.gaps.shape[:2]
        return (len(self.texts), draws, columns - (self.squares is not None))

    def __len__(self) -> int:
        return len(self.texts)

    def __getitem__(self, at: Any) -> Any:
        """Some prompts, still to be computed; or the values of some prompts and draws."""
        if not isinstance(at, tuple):
            squares = None if self.squares is None else self.squares[at]
            return replace(self, texts=self.texts[at], squares=squares)
        prompts, draws = at
        texts, gaps = self.texts[prompts], self.gaps[draws]
        products = (texts @ gaps.reshape(-1, gaps.shape[2]).T).reshape(-1, *gaps.shape[:2])
        if self.squares is not None:
            squares, total = self.squares[prompts][:, draws], products[..., -1]
            variance = (squares - total**2 / self.images) / (self.images - 1)
            products = products[..., :-1] / np.sqrt(variance)[..., None]
        return products.astype(self.dtype, copy=False)
