"""Number of permutations and bootstrap resamples, and their seed."""

from __future__ import annotations

from dataclasses import dataclass

from tiltmeter.errors import InputError


@dataclass(frozen=True)
class Resampling:
    """Number of permutations for p-values and bootstrap resamples for intervals.

    Parameters
    ----------
    permutations : int
        Permutations of the labels; 0 for no p-values.
    bootstraps : int
        Bootstrap resamples; 0 for no intervals.
    seed : int
        Seed of both.

    Raises
    ------
    InputError
        A number is negative, there is only one bootstrap resample, or the seed is 2^63 or more.

    Examples
    --------
    >>> Resampling(bootstraps=0)
    Resampling(permutations=1000, bootstraps=0, seed=0)
    """

    permutations: int = 1000
    bootstraps: int = 400
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("permutations", "bootstraps", "seed"):  # also from NumPy integers
            object.__setattr__(self, name, int(getattr(self, name)))
        if self.permutations < 0 or self.bootstraps < 0 or self.bootstraps == 1:
            raise InputError(
                f"permutations must be 0 or more, bootstraps 0 or at least 2; got "
                f"{self.permutations} and {self.bootstraps}"
            )
        if not 0 <= self.seed < 2**63:
            raise InputError(f"the seed must be an integer from 0 to 2^63 - 1; got {self.seed}")
