"""The options of an audit, by topic: one place for the command line, Python and a run's record.

Functions take them as plain keywords (`audit(model, words="sobit", permutations=0)`), and
`AuditOptions.of` sorts them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from pathlib import Path
from typing import Any, TypedDict

from tiltmeter.engine.engines import Engine
from tiltmeter.errors import InputError, UnknownNameError
from tiltmeter.metrics.convention import Convention, get_convention
from tiltmeter.stats.resampling import Resampling


@dataclass(frozen=True)
class DataOptions:
    """What a model is shown: data by role (objects or specs), and the groups to compare."""

    data: Mapping[str, Any] = field(default_factory=dict)
    attributes: Sequence[str] | None = None  # None: all
    cross: Sequence[str] = ()  # intersections, such as race*gender
    strict: bool = False  # refuse an image that cannot be read, instead of leaving it out


@dataclass(frozen=True)
class WordOptions:
    """What a model is asked: built-in lists by name, or files."""

    words: str | None = None  # None: the texts that come with the model, else `berg`
    placebo: str | None = None  # neutral words; None: built-in ones of the same parts of speech
    templates: Sequence[str] | None = None  # None: those of the list
    classes: str | None = None  # of the probe harms; None: `harms`


@dataclass(frozen=True)
class ProbeOptions:
    """What is measured: probes (None: all that can run), their own options, and the convention."""

    probes: Sequence[str] | None = None
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    convention: str | Convention = "tiltmeter"
    k: Sequence[int] | None = None  # None: the convention's

    def __post_init__(self) -> None:
        for name, own in self.options.items():
            if not isinstance(own, Mapping):
                raise InputError(
                    f"options are given by probe, {{'counterfactual': {{'epsilon': 16}}}}; "
                    f"got {own!r} for {name!r}"
                )

    @property
    def chosen(self) -> Convention:
        """The convention, with the k that was asked for."""
        found = get_convention(self.convention)
        return found if self.k is None else found.with_(k=tuple(sorted({int(k) for k in self.k})))


@dataclass(frozen=True)
class ComputeOptions:
    """Where and how things are computed: none of it changes what is measured."""

    engine: str | Engine = "local"
    store: str | Path | None = None
    device: str = "auto"
    precision: str = "auto"
    trust_remote_code: bool = False


@dataclass(frozen=True)
class OutputOptions:
    """What the run keeps: with vectors it can be compared and explored."""

    keep_vectors: bool = True


class AuditKeywords(TypedDict, total=False):
    """All options of an audit as keywords; what they mean stands in the classes above."""

    data: Mapping[str, Any] | None
    attributes: Sequence[str] | None
    cross: Sequence[str]
    strict: bool
    words: str | None
    placebo: str | None
    templates: Sequence[str] | None
    classes: str | None
    probes: Sequence[str] | None
    options: Mapping[str, Mapping[str, Any]] | None
    convention: str | Convention
    k: Sequence[int] | None
    permutations: int
    bootstraps: int
    seed: int
    engine: str | Engine
    store: str | Path | None
    device: str
    precision: str
    trust_remote_code: bool
    keep_vectors: bool


@dataclass(frozen=True)
class AuditOptions:
    """All options of an audit, by topic."""

    data: DataOptions = DataOptions()
    words: WordOptions = WordOptions()
    probes: ProbeOptions = ProbeOptions()
    resampling: Resampling = Resampling()  # noqa: RUF009
    compute: ComputeOptions = ComputeOptions()
    output: OutputOptions = OutputOptions()

    @classmethod
    def of(cls, **keywords: Any) -> AuditOptions:
        """Options from keywords; one that is None where a mapping is meant counts as not given.

        >>> AuditOptions.of(words="sobit", permutations=0).resampling
        Resampling(permutations=0, bootstraps=400, seed=0)
        """
        given = {
            name: value
            for name, value in keywords.items()
            if not (name in ("data", "options") and value is None)
        }
        sorted_, rest = sort_keywords(
            given,
            data=DataOptions, words=WordOptions, probes=ProbeOptions, resampling=Resampling,
            compute=ComputeOptions, output=OutputOptions,
        )  # fmt: skip
        for name in rest:
            raise UnknownNameError("option of an audit", name, AuditKeywords.__annotations__)
        return cls(**sorted_)

    def record(self, faces: Any) -> dict[str, dict[str, Any]]:
        """What was given and what was left at its default, as a run's record keeps it.

        Of where things were computed only what may change a number is there.
        """
        topics = (self.data, self.words, self.probes, self.resampling, self.output)
        engine = self.compute.engine
        return record_of(
            topics,
            faces=(faces if isinstance(faces, str) else None, None),
            precision=(self.compute.precision, "auto"),
            engine=(engine if isinstance(engine, str) else engine.name, "local"),
        )


def record_of(topics: Iterable[Any], **more: tuple[Any, Any]) -> dict[str, dict[str, Any]]:
    """Options given, and those left at their default; `more` are (value, default) by name.

    Objects, such as data that were loaded already, are not recorded.

    >>> record_of([OutputOptions()], seed=(3, 0))
    {'given': {'seed': 3}, 'defaulted': {'keep_vectors': True}}
    """
    listed = dict(more)
    for topic in topics:
        listed |= {one.name: (getattr(topic, one.name), _default(one)) for one in fields(topic)}
    found: dict[str, dict[str, Any]] = {"given": {}, "defaulted": {}}
    for name, values in listed.items():
        value, default = map(_plain, values)
        found["given" if value != default else "defaulted"][name] = value
    return found


def sort_keywords(
    keywords: Mapping[str, Any], **topics: type[Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Topics made of the keywords that they know, and the keywords that none of them knows.

    >>> sort_keywords({"seed": 3, "colour": 1}, resampling=Resampling)
    ({'resampling': Resampling(permutations=1000, bootstraps=400, seed=3)}, {'colour': 1})
    """
    rest, made = dict(keywords), {}
    for topic, kind in topics.items():
        names = [one.name for one in fields(kind)]
        made[topic] = kind(**{name: rest.pop(name) for name in names if name in rest})
    return made, rest


def _default(one: Field[Any]) -> Any:
    return one.default if one.default_factory is MISSING else one.default_factory()


def _plain(value: Any) -> Any:
    """What JSON can hold; of data given as objects, nothing."""
    if isinstance(value, Convention):
        return value.name
    if isinstance(value, Mapping):
        found = {name: _plain(one) for name, one in value.items() if _simple(one)}
        return found or None
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(one) for one in value]
    return value if _simple(value) else None


def _simple(value: Any) -> bool:
    return value is None or isinstance(value, str | int | float | bool | Mapping | list | tuple)
