"""What every probe has in common: what it needs, what an audit asks of it, what it gives back."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from tiltmeter.engine.engines import Engine, LocalEngine
from tiltmeter.errors import InputError, UnknownNameError
from tiltmeter.io.image_files import GeneratedImages, ImageFiles, unreadable_rows
from tiltmeter.stats.resampling import Resampling
from tiltmeter.types import Faces, Progress, Prompt, TextEncoder

if TYPE_CHECKING:
    import pyarrow as pa

    from tiltmeter.engine.embedding.embed import EmbeddedFaces, EmbeddingResult
    from tiltmeter.metrics.convention import Convention


class ProbeResult(NamedTuple):
    """What a probe measured."""

    table: pa.Table  # rows of RESULTS
    instances: pa.Table  # rows of INSTANCES: single cases to look at
    kept: Mapping[str, pa.Table] = {}  # what a comparison or a bundle needs, by name
    record: Mapping[str, Any] = {}  # about the faces, for the record of the run


class CannotRunError(InputError):
    """A probe cannot run with what it is given: an audit that did not ask for it goes on."""


@dataclass(frozen=True, eq=False)
class AuditContext:
    """What an audit asks of its probes, all alike."""

    convention: Convention
    see: Callable[
        [Any], EmbeddingResult
    ]  # the model's vectors of the images of some data, made once
    prompts: Callable[[], Sequence[Prompt]]  # words and placebos in templates
    #: Faces that can be ranked on the engine, wherever their embeddings are.
    embedded: Callable[[Faces], EmbeddedFaces]
    engine: Engine = LocalEngine()  # noqa: RUF009
    resampling: Resampling = Resampling()  # noqa: RUF009
    attributes: Sequence[str] | None = None  # None: all
    cross: Sequence[str] = ()
    classes: str | None = None
    options: Mapping[str, Any] = field(default_factory=dict)  # of this probe, all of them
    progress: Progress = lambda what, share: None
    keep_vectors: bool = True  # what was ranked is kept, for compare and explore
    strict: bool = False  # an image that cannot be read is refused
    unreadable: dict[str, list[str]] = field(default_factory=dict)  # left out, by role: ids

    @property
    def seed(self) -> int:
        return self.resampling.seed

    def attributes_of(self, faces: Faces) -> list[str]:
        """Attributes and intersections to compare groups by."""
        return [*(faces.groups if self.attributes is None else self.attributes), *self.cross]

    def seen(self, faces: Faces) -> Faces:
        """Faces with vectors where they are images; those that cannot be read are left out."""
        if faces.vectors is None and isinstance(faces.images, ImageFiles | GeneratedImages):
            return self.see(faces).of(faces)
        return faces

    def readable(self, role: str, data: Any) -> list[int]:
        """Rows of images that can be read, where a probe shows them to the model itself."""
        wrong = unreadable_rows(data.images)
        if wrong and self.strict:
            raise InputError(f"a picture cannot be read: {next(iter(wrong.values()))}")
        rows = [row for row in range(len(data.images)) if row not in wrong]
        if not rows:
            raise CannotRunError(f"none of the {len(wrong):,} pictures can be read")
        self.unreadable[role] = [data.ids[row] for row in wrong]
        return rows


@dataclass(frozen=True, eq=False)
class Probe:
    """One published protocol.

    `run` takes a model, data by role, and the setting. Without all data it `needs` it cannot run;
    what it `takes` it uses where it is there. The model must have one of the `protocols`. `options`
    are its own settings with their defaults: `--option NAME.OPTION=VALUE`. An audit that names no
    probes runs all that can; but one with `invited_by` only if data of such a role are there.
    """

    about: str  # one line
    run: Callable[[Any, Mapping[str, Any], AuditContext], tuple[Any, ...]]  # of a ProbeResult
    needs: tuple[str, ...] = ()
    takes: tuple[str, ...] = ()
    protocols: tuple[type, ...] = (TextEncoder,)
    options: Mapping[str, Any] = field(default_factory=dict)
    invited_by: tuple[str, ...] | None = None
    #: Whether it ranks faces by texts. What it ranked is kept, for two runs to be compared; and of
    #: a re-ranker it measures the order, where all others would measure scores.
    ranks: bool = False
    by_parts: bool = False  # whether it runs on an engine that never has all images together

    def refuses(self, engine: Engine) -> str | None:
        """Why it cannot run on an engine, or None."""
        if self.by_parts or engine.name == "local":
            return None
        return f"does not run by parts (--engine {engine.name}): use --engine local"

    def lacks(self, model: Any, data: Mapping[str, Any]) -> str | None:
        """Why it cannot run, or None."""
        if not isinstance(model, self.protocols):
            names = " or ".join(_METHODS.get(one.__name__, one.__name__) for one in self.protocols)
            return f"needs a model that {names}"
        if getattr(model, "reranks", False) and not self.ranks:
            return "does not apply to a re-ranker, which changes an order and no score"
        for role in self.needs:
            if data.get(role) is None:
                option = "--images " if role == "faces" else f"--data {role}="
                return f"needs data: {option}SPEC (tiltmeter list datasets)"
        return None

    def waits(self, name: str, data: Mapping[str, Any]) -> str | None:
        """Why an audit that did not ask for it leaves it out, or None."""
        if self.invited_by is None or any(data.get(role) is not None for role in self.invited_by):
            return None
        invited = "".join(f" or --data {role}=SPEC" for role in self.invited_by)
        return f"runs if asked for: --probe {name}{invited}"

    def options_with(self, name: str, given: Mapping[str, Any]) -> dict[str, Any]:
        """The defaults with what is given in their place, as the same kind of value."""
        chosen = dict(self.options)
        for option, value in given.items():
            if option not in chosen:
                raise UnknownNameError(f"option of the probe {name}", option, chosen)
            chosen[option] = _like(chosen[option], value, f"{name}.{option}")
        return chosen


_METHODS = {
    "TextEncoder": "gives vectors (encode_images, encode_texts)",
    "DualEncoder": "gives vectors (encode_images, encode_texts)",
    "Matcher": "matches pictures and texts (match)",
    "MaskedPredictor": "guesses hidden words (mask_logprobs)",
}


def _like(default: Any, value: Any, name: str) -> Any:
    """What was typed, as the kind of value that the default is."""
    if not isinstance(value, str) or default is None or isinstance(default, str):
        return value
    try:
        if isinstance(default, bool):
            return {"true": True, "yes": True, "false": False, "no": False}[value.lower()]
        if isinstance(default, tuple):
            return tuple(type(default[0])(one) for one in value.split(","))
        return type(default)(value)
    except (KeyError, ValueError):
        shown = ",".join(map(str, default)) if isinstance(default, tuple) else default
        shown = "yes or no" if isinstance(default, bool) else f"a value such as {shown}"
        raise InputError(f"{name} takes {shown}; got {value!r}") from None


@contextmanager
def words_known() -> Iterator[None]:
    """What a model with a closed vocabulary says of a strange word, in short."""
    try:
        yield
    except UnknownNameError as error:
        said = str(error).partition(";")[0]
        raise CannotRunError(f"does not know all of its words: {said}") from error
