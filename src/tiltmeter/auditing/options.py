"""Options of an audit by topic, shared by the command line, the Python API and a run's record.

Functions take them as plain keywords (`audit(model, words="sobit", permutations=0)`);
`AuditOptions.of` sorts these into topics.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields
from numbers import Integral
from os import PathLike
from pathlib import Path
from types import UnionType
from typing import Any, TypedDict, get_args, get_origin, get_type_hints

from tiltmeter.engine.engines import Engine
from tiltmeter.errors import InputError, UnknownNameError
from tiltmeter.metrics.convention import Convention, get_convention
from tiltmeter.stats.resampling import Resampling


@dataclass(frozen=True)
class DataOptions:
    """Input data by role (objects or specs), and the groups to compare."""

    data: Mapping[str, Any] = field(default_factory=dict)
    attributes: Sequence[str] | None = None  # None: all
    cross: Sequence[str] = ()  # intersections, such as race*gender
    strict: bool = False  # fail on a missing or unreadable image instead of skipping it
    unseen: Sequence[Any] = ()  # debiased models: leave out the rows they were fitted on
    limit: int | None = None  # so many of the images, drawn at random; None: all
    thorough: bool = False  # full sizes of the built-in data


@dataclass(frozen=True)
class WordOptions:
    """Word lists: built-in ones by name, or files."""

    words: str | None = None  # None: the texts that come with the embeddings, or `default`
    placebo: str | None = None  # neutral words; None: built-in, of the same part of speech
    templates: Sequence[str] | None = None  # None: those of the word list
    articles: str | None = None  # `adjusted` or `written`; None: as the word list says
    classes: str | None = None  # of the `harms` probe; None: `harms`

    @property
    def texts(self) -> tuple[str | None, str | None, Sequence[str] | None, str | None]:
        """What decides which prompts are shown: words, neutral words, templates and articles."""
        return self.words, self.placebo, self.templates, self.articles


@dataclass(frozen=True)
class ProbeOptions:
    """What to measure: probes (None: all that can run), their options, and the convention."""

    probes: Sequence[str] | None = None
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    convention: str | Convention = "tiltmeter"
    k: Sequence[int] | None = None  # None: the convention's

    def __post_init__(self) -> None:
        for name, probe_options in self.options.items():
            if not isinstance(probe_options, Mapping):
                raise InputError(
                    "options must be a mapping for each probe, such as "
                    f"{{'counterfactual': {{'epsilon': 16}}}}; "
                    f"got {probe_options!r} for {name!r}"
                )

    @property
    def chosen(self) -> Convention:
        """The convention, with `k` in place of its own where that is set."""
        convention = get_convention(self.convention)
        return (
            convention
            if self.k is None
            else convention.with_(k=tuple(sorted({int(k) for k in self.k})))
        )


@dataclass(frozen=True)
class ComputeOptions:
    """Where and how to compute: none of it changes what is measured."""

    engine: str | Engine = "local"
    store: str | Path | None = None
    device: str = "auto"
    precision: str = "auto"
    batch_size: int | None = None  # images embedded together; None: by device
    trust_remote_code: bool = False


@dataclass(frozen=True)
class OutputOptions:
    """What the run keeps, and the names it shows: `compare` and `explore` need embeddings."""

    keep_vectors: bool = True
    name: str | None = None  # of the model; None: its own
    data_name: str | None = None  # of the images; None: their own


class AuditKeywords(TypedDict, total=False):
    """All options of an audit as keywords; the classes above document them."""

    data: Mapping[str, Any] | None
    attributes: Sequence[str] | None
    cross: Sequence[str]
    strict: bool
    unseen: Sequence[Any]
    limit: int | None
    thorough: bool
    words: str | None
    placebo: str | None
    templates: Sequence[str] | None
    articles: str | None
    classes: str | None
    probes: Sequence[str] | None
    options: Mapping[str, Mapping[str, Any]] | None
    convention: str | Convention
    k: Sequence[int] | None
    permutations: int | None
    bootstraps: int | None
    seed: int
    engine: str | Engine
    store: str | Path | None
    device: str
    precision: str
    batch_size: int | None
    trust_remote_code: bool
    keep_vectors: bool
    name: str | None
    data_name: str | None


DEFAULTED = ("data", "options", "permutations", "bootstraps")


@dataclass(frozen=True)
class AuditOptions:
    """All options of an audit, by topic."""

    data: DataOptions = DataOptions()
    words: WordOptions = WordOptions()
    probes: ProbeOptions = ProbeOptions()
    resampling: Resampling = Resampling()  # noqa: RUF009
    compute: ComputeOptions = ComputeOptions()
    output: OutputOptions = OutputOptions()
    given: frozenset[str] = frozenset()  # names of the options that were set

    @classmethod
    def of(cls, **keywords: Any) -> AuditOptions:
        """Sort keywords into topics; for the names in `DEFAULTED`, None means the default.

        >>> AuditOptions.of(words="sobit", permutations=0).resampling
        Resampling(permutations=0, bootstraps=400, seed=0)
        """
        keywords = {
            name: value
            for name, value in keywords.items()
            if not (name in DEFAULTED and value in (None, {}))
        }
        kinds = get_type_hints(AuditKeywords)
        for name in (name for name in keywords if name in kinds):
            _check_kind(name, keywords[name], kinds[name])
        sorted_, rest = options_from_keywords(
            keywords,
            data=DataOptions, words=WordOptions, probes=ProbeOptions, resampling=Resampling,
            compute=ComputeOptions, output=OutputOptions,
        )  # fmt: skip
        for name in rest:
            raise UnknownNameError("audit option", name, AuditKeywords.__annotations__)
        return cls(**sorted_, given=frozenset(keywords))

    def record(self, faces: Any) -> dict[str, dict[str, Any]]:
        """Options that were set and options left at their default, as a run records them.

        Of the compute options only those that may change a value are recorded.
        """
        topics = (self.data, self.words, self.probes, self.resampling, self.output)
        engine = self.compute.engine
        record = split_set_and_default(
            topics,
            faces=(faces if isinstance(faces, str) else None, None),
            precision=(self.compute.precision, "auto"),
            engine=(engine if isinstance(engine, str) else engine.name, "local"),
        )
        for name in (*DEFAULTED, "seed"):  # the sizes of the default audit were not set
            if name not in self.given and name in record["given"]:
                record["defaulted"][name] = record["given"].pop(name)
        return record


def split_set_and_default(
    topics: Iterable[Any], **extra: tuple[Any, Any]
) -> dict[str, dict[str, Any]]:
    """Split options into those set and those left at their default.

    `extra` are further options as (value, default) by name. Objects, such as loaded data, are not
    recorded.

    >>> split_set_and_default([OutputOptions()], seed=(3, 0))
    {'given': {'seed': 3}, 'defaulted': {'keep_vectors': True, 'name': None, 'data_name': None}}
    """
    listed = dict(extra)
    for topic in topics:
        listed |= {
            option.name: (getattr(topic, option.name), _default(option)) for option in fields(topic)
        }
    record: dict[str, dict[str, Any]] = {"given": {}, "defaulted": {}}
    for name, values in listed.items():
        value, default = map(_plain, values)
        record["given" if value != default else "defaulted"][name] = value
    return record


def options_from_keywords(
    keywords: Mapping[str, Any], **topics: type[Any]
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Build each topic from its keywords, and return them with the unknown keywords.

    >>> options_from_keywords({"seed": 3, "colour": 1}, resampling=Resampling)
    ({'resampling': Resampling(permutations=1000, bootstraps=400, seed=3)}, {'colour': 1})
    """
    rest, sorted_topics = dict(keywords), {}
    for topic, kind in topics.items():
        names = [option.name for option in fields(kind)]
        sorted_topics[topic] = kind(**{name: rest.pop(name) for name in names if name in rest})
    return sorted_topics, rest


