"""A corrected model: a model like any other, saved in a directory of its own.

The directory contains `debiased.json` (method, settings, model, fitted rows, utility cost), what
was learned, and the rows it was learned from. An edited model of transformers is written by
`save_pretrained`, so that `from_pretrained` reads the same directory.
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
from tiltmeter.models.python import weights_fingerprint
from tiltmeter.probes.probe import CannotRunError
from tiltmeter.results import atomic_directory, content_hash, file_hash, machine, versions
from tiltmeter.types import Array, Faces, Groups, Ints

FORMAT = 3
FILE = "debiased.json"
#: The members of the protocols in `tiltmeter.types`; a corrected model has those of the model.
PROTOCOL_MEMBERS = (
    "match", "mask_logprobs", "mask_token", "pieces", "parameters", "losses", "encode_texts",
    "encode_images",
)  # fmt: skip


@dataclass(frozen=True, eq=False)
class RerankedOrder:
    """A re-ranker with the groups of the faces that it orders.

    Parameters
    ----------
    reranker
        The fitted re-ranker.
    groups
        The groups of all faces, where it needs them.
    by
        Name of the method and its attribute.
    """

    reranker: Reranker
    groups: Groups | None
    by: str

    @property
    def from_best(self) -> bool:
        return self.reranker.from_best

    def __call__(self, scores: Array, k: int, rows: Ints | None, vectors: Array | None) -> Ints:
        """Return the k of `rows` (None: all) to show for each query, best first: queries x k."""
        groups = self.groups if self.groups is None or rows is None else self.groups[rows]
        return self.reranker.order(scores, groups, k, vectors=vectors)

    def of_items(self, scores: Array, k: int, codes: Ints | None) -> Ints:
        """Return the k of some items to show, whose groups are given by code."""
        groups = None
        if self.groups is not None and codes is not None:
            groups = Groups(codes, self.groups.names, self.groups.attribute)
        return self.reranker.order(scores, groups, k)


class Debiased:
    """A model with a debiaser applied, with the same protocols.

    A vector map changes the output of encode_images and encode_texts and nothing else: matching and
    masked words are those of the model. A model edit changes all. A re-ranker changes no score:
    `reordering` gives its order, which of the probes only `ranking` uses.

    Parameters
    ----------
    model
        The model to correct.
    debiaser
        A fitted debiaser.
    record
        How it was made, for the provenance.
    spec
        The spec of the model, needed to save it.
    edited
        Whether the model edit has been applied already.
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
        apply = isinstance(debiaser, ModelEdit) and not edited
        self.model: Any = debiaser.apply(model) if apply else model  # type: ignore[attr-defined]
        self.debiaser = debiaser
        self.record = dict(record or {})
        self.spec = spec
        base = str(getattr(model, "name", type(model).__name__))
        if Path(base).is_absolute():  # of a checkpoint: results show no path of somebody's disk
            base = Path(base).name
        self.name = f"{base}+{method_name(debiaser)}"
        mapped = {"encode_images": self._encode_images, "encode_texts": self._encode_texts}
        for name in PROTOCOL_MEMBERS:  # set on the object: protocols are checked by attribute
            if hasattr(self.model, name):
                replaced = isinstance(debiaser, VectorMap) and name in mapped
                setattr(self, name, mapped[name] if replaced else getattr(self.model, name))

    def _encode_images(self, images: Any) -> Array:
        return self.debiaser.map_images(self.model.encode_images(images))  # type: ignore[attr-defined]

    def _encode_texts(self, texts: Sequence[str]) -> Array:
        encode = self.model.encode_texts
        return self.debiaser.map_texts(encode(texts), texts, encode)  # type: ignore[attr-defined]

    def __getattr__(self, name: str) -> Any:
        if name in ("model", "debiaser", *PROTOCOL_MEMBERS):  # not set yet, or the model has none
            raise AttributeError(name)
        return getattr(self.model, name)

    @property
    def identity(self) -> dict[str, Any]:
        """The identity of the model, and a hash of the debiaser."""
        identity = getattr(self.model, "identity", None) or {
            "weights": weights_fingerprint(self.model)
        }
        hashes = {
            name: content_hash(value)
            for name, value in self.debiaser.learned.items()
            if not isinstance(self.debiaser, ModelEdit)  # whose weights are in `identity`
        }
        method = {"method": method_name(self.debiaser), "settings": self.debiaser.get_params()}
        return {**identity, "debiaser": content_hash({**method, **hashes})}

    @property
    def image_identity(self) -> dict[str, Any] | None:
        """What determines its embeddings of images, where that is less than its identity."""
        if isinstance(self.debiaser, VectorMap):
            return None
        return getattr(self.model, "image_identity", None)

    @property
    def provenance(self) -> dict[str, Any]:
        rows = self.debiaser.rows_
        return {
            **getattr(self.model, "provenance", {}),
            "debiaser": {
                "method": method_name(self.debiaser),
                "kind": self.debiaser.kind,
                "settings": self.debiaser.get_params(),
                "fitted": None if rows is None else {"data": rows.name, "count": len(rows),
                                                     "ids": rows.hash},
                **self.record,
            },
        }  # fmt: skip

    def fitted_on(self, data: Any) -> list[int]:
        """Return the rows of `data` that the debiaser was fitted on."""
        return [] if self.debiaser.rows_ is None else self.debiaser.rows_.among(data)

    @property
    def reranks(self) -> bool:
        """Whether items are shown in another order than that of their scores."""
        return isinstance(self.debiaser, Reranker) or getattr(self.model, "reranks", False)

    @property
    def from_best(self) -> bool:
        """Whether its order, if it has its own, needs only the best items of each group."""
        if isinstance(self.debiaser, Reranker):
            return self.debiaser.from_best
        return bool(getattr(self.model, "from_best", True))

    def reordering(self, faces: Faces) -> RerankedOrder | None:
        """Return how `faces` are ordered, where that is not by score alone.

        Raises
        ------
        CannotRunError
            If the faces have no labels of the attribute that the re-ranker needs.
        """
        if not isinstance(self.debiaser, Reranker):
            under = getattr(self.model, "reordering", None)
            return None if under is None else under(faces)
        self.debiaser.check_fitted()
        method = method_name(self.debiaser)
        attribute = getattr(self.debiaser, "attribute_", None)
        if attribute is None:
            return RerankedOrder(self.debiaser, None, method)
        missing = [part for part in attribute.split("*") if part not in faces.groups]
        if missing:
            raise CannotRunError(
                f"{method} re-ranks by {attribute}, and {faces.name} has no labels of {missing[0]} "
                f"(it has {', '.join(faces.groups) or 'none'})"
            )
        return RerankedOrder(self.debiaser, faces.attribute(attribute), f"{method} by {attribute}")

    def corrected(self, faces: Faces) -> Faces:
        """Return faces whose supplied embeddings of the uncorrected model are corrected."""
        if faces.vectors is None or not isinstance(self.debiaser, VectorMap):
            return faces
        return replace(faces, vectors=self.debiaser.map_images(faces.vectors))

    @property
    def map_images(self) -> Callable[[Array], Array] | None:
        """The map of image embeddings of the uncorrected model; None: they are unchanged."""
        return self.debiaser.map_images if isinstance(self.debiaser, VectorMap) else None

    def save(self, place: str | Path, *, replace: bool = False) -> Path:
        """Save model and debiaser in a directory, which is a model spec from then on.

        Parameters
        ----------
        place
            The directory.
        replace
            Whether to replace a model that was saved there before.

        Raises
        ------
        InputError
            If the directory exists, or the model or the debiaser could not be loaded again.
        """
        place = Path(place)
        if self.spec is None:
            raise InputError(
                f"the spec of the model under {self.name} is unknown, so it could not be loaded "
                "again: Debiased(model, debiaser, spec='hf:...')"
            )
        if place.exists() and not replace:
            raise InputError(f"{place} exists already: use another --out, or --force")
        if place.exists() and any(place.iterdir()) and not (place / FILE).is_file():
            raise InputError(f"{place} was not made by debias and will not be replaced")
        method = method_name(self.debiaser)
        if method not in DEBIASERS:
            raise InputError(
                f"{method} is not registered in DEBIASERS (tiltmeter list debiasers), so it could "
                "not be loaded again"
            )
        with atomic_directory(place) as directory:
            plain = self.debiaser.write(directory, self.model)
            rows = self.debiaser.rows_
            meta = {
                "format": FORMAT,
                "method": method,
                "kind": self.debiaser.kind,
                "settings": self.debiaser.get_params(),
                "learned": plain,
                "fitted": None if rows is None else rows.write(directory),
                "model": {"spec": absolute_spec(self.spec), "weights": fingerprint(self.model)},
                "record": self.record,
                "files": {
                    str(file.relative_to(directory)): file_hash(file)
                    for file in sorted(directory.rglob("*"))
                    if file.is_file()
                },
                "versions": versions(),
                "environment": machine(),
            }
            meta["hash"] = content_hash(json.loads(json.dumps(meta)))
            (directory / FILE).write_text(json.dumps(meta, indent=2, sort_keys=True) + "\n")
        return place


