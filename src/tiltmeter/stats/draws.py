"""Draws of a figure, kept small.

For thousands of prompts the draws of all figures would fill the memory. What they are made of (the
counts of a top k, in one byte or two) is smaller and serves several figures: it is kept, and what
is asked for is made from it, some prompts or some draws at a time.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np

from tiltmeter.stats.null import stretches
from tiltmeter.types import Floats, Ints


@dataclass(frozen=True, eq=False)
class BootstrapDraws:
    """Of prompts, each with as many draws as the others."""

    kept: Floats  # prompts x draws x anything
    of: Callable[[Floats], Floats] | None = None  # makes columns of the last axis; None: they are

    def __len__(self) -> int:
        return int(self.kept.shape[1])

    @property
    def prompts(self) -> int:
        return len(self.kept)

    @property
    def shape(self) -> tuple[int, int, int]:
        """Draws, prompts, and what is kept of each."""
        return (len(self), self.prompts, int(self.kept.shape[2]))

    @property
    def dtype(self) -> Any:
        return self.kept.dtype if self.of is None else np.dtype(float)

    def __getitem__(self, at: slice | tuple[slice, slice]) -> Floats:
        """A slice of the draws, or of draws and prompts, as an array would give it."""
        rows, prompts = at if isinstance(at, tuple) else (at, slice(None))
        some = self.kept[prompts][:, rows]
        return (some if self.of is None else self.of(some)).swapaxes(0, 1)

    def only(self, prompts: Ints) -> BootstrapDraws:
        """Those of some prompts; neighbours need no copy."""
        adjoin = bool((np.diff(prompts) == 1).all())
        return BootstrapDraws(
            self.kept[slice(prompts[0], prompts[-1] + 1) if adjoin else prompts], self.of
        )

    def at(self, prompts: Ints, rows: slice = slice(None)) -> Floats:
        """Draws x prompts x columns, of some prompts; not to be written to."""
        some = self.only(prompts)
        if self.of is None:
            return some[rows]
        parts = [some[rows, part].swapaxes(0, 1) for part in stretches(some.shape, 1)]
        return (parts[0] if len(parts) == 1 else np.concatenate(parts)).swapaxes(0, 1)
