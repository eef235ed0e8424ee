"""A model that was corrected: a model like any other, kept in a directory of its own.

The directory holds `debiased.json` (method, settings, which model, which rows, what it cost),
what was learned, and the rows it was learned from. An edited model of transformers lies there as
`save_pretrained` writes it, so that `from_pretrained` takes the same directory.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from tiltmeter.debiasers import DEBIASERS
from tiltmeter.debiasers.debiaser import Debiaser, ModelEdit, Reranker, VectorMap
from tiltmeter.debiasers.fitted_rows import FittedRows
from tiltmeter.errors import InputError
from tiltmeter.io.specs import Spec
from tiltmeter.models import load_model
from tiltmeter.models.python import learned
from tiltmeter.probes.probe import CannotRunError
from tiltmeter.results import content_hash, file_hash, machine, versions, written_beside
from tiltmeter.types import Array, Faces, Groups, Ints

FORMAT = 1
FILE = "debiased.json"
#: What the protocols of `tiltmeter.types` consist of; a corrected model has what the other has.
OFFERED = (
    "match", "mask_logprobs", "mask_token", "pieces", "parameters", "losses", "encode_texts",
    "encode_images",
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class RerankedOrder:
    """How a re-ranker puts some faces in order."""

    reranker: Reranker
    groups: Groups | None
    by: str

    @property
    def from_best(self) -> bool:
        return self.reranker.from_best

    def __call__(self, scores: Array, k: int, rows: Ints | None, vectors: Array | None) -> Ints:
        """The k of `rows` (None: all) to show for each query, best first: queries x k."""
        groups = self.groups if self.groups is None or rows is None else self.groups[rows]
        return self.reranker.order(scores, groups, k, vectors=vectors)


class Debiased:
    """`model` as `debiaser` corrects it, with the same protocols.

    A vector map changes what encode_images and encode_texts give, and nothing else: matching and
    hidden words are those of the model under it. An edit changes all. A re-ranker changes no score:
    `reordering` says what it shows, and of the probes only `ranking` asks for that. `spec` is the
    name of the model given; `edited` says that it has been edited already.
    """

    def __init__(
        self,
        model: Any,
        debiaser: Debiaser,
        *,
        record: Mapping[str, Any] | None = None,
        spec: str | None = None,
        edited: bool = False,
    ) -> None:
        to_edit = isinstance(debiaser, ModelEdit) and not edited
        self.model: Any = debiaser.edited(model) if to_edit else model  # type: ignore[attr-defined]
        self.debiaser = debiaser
        self.record = dict(record or {})
        self.spec = spec
        self.name = f"{getattr(model, 'name', type(model).__name__)}+{method_name(debiaser)}"
        mapped = {"encode_images": self._encode_images, "encode_texts": self._encode_texts}
        for name in OFFERED:  # set on the object: protocols are asked for by looking there
            if hasattr(self.model, name):
                own = isinstance(debiaser, VectorMap) and name in mapped
                setattr(self, name, mapped[name] if own else getattr(self.model, name))

    def _encode_images(self, images: Any) -> Array:
        return self.debiaser.map_images(self.model.encode_images(images))  # type: ignore[attr-defined]

    def _encode_texts(self, texts: Sequence[str]) -> Array:
        found = self.model.encode_texts(texts)
        return self.debiaser.map_texts(  # type: ignore[attr-defined]
            found, texts, self.model.encode_texts
        )

    def __getattr__(self, name: str) -> Any:
        if name in (
            "model",
            "debiaser",
            *OFFERED,
        ):  # not there yet, or the other model has it not either
            raise AttributeError(name)
        return getattr(self.model, name)

    @property
    def identity(self) -> dict[str, Any]:
        """That of the model under it, and what was done to it."""
        known = getattr(self.model, "identity", None) or {"weights": learned(self.model)}
        changed = {
            name: content_hash(value)
            for name, value in self.debiaser.learned.items()
            if not isinstance(self.debiaser, ModelEdit)  # whose weights are in `known`
        }
        told = {"method": method_name(self.debiaser), "settings": self.debiaser.settings}
        return {**known, "debiaser": content_hash({**told, **changed})}

    @property
    def provenance(self) -> dict[str, Any]:
        rows = self.debiaser.rows_
        return {
            **getattr(self.model, "provenance", {}),
            "debiaser": {
                "method": method_name(self.debiaser),
                "kind": self.debiaser.kind,
                "settings": self.debiaser.settings,
                "fitted": None if rows is None else {"data": rows.name, "count": len(rows),
                                                     "ids": rows.hash},
                **self.record,
            },
        }  # fmt: skip

    def fitted_on(self, data: Any) -> list[int]:
        """The rows of `data` that the debiaser was fitted on: no judge of it."""
        return [] if self.debiaser.rows_ is None else self.debiaser.rows_.among(data)

    @property
    def reranks(self) -> bool:
        """Whether what it shows is in another order than that of its scores."""
        return isinstance(self.debiaser, Reranker) or getattr(self.model, "reranks", False)

    def reordering(self, faces: Faces) -> RerankedOrder | None:
        """How `faces` are put in order, where that is not by score alone."""
        if not isinstance(self.debiaser, Reranker):
            under = getattr(self.model, "reordering", None)
            return None if under is None else under(faces)
        self.debiaser.check_fitted()
        method = method_name(self.debiaser)
        attribute = getattr(self.debiaser, "attribute_", None)
        if attribute is None:
            return RerankedOrder(self.debiaser, None, method)
        missing = [one for one in attribute.split("*") if one not in faces.groups]
        if missing:
            raise CannotRunError(
                f"{method} re-ranks by {attribute}, and {faces.name} has no labels of {missing[0]} "
                f"(it has {', '.join(faces.groups) or 'none'})"
            )
        return RerankedOrder(self.debiaser, faces.attribute(attribute), f"{method} by {attribute}")

    def corrected(self, faces: Faces) -> Faces:
        """Faces that bring vectors of the model under this one, with the corrected ones instead."""
        if faces.vectors is None or not isinstance(self.debiaser, VectorMap):
            return faces
        return replace(faces, vectors=self.debiaser.map_images(faces.vectors))

    @property
    def map_images(self) -> Callable[[Array], Array] | None:
        """What is done to image embeddings of the model under this one; None: nothing."""
        return self.debiaser.map_images if isinstance(self.debiaser, VectorMap) else None

    def save(self, place: str | Path, *, replace: bool = False) -> Path:
        """Writes model and debiaser as one directory."""
        place = Path(place)
        if self.spec is None:
            raise InputError(
                f"{self.name} does not know the spec of the model under it, so nothing could load "
                "it again: Debiased(model, debiaser, spec='hf:...')"
            )
        if place.exists() and not replace:
            raise InputError(f"{place} exists already: name another --out, or pass --force")
        if place.exists() and any(place.iterdir()) and not (place / FILE).is_file():
            raise InputError(f"{place} was not made by debias and will not be replaced")
        method = method_name(self.debiaser)
        if method not in DEBIASERS:
            raise InputError(
                f"{method} is not among the debiasers (tiltmeter list debiasers): without a line "
                "in DEBIASERS nothing could load it again"
            )
        with written_beside(place) as made:
            plain = self.debiaser.write(made, self.model)
            rows = self.debiaser.rows_
            told = {
                "format": FORMAT,
                "method": method,
                "kind": self.debiaser.kind,
                "settings": self.debiaser.settings,
                "learned": plain,
                "fitted": None if rows is None else rows.write(made),
                "model": {"spec": lasting(self.spec), "weights": fingerprint(self.model)},
                "record": self.record,
                "files": {
                    str(file.relative_to(made)): file_hash(file)
                    for file in sorted(made.rglob("*"))
                    if file.is_file()
                },
                "versions": versions(),
                "environment": machine(),
            }
            (made / FILE).write_text(json.dumps(told, indent=2, sort_keys=True) + "\n")
        return place


def load(spec: Spec) -> Debiased:
    """A directory made by `tiltmeter debias`: debias:DIR, or the directory alone."""
    spec.only()
    place = spec.directory()
    told = read_record(place)
    debiaser: Debiaser = DEBIASERS[told["method"]](**told["settings"])
    debiaser.read(place, told["learned"])
    if told["fitted"] is not None:
        debiaser.rows_ = FittedRows.read(place, told["fitted"])
    if isinstance(debiaser, ModelEdit) and (place / "config.json").is_file():
        whole = load_model(f"hf:{place}")
        return Debiased(whole, debiaser, record=told["record"], spec=f"hf:{place}", edited=True)
    under = told["model"]["spec"]
    made = Debiased(load_model(under), debiaser, record=told["record"], spec=under)
    if fingerprint(made.model) != told["model"]["weights"]:
        raise InputError(
            f"{place} was made for {under} with other weights than are there now: "
            "bring those back, or debias again"
        )
    return made


def read_record(place: Path) -> dict[str, Any]:
    """What `debiased.json` tells, if the files beside it are those that were written."""
    if not (place / FILE).is_file():
        raise InputError(f"{place} has no {FILE}: tiltmeter debias METHOD MODEL --out {place}")
    try:
        told: dict[str, Any] = json.loads((place / FILE).read_text(encoding="utf-8"))
        files = told["files"]
    except (ValueError, KeyError) as error:
        raise InputError(f"{place / FILE} is damaged: {error}") from None
    if told.get("format") != FORMAT:
        raise InputError(
            f"{place} has format {told.get('format')}; this version reads {FORMAT}: debias again"
        )
    for name, digest in files.items():
        if not (place / name).is_file() or file_hash(place / name) != digest:
            raise InputError(f"{place / name} is missing or was changed since it was saved")
    return told


def method_name(debiaser: Debiaser) -> str:
    """The name that the registry has for a debiaser, or that of its class."""
    kind = type(debiaser)
    path = f"{kind.__module__}:{kind.__name__}"
    return next((name for name, one in DEBIASERS.paths.items() if one == path), kind.__name__)


def fingerprint(model: Any) -> str | None:
    """A hash of a model's weights."""
    known = getattr(model, "identity", None)
    return known["weights"] if known else learned(model)


def lasting(spec: str) -> str:
    """A spec that means the same from every folder: its path made absolute."""
    scheme, _, rest = spec.partition(":")
    rest, mark, query = rest.partition("?")
    path, colon, factory = rest.rpartition(":") if scheme == "python" else (rest, "", "")
    if path and Path(path).exists():
        rest = f"{Path(path).resolve()}{colon}{factory}"
    return f"{scheme}:{rest}{mark}{query}"
