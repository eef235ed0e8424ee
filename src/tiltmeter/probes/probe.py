"""What all probes share: their requirements, the context they run in, and their result."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from tiltmeter.engine.engines import Engine, LocalEngine
from tiltmeter.errors import InputError, UnknownNameError
from tiltmeter.io.image_files import unreadable_rows
from tiltmeter.stats.resampling import Resampling
from tiltmeter.types import Faces, Progress, Prompt, TextEncoder, WrittenText

if TYPE_CHECKING:
    import pyarrow as pa

    from tiltmeter.engine.embedding.embed_images import EmbeddedFaces, EmbeddingResult
    from tiltmeter.metrics.convention import Convention


class ProbeResult(NamedTuple):
    """What a probe measured.

    Attributes
    ----------
    table : pyarrow.Table
        Rows of the schema `RESULTS`.
    instances : pyarrow.Table
        Rows of the schema `INSTANCES`: single cases to look at.
    kept : mapping
        Tables by name that `compare`, `explore` or `bundle` need.
    record, model : mapping
        Facts about the faces and about the model, for the record of the run.
    """

    table: pa.Table
    instances: pa.Table
    kept: Mapping[str, pa.Table] = {}
    record: Mapping[str, Any] = {}
    model: Mapping[str, Any] = {}


class CannotRunError(InputError):
    """A probe cannot run on this model and data; an audit that did not request it skips it."""


@dataclass(frozen=True, eq=False)
class AuditContext:
    """What an audit gives to each of its probes: options, and access to prompts and embeddings."""

    convention: Convention
    embed: Callable[[Any], EmbeddingResult]  # embeds the images of a dataset, once
    prompts: Callable[[], Sequence[Prompt]]  # words and neutral words in templates
    #: Embeds faces for ranking on the engine, wherever their embeddings are.
    embed_for_ranking: Callable[[Faces], EmbeddedFaces]
    engine: Engine = LocalEngine()  # noqa: RUF009
    resampling: Resampling = Resampling()  # noqa: RUF009
    attributes: Sequence[str] | None = None  # None: all
    cross: Sequence[str] = ()
    classes: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)  # of this probe, defaults included
    progress: Progress = lambda what, share: None
    keep_vectors: bool = True  # keep image embeddings, for compare and explore
    strict: bool = False  # fail on an unreadable image
    unreadable: dict[str, list[str]] = field(default_factory=dict)  # ids of skipped images by role
    #: Answers of a generative model by a hash of what was asked: probes share them.
    written: dict[str, list[list[WrittenText]]] = field(default_factory=dict)
    requested: bool = True  # whether the audit names its probes
    own_neutral: bool = False  # neutral words were given, and replace the built-in ones

    @property
    def seed(self) -> int:
        return self.resampling.seed

    def attributes_of(self, faces: Faces) -> list[str]:
        """Attributes and intersections to compare groups by."""
        return [*(faces.groups if self.attributes is None else self.attributes), *self.cross]

    def with_embeddings(self, faces: Faces) -> Faces:
        """Faces with embeddings; unreadable images are left out."""
        return self.embed_for_ranking(faces).faces

    def readable(self, role: str, data: Any) -> list[int]:
        """Rows of readable images, for a probe that passes images to the model itself.

        Raises
        ------
        InputError
            If an image is unreadable and the audit is strict.
        CannotRunError
            If no image is readable.
        """
        unreadable = unreadable_rows(data.images)
        if unreadable and self.strict:
            raise InputError(f"unreadable image: {next(iter(unreadable.values()))}")
        rows = [row for row in range(len(data.images)) if row not in unreadable]
        if not rows:
            raise CannotRunError(f"none of the {len(unreadable):,} images can be read")
        self.unreadable[role] = [data.ids[row] for row in unreadable]
        return rows


@dataclass(frozen=True, eq=False)
class Probe:
    """One published protocol.

    Attributes
    ----------
    about : str
        What it measures, in one line.
    run : callable
        Called with a model, data by role and an `AuditContext`; returns a `ProbeResult` or the
        tuple of its fields.
    needs, takes : tuple of str
        Data roles that it requires, and those that it uses if they are given.
    protocols : tuple of type
        The model must follow one of these.
    options : mapping
        Its own options with their defaults: `--option NAME.OPTION=VALUE`.
    enabled_by : tuple of str or None
        An audit that names no probes runs every probe that can run; one with `enabled_by` runs
        only if data of such a role are given.
    ranks : bool
        Whether it ranks faces by texts. It then keeps what it ranked, so that two runs can be
        compared, and applies to a re-ranker, whose order it measures.
    by_parts : bool
        Whether it runs on an engine that never has all images in memory.
    options_by_parts : mapping
        Values of options with which it does, where others need the local engine.
    """

    about: str
    run: Callable[[Any, Mapping[str, Any], AuditContext], tuple[Any, ...]]
    needs: tuple[str, ...] = ()
    takes: tuple[str, ...] = ()
    protocols: tuple[type, ...] = (TextEncoder,)
    options: Mapping[str, Any] = field(default_factory=dict)
    enabled_by: tuple[str, ...] | None = None
    ranks: bool = False
    by_parts: bool = False
    options_by_parts: Mapping[str, tuple[Any, ...]] = field(default_factory=dict)

    def reason_not_on_engine(self, engine: Engine) -> str | None:
        """Reason why it cannot run on the engine, or None."""
        if self.by_parts or engine.name == "local":
            return None
        return f"does not run by parts (--engine {engine.name}): use --engine local"

    def reason_options_need_local(
        self, name: str, options: Mapping[str, Any], engine: Engine
    ) -> str | None:
        """Reason why it cannot run with these options on the engine, or None."""
        for option, values in self.options_by_parts.items():
            if engine.name != "local" and options[option] not in values:
                return f"--option {name}.{option}={options[option]} needs --engine local"
        return None

    def reason_cannot_run(self, model: Any, data: Mapping[str, Any]) -> str | None:
        """Reason why it cannot run on this model and data, or None."""
        if not isinstance(model, self.protocols):
            names = " or ".join(
                _METHODS.get(protocol.__name__, protocol.__name__) for protocol in self.protocols
            )
            return f"needs a model that {names}"
        if getattr(model, "reranks", False) and not self.ranks:
            return "does not apply to a re-ranker, which changes the order and not the scores"
        for role in self.needs:
            if data.get(role) is None:
                option = "--images " if role == "faces" else f"--data {role}="
                return f"needs data: {option}SPEC (tiltmeter list datasets)"
        return None

    def reason_left_out(self, name: str, data: Mapping[str, Any]) -> str | None:
        """Reason why an audit that names no probes leaves it out, or None."""
        if self.enabled_by is None or any(data.get(role) is not None for role in self.enabled_by):
            return None
        enabling = "".join(f" or --data {role}=SPEC" for role in self.enabled_by)
        return f"runs on request: --probe {name}{enabling}"

    def options_with(self, name: str, values: Mapping[str, Any]) -> dict[str, Any]:
        """Its options, with `values` in place of the defaults and parsed to their types.

        Raises
        ------
        UnknownNameError
            If it has no such option.
        InputError
            If a value cannot be parsed.

        Examples
        --------
        >>> Probe("", lambda *_: (), options={"count": 10}).options_with("mine", {"count": "20"})
        {'count': 20}
        """
        options = dict(self.options)
        for option, value in values.items():
            if option not in options:
                raise UnknownNameError(f"option of the probe {name}", option, options)
            options[option] = _parse_like(options[option], value, f"{name}.{option}")
        return options


_METHODS = {
    "TextEncoder": "gives embeddings (encode_images, encode_texts)",
    "DualEncoder": "gives embeddings (encode_images, encode_texts)",
    "MultiVectorEncoder": "compares texts with several vectors of an image (image_vectors)",
    "Matcher": "matches images and texts (match)",
    "Continuer": "scores answers to a prompt (continuations)",
    "Writer": "writes free text (write)",
    "MaskedPredictor": "predicts masked words (mask_logprobs)",
}


def _parse_like(default: Any, value: Any, name: str) -> Any:
    """Parse what was typed to the type of the default."""
    if not isinstance(value, str) or default is None or isinstance(default, str):
        return value
    try:
        if isinstance(default, bool):
            return {"true": True, "yes": True, "false": False, "no": False}[value.lower()]
        if isinstance(default, tuple):
            return tuple(type(default[0])(part) for part in value.split(","))
        return type(default)(value)
    except (KeyError, ValueError):
        expected = ",".join(map(str, default)) if isinstance(default, tuple) else default
        expected = "yes or no" if isinstance(default, bool) else f"a value such as {expected}"
        raise InputError(f"{name} takes {expected}; got {value!r}") from None


@contextmanager
def unknown_word_cannot_run() -> Iterator[None]:
    """Turn an unknown word of a model with a closed vocabulary into a `CannotRunError`."""
    try:
        yield
    except (UnknownNameError, InputError) as error:
        if error.code != "unknown-name":
            raise
        unknown_word = str(error).partition(";")[0]
        raise CannotRunError(f"needs words that the model does not know: {unknown_word}") from error