def load(spec: Spec) -> Debiased:
    """Load a directory made by `tiltmeter debias`: debias:DIR, or the directory alone.

    Parameters
    ----------
    spec
        The model spec.

    Raises
    ------
    InputError
        If the directory is damaged, or the weights of the model have changed since.
    """
    spec.check_options()
    place = spec.directory()
    meta = read_record(place)
    debiaser: Debiaser = DEBIASERS[meta["method"]](**meta["settings"])
    debiaser.read(place, meta["learned"])
    if meta["fitted"] is not None:
        debiaser.rows_ = FittedRows.read(place, meta["fitted"])
    if isinstance(debiaser, ModelEdit) and (place / "config.json").is_file():
        whole = load_model(f"hf:{place}")
        return Debiased(whole, debiaser, record=meta["record"], spec=f"hf:{place}", edited=True)
    base = meta["model"]["spec"]
    debiased = Debiased(load_model(base), debiaser, record=meta["record"], spec=base)
    if fingerprint(debiased.model) != meta["model"]["weights"]:
        raise InputError(
            f"{place} was made for {base} with other weights than it has now: restore those, or "
            "debias again"
        )
    return debiased


def read_record(place: Path) -> dict[str, Any]:
    """Return the contents of `debiased.json`, if the files next to it are unchanged.

    Raises
    ------
    InputError
        If a file is missing, damaged or changed, or of another format.
    """
    if not (place / FILE).is_file():
        raise InputError(f"{place} has no {FILE}: tiltmeter debias METHOD MODEL --out {place}")
    try:
        meta: dict[str, Any] = json.loads((place / FILE).read_text(encoding="utf-8"))
        found, own = meta.get("format"), meta.pop("hash", None)
        files = meta["files"]
    except (ValueError, KeyError, AttributeError, TypeError, RecursionError) as error:
        raise InputError(f"{place / FILE} is damaged: {error}") from None
    if found != FORMAT:
        raise InputError(f"{place} has format {found}; this version reads {FORMAT}: debias again")
    if own != content_hash(meta):
        raise InputError(f"{place / FILE} was changed since it was saved: debias again")
    for name, digest in files.items():
        if not (place / name).is_file() or file_hash(place / name) != digest:
            raise InputError(f"{place / name} is missing or was changed since it was saved")
    return meta


def method_name(debiaser: Debiaser) -> str:
    """Return the registered name of a debiaser, or that of its class."""
    kind = type(debiaser)
    path = f"{kind.__module__}:{kind.__name__}"
    return next((n for n, known in DEBIASERS.paths.items() if known == path), kind.__name__)


def fingerprint(model: Any) -> str | None:
    """Return a hash of a model's weights."""
    identity = getattr(model, "identity", None)
    return identity["weights"] if identity else weights_fingerprint(model)


def absolute_spec(spec: str) -> str:
    """Return a spec that means the same from every folder: its path made absolute."""
    scheme, _, rest = spec.partition(":")
    rest, mark, query = rest.partition("?")
    path, colon, factory = rest.rpartition(":") if scheme == "python" else (rest, "", "")
    if path and Path(path).exists():
        rest = f"{Path(path).resolve()}{colon}{factory}"
    return f"{scheme}:{rest}{mark}{query}"
