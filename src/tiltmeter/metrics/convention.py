"""Named choices: what the literature leaves open, decided once and recorded with every number.

Two numbers measured under different conventions are different quantities. `same_convention`
refuses to compare them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass, replace

from tiltmeter.errors import ConventionError, InputError, UnknownNameError

CHOICES: dict[str, dict[str, str]] = {
    "target": {
        "uniform": "every group should fill the same share of the top k",
        "prior": "every group should fill its share of the data set",
    },
    "empty": {
        "floor": "a group absent from the top k counts as one item (p = 1/k)",
        "bounded": "absent counts as one item, but never as over-represented: p = min(1/k, q)",
        "epsilon": "p/q is taken as 1e-10: the skew of an absent group is -23.03",
        "drop": "an absent group has skew 0",
        "nan": "an absent group has no skew",
    },
    "skew": {
        "max": "MaxSkew is the largest skew",
        "absolute": "MaxSkew is the largest absolute skew",
    },
    "ties": {
        "stable": "equal scores keep the order of the rows",
        "expected": "top-k counts are expected over all orders of equal scores",
    },
    "images": {
        "unit": "image vectors are scaled to length 1",
        "raw": "image vectors are taken as they are",
    },
    "balance": {
        "asis": "all rows",
        "balanced": "for each attribute, its groups are sampled down to the smallest",
        "gender": "genders are sampled down to the smallest, one sample for every attribute",
    },
}


@dataclass(frozen=True)
class Convention:
    """One answer to each open question, and the k at which top-k metrics are taken.

    >>> get_convention("berg2022").target
    'uniform'
    >>> get_convention("berg2022").with_(k=(100,)).name
    'berg2022+k=100'
    """

    name: str
    target: str
    empty: str
    skew: str
    ties: str
    images: str
    balance: str
    k: tuple[int, ...]
    source: str

    def __post_init__(self) -> None:
        for field, values in CHOICES.items():
            if getattr(self, field) not in values:
                raise UnknownNameError(f"choice for {field!r}", getattr(self, field), values)
        if not self.k or min(self.k) < 1:
            raise InputError(f"k must be one or more whole numbers from 1 up; got {self.k}")

    def with_(self, *, k: tuple[int, ...]) -> Convention:
        """The same choices at other k, under a name that says so."""
        if k == self.k:
            return self
        name = self.name.partition("+")[0]
        return replace(self, k=k, name=f"{name}+k={','.join(map(str, k))}")

    @property
    def labels(self) -> tuple[str, ...]:
        """Attributes whose labels decide which images are measured, whatever is measured."""
        return ("gender",) if self.balance == "gender" else ()

    def on(self, dataset: str, attributes: Collection[str]) -> Convention:
        """The same choices as they apply to one dataset, labelled by some attributes.

        Berg et al. balance gender on FairFace, and do not balance UTKFace. Images without labels of
        gender cannot be balanced by it: all are taken, under a name that says so.

        >>> berg = get_convention("berg2022")
        >>> berg.on("fairface-val", ["race", "gender"]).balance
        'gender'
        >>> berg.on("utkface", ["race", "gender"]).balance
        'asis'
        >>> berg.on("cats", ["breed"]).name
        'berg2022+asis'
        """
        if self.balance != "gender":
            return self
        if dataset.lower().startswith("utkface"):
            return replace(self, balance="asis")
        if "gender" in attributes:
            return self
        return replace(self, balance="asis", name=f"{self.name}+asis")

    def as_dict(self) -> dict[str, object]:
        return asdict(self)


_FIELDS = ("name", "target", "empty", "skew", "ties", "images", "balance", "k", "source")
CONVENTIONS: dict[str, Convention] = {
    row[0]: Convention(**dict(zip(_FIELDS, row, strict=True)))  # type: ignore[arg-type]
    for row in (
        ("tiltmeter", "prior", "bounded", "max", "expected", "unit", "asis", (100, 1000),
         "the house convention"),
        ("berg2022", "uniform", "floor", "max", "stable", "unit", "gender", (1000,),
         "Berg et al. 2022"),
        ("bendvlm", "prior", "epsilon", "max", "stable", "unit", "asis", (500,),
         "Gerych et al. 2024 (BEND-VLM)"),
        ("sem", "prior", "epsilon", "max", "stable", "unit", "asis", (500,),
         "SEM's released evaluation"),
        ("sfid", "uniform", "nan", "absolute", "stable", "unit", "asis", (100,),
         "SFID 2024"),
        ("visogender", "uniform", "floor", "max", "stable", "unit", "asis", (100, 1000),
         "VisoGender 2023; it states no k, the house's are taken"),
    )
}  # fmt: skip


def get_convention(name: str | Convention) -> Convention:
    """A convention by its name."""
    if isinstance(name, Convention):
        return name
    if name not in CONVENTIONS:
        raise UnknownNameError("convention", name, CONVENTIONS)
    return CONVENTIONS[name]


def same_convention(names: Iterable[str]) -> str:
    """The one convention that all `names` agree on.

    >>> same_convention(["tiltmeter", "berg2022"])
    Traceback (most recent call last):
    ...
    tiltmeter.errors.ConventionError: results of different conventions cannot be compared: \
berg2022, tiltmeter. Measure both under one (--convention NAME)
    """
    distinct = sorted(set(names))
    if len(distinct) != 1:
        raise ConventionError(
            f"results of different conventions cannot be compared: {', '.join(distinct)}. "
            "Measure both under one (--convention NAME)"
        )
    return distinct[0]
