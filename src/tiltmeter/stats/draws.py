"""Bootstrap resamples and permutations of a metric, stored compactly.

For thousands of prompts the draws of all metrics would fill the memory. What they are computed from
(top-k counts, in one or two bytes) is smaller and shared by several metrics: it is stored, and
values are computed from it for a few prompts or draws at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tiltmeter.metrics.numpy_kernels import cores
from tiltmeter.stats.null import slices_of_draws
from tiltmeter.types import Floats, Ints

MOST_BYTES = 2**26  # per core, of the draws of one metric and attribute


@dataclass(frozen=True, eq=False)
class BootstrapDraws:
    """Draws of a metric for prompts, each with the same number of draws.

    Parameters
    ----------
    kept : array of shape (prompts, draws, columns)
        What is stored.
    of : callable, optional
        Computes the metric's columns from the last axis of `kept`; without it they are the metric.
    complete : bool
        Whether it is known that every draw is defined.

    Examples
    --------
    >>> counts = np.array([[[3, 1], [2, 2]]], np.uint8)  # a prompt, two draws, two groups
    >>> shares = BootstrapDraws(counts, of=lambda kept: kept / 4)
    >>> shares.shape, shares[:1].tolist()
    ((2, 1, 2), [[[0.75, 0.25]]])
    """

    kept: Floats
    of: Callable[[Floats], Floats] | None = None
    complete: bool = False

    def __len__(self) -> int:
        return int(self.kept.shape[1])

    @property
    def prompts(self) -> int:
        return len(self.kept)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Draws, prompts, and columns stored of each."""
        return (len(self), self.prompts, int(self.kept.shape[2]))

    @property
    def columns(self) -> int:
        """Columns of the metric."""
        return int(self[:1, :1].shape[2])

    @property
    def dtype(self) -> Any:
        return self.kept.dtype if self.of is None else self[:1, :1].dtype

    def __getitem__(self, at: slice | tuple[slice, slice]) -> Floats:
        """A slice of the draws, or of draws and prompts, like that of an array."""
        rows, prompts = at if isinstance(at, tuple) else (at, slice(None))
        stored = self.kept[prompts][:, rows]
        return (stored if self.of is None else self.of(stored)).swapaxes(0, 1)

    def computed(self) -> BootstrapDraws:
        """The same draws as numbers, where they would be computed each time and are not too many.

        >>> BootstrapDraws(np.ones((1, 2, 3))).computed().shape
        (2, 1, 3)
        """
        kept, most = self.kept, MOST_BYTES * cores()
        if isinstance(kept, np.ndarray) or np.prod(kept.shape) * kept.dtype.itemsize > most:
            return self
        numbers = np.empty(kept.shape, kept.dtype)
        for part in slices_of_draws(kept.shape, 0):
            numbers[part] = kept[part, :]
        return BootstrapDraws(numbers, self.of, self.complete)

    def scaled(self, factor: float) -> BootstrapDraws:
        """The same draws times a factor."""
        of = self.of or (lambda kept: kept)
        return BootstrapDraws(self.kept, lambda kept: of(kept) * factor, self.complete)

    def select(self, prompts: Ints) -> BootstrapDraws:
        """The draws of some prompts; adjacent ones are not copied."""
        adjacent = bool((np.diff(prompts) == 1).all())
        at = slice(prompts[0], prompts[-1] + 1) if adjacent else prompts
        return BootstrapDraws(self.kept[at], self.of, self.complete)

    def at(self, prompts: Ints, rows: slice = slice(None)) -> Floats:
        """Draws x prompts x columns of some prompts; read-only."""
        draws = self.select(prompts)
        if self.of is None:
            return draws[rows]
        parts = [draws[rows, part].swapaxes(0, 1) for part in slices_of_draws(draws.shape, 1)]
        return (parts[0] if len(parts) == 1 else np.concatenate(parts)).swapaxes(0, 1)
