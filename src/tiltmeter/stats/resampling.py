"""How much is drawn for p-values and intervals, and from which seed."""

from __future__ import annotations

from dataclasses import dataclass

from tiltmeter.errors import InputError


@dataclass(frozen=True)
class Resampling:
    """Permutations for p-values, bootstrap resamples for intervals; 0 leaves them out.

    >>> Resampling(bootstraps=0)
    Resampling(permutations=1000, bootstraps=0, seed=0)
    """

    permutations: int = 1000
    bootstraps: int = 400
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("permutations", "bootstraps", "seed"):  # whole numbers of NumPy's, too
            object.__setattr__(self, name, int(getattr(self, name)))
        if self.permutations < 0 or self.bootstraps < 0 or self.bootstraps == 1:
            raise InputError(
                f"permutations must be 0 or more, bootstraps 0 or at least 2; got "
                f"{self.permutations} and {self.bootstraps}"
            )
        if not 0 <= self.seed < 2**63:
            raise InputError(f"the seed must be a whole number from 0 to 2^63 - 1; got {self.seed}")