#: What an option of each type may be in Python, and how an error says so.
_KINDS: dict[Any, tuple[Any, str]] = {
    Sequence: (Iterable, "a list, such as [{!r}]"),
    Mapping: (Mapping, "a mapping"),
    str: ((str, PathLike), "one text"),
    Path: (PathLike, "a path"),
    int: (Integral, "a whole number"),
    bool: (bool, "True or False"),
    type(None): (type(None), "None"),
}


def _check_kind(name: str, value: Any, kind: Any) -> None:
    """Refuse one text where a list is asked for, a list where one text is, and the like.

    >>> _check_kind("attributes", "gender", Sequence[str])
    Traceback (most recent call last):
        ...
    tiltmeter.errors.InputError: attributes must be a list, such as ['gender']; got 'gender'
    """
    one_of = get_args(kind) if get_origin(kind) is UnionType else (kind,)
    kinds = [get_origin(one) or one for one in one_of]
    if not {*kinds} <= {*_KINDS}:
        return  # an object of our own, which has errors of its own
    if isinstance(value, str):  # a sequence, but never one of options
        kinds_of_value = [one for one in kinds if one is str]
    else:
        kinds_of_value = [one for one in kinds if isinstance(value, _KINDS[one][0])]
    if not kinds_of_value:
        what = _KINDS[kinds[0]][1].format(value)
        several = ", such as 'nurse,doctor' or 'sobit+activities'" if name == "words" else ""
        raise InputError(
            f"{name} must be {what}{several}; got {value!r}", code="bad-option", value=value
        )


def _default(option: Field[Any]) -> Any:
    return option.default if option.default_factory is MISSING else option.default_factory()


def _plain(value: Any) -> Any:
    """Keep what JSON can represent; drop objects."""
    if isinstance(value, Convention):
        return value.name
    if isinstance(value, Mapping):
        simple = {name: _plain(entry) for name, entry in value.items() if _simple(entry)}
        return simple or None
    if isinstance(value, Sequence) and not isinstance(value, str):
        return [_plain(entry) for entry in value]
    return value if _simple(value) else None


def _simple(value: Any) -> bool:
    return value is None or isinstance(value, str | int | float | bool | Mapping | list | tuple)
