"""Named conventions: choices that the literature leaves open, recorded with every result.

Two values computed under different conventions are different quantities: `same_convention` refuses
to compare them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass, replace
from typing import Any

from tiltmeter.errors import ConventionError, InputError, UnknownNameError

CHOICES: dict[str, dict[str, str]] = {
    "target": {
        "uniform": "every group should fill the same share of the top k",
        "prior": "every group should fill its share of the dataset",
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
        "unit": "image embeddings are scaled to length 1",
        "raw": "image embeddings are used as they are",
    },
    "balance": {
        "asis": "all rows",
        "balanced": "for each attribute, its groups are sampled down to the smallest",
        "gender": "genders are sampled down to the smallest, one sample for every attribute",
    },
    "spread": {
        "sample": "C-ASC divides by the standard deviation of a sample (n - 1)",
        "population": "C-ASC divides by that of a population (n), as NumPy does by default",
    },
}


@dataclass(frozen=True)
class Convention:
    """One choice for each open question, and the sizes k of top-k metrics.

    Parameters
    ----------
    name : str
        Its name, which is recorded with every result.
    target, empty, skew, ties, images, balance, spread : str
        One of `CHOICES` each.
    k : tuple of int
        Sizes of the top.
    source : str
        The publication that it follows.

    Raises
    ------
    UnknownNameError
        A choice is not in `CHOICES`.
    InputError
        A `k` is below 1, or there is none.

    Examples
    --------
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
    spread: str = "sample"

    def __post_init__(self) -> None:
        for field, values in CHOICES.items():
            if getattr(self, field) not in values:
                raise UnknownNameError(f"choice for {field!r}", getattr(self, field), values)
        if not self.k or min(self.k) < 1:
            raise InputError(f"k must be one or more integers from 1 up; got {self.k}")

    def with_(self, *, k: tuple[int, ...]) -> Convention:
        """The same choices at other k, with these k in its name."""
        if k == self.k:
            return self
        name = self.name.partition("+")[0]
        return replace(self, k=k, name=f"{name}+k={','.join(map(str, k))}")

    @property
    def labels(self) -> tuple[str, ...]:
        """Attributes whose labels decide which images are measured."""
        return ("gender",) if self.balance == "gender" else ()

    def on(self, dataset: str, attributes: Collection[str]) -> Convention:
        """The same choices as they apply to a dataset.

        Berg et al. balance gender on FairFace, and do not balance UTKFace. Images without gender
        labels cannot be balanced by gender: all are measured, and the convention's name says so.

        Parameters
        ----------
        dataset : str
            Name of the dataset.
        attributes : collection of str
            Attributes that its images are labelled by.

        Returns
        -------
        Convention
            Itself, or with another `balance`.

        Examples
        --------
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
        """Its fields, as they are written to `run.json`."""
        return asdict(self)


_FIELDS = ("name", "target", "empty", "skew", "ties", "images", "balance", "spread", "k",
           "source")  # fmt: skip
CONVENTIONS: dict[str, Convention] = {
    row[0]: Convention(**dict(zip(_FIELDS, row, strict=True)))  # type: ignore[arg-type]
    for row in (
        ("tiltmeter", "prior", "bounded", "max", "expected", "unit", "asis", "sample", (100, 1000),
         "the default convention"),
        ("berg2022", "uniform", "floor", "max", "stable", "unit", "gender", "sample", (1000,),
         "Berg et al. 2022"),
        ("sobit2024", "prior", "bounded", "max", "expected", "unit", "asis", "population", (100,),
         "Hamidieh et al. 2024 (So-B-IT); only k, and the standard deviation of C-ASC as NumPy's"),
        ("bendvlm", "prior", "epsilon", "max", "stable", "unit", "asis", "sample", (500,),
         "Gerych et al. 2024 (BEND-VLM)"),
        ("sem", "prior", "epsilon", "max", "stable", "unit", "asis", "sample", (500,),
         "SEM's released evaluation"),
        ("sfid", "uniform", "nan", "absolute", "stable", "unit", "asis", "sample", (100,),
         "SFID 2024"),
        ("visogender", "uniform", "floor", "max", "stable", "unit", "asis", "sample", (100, 1000),
         "VisoGender 2023; it states no k, so the default ones are used"),
    )
}  # fmt: skip


def get_convention(name: str | Convention) -> Convention:
    """Look up a named convention of the literature.

    Parameters
    ----------
    name : str or Convention
        One of `CONVENTIONS`; a Convention is returned as it is.

    Returns
    -------
    Convention
        The convention.

    Raises
    ------
    UnknownNameError
        No convention has this name.

    Examples
    --------
    >>> get_convention("tiltmeter").k
    (100, 1000)
    """
    if isinstance(name, Convention):
        return name
    if name not in CONVENTIONS:
        raise UnknownNameError("convention", name, CONVENTIONS)
    return CONVENTIONS[name]


def choices_of(convention: str | Convention | None, **given: Any) -> dict[str, Any]:
    """Choices of a metric: those that were given, and the convention's for the others.

    Parameters
    ----------
    convention : str or Convention or None
        Answers what was not given.
    **given
        Choices by name; None was not given.

    Returns
    -------
    dict
        A value for each choice.

    Raises
    ------
    InputError
        A choice was not given and there is no convention, or the convention has several k.

    Examples
    --------
    >>> choices_of("tiltmeter", k=20, target=None)
    {'k': 20, 'target': 'prior'}
    """
    missing = [name for name, value in given.items() if value is None]
    if not missing:
        return given
    if convention is None:
        example = "".join(f", {name}=..." for name in missing)
        raise InputError(
            f"{' and '.join(missing)} must be chosen: pass convention='tiltmeter' (or another: "
            f"tiltmeter list conventions), or each of them{example}",
            value=missing,
        )
    known = get_convention(convention)
    chosen = {name: getattr(known, name) if given[name] is None else given[name] for name in given}
    if isinstance(chosen.get("k"), tuple):
        if len(known.k) > 1:
            sizes = " and ".join(map(str, known.k))
            raise InputError(
                f"the convention {known.name!r} has k = {sizes}: pass k", value=known.k
            )
        chosen["k"] = known.k[0]
    return chosen


def same_convention(names: Iterable[str]) -> str:
    """Check that results share one convention.

    Parameters
    ----------
    names : iterable of str
        The convention of each result.

    Returns
    -------
    str
        The one convention.

    Raises
    ------
    ConventionError
        There are several, or none.

    Examples
    --------
    >>> same_convention(["tiltmeter", "berg2022"])
    Traceback (most recent call last):
    ...
    tiltmeter.errors.ConventionError: results of different conventions cannot be compared: \
    berg2022, tiltmeter. Audit both with one --convention NAME
    """
    distinct = sorted(set(names))
    if len(distinct) != 1:
        same_choices = len({name.partition("+k=")[0] for name in distinct}) == 1
        option = "the same --k" if same_choices else "one --convention NAME"
        raise ConventionError(
            f"results of different conventions cannot be compared: {', '.join(distinct)}. "
            f"Audit both with {option}",
            value=distinct,
        )
    return distinct[0]
