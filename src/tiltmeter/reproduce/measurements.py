"""Kinds of measurements: each makes runs of one model. Recipes have them as data."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np

from tiltmeter.auditing.audit import audit
from tiltmeter.corpus import audit_captions
from tiltmeter.debiasers.fitting import debias
from tiltmeter.errors import InputError
from tiltmeter.probes import PROBES
from tiltmeter.results import Run, content_hash
from tiltmeter.testbed.captioned import (
    GROUP_WORDS,
    draw_captioned_scenes,
    draw_images,
    write_corpus,
)
from tiltmeter.testbed.world import World
from tiltmeter.types import Progress

Keywords = Mapping[str, Any]
WORLD_CAPTIONS = 40_000  # of the built-in world
#: Data that the built-in world has by itself.
OF_WORLD = ("faces", "captions", "corpus")


@dataclass(frozen=True)
class Context:
    """What a measurement gets apart from its own options.

    Attributes
    ----------
    data
        Specs by role.
    attributes
        Names in the data of the paper's attributes, where they differ.
    keywords
        Options of every audit: seed, permutations, store, device.
    folder
        A directory for the runs of this measurement.
    models
        A directory for debiased models, which all measurements share.
    world
        Whether this is the built-in world.
    audits
        Audits that were made, by their options and model: none is made twice.
    """

    data: Mapping[str, str]
    attributes: Mapping[str, str]
    keywords: Keywords
    folder: Path
    models: Path
    world: bool
    progress: Progress | None = None
    audits: dict[tuple[str, str], Run] = field(default_factory=dict)

    def name(self, attribute: str) -> str:
        """An attribute or intersection as the data name it."""
        return "*".join(self.attributes.get(part, part) for part in attribute.split("*"))

    def keep(self, part: str, make: Callable[[], Run]) -> Run:
        """The run of a part: what an interrupted call has left, or a new one, which is saved."""
        place = self.folder / part
        if place.is_dir():
            return Run.load(place)
        run = make()
        run.save(place)
        return run


class Measurement(Protocol):
    """Something that is measured once per model, or once if it is not about a model.

    Attributes
    ----------
    roles
        Data that it cannot do without, `a|b` for either; the built-in world has its own faces.
    trains
        Whether it trains a network: only with --train.
    of_models
        Whether it is about a model.
    """

    @property
    def roles(self) -> tuple[str, ...]: ...
    @property
    def trains(self) -> bool: ...
    @property
    def of_models(self) -> bool: ...

    def measure(self, model: str, context: Context) -> dict[str, Run]:
        """Runs by part; a measurement of one run calls it ''."""
        ...


@dataclass(frozen=True)
class Audit:
    """An audit of each model: `probes` on data of `roles`, with keywords of `tiltmeter.audit`.

    `keywords` names the paper's attributes; `world` has keywords in place of these in the built-in
    world.
    """

    probes: tuple[str, ...]
    keywords: Keywords = field(default_factory=dict)
    roles: tuple[str, ...] = ("faces",)
    takes: tuple[str, ...] = ()  # roles that it uses if they are given
    world: Keywords = field(default_factory=dict)
    faces: str = "faces"  # which role of the recipe its faces have

    trains: ClassVar[bool] = False
    of_models: ClassVar[bool] = True

    def measure(self, model: str, context: Context) -> dict[str, Run]:
        return {"": self.of_all_rows(model, context)}

    def of_all_rows(self, model: str, context: Context) -> Run:
        """The audit of a model on all rows: the one that was made already, if there is one."""
        key = (repr(self), model)
        if key not in context.audits:
            context.audits[key] = self.audit(model, context)
        return context.audits[key]

    def audit(self, model: str, context: Context, *, unseen: Sequence[str] = ()) -> Run:
        """One audit; `unseen` are debiased models, whose rows are left out."""
        keywords = {**self.keywords, **(self.world if context.world else {}), **context.keywords}
        for name in ("attributes", "cross"):
            if name in keywords:
                keywords[name] = [context.name(one) for one in keywords[name]]
        roles = [name for role in (*self.roles, *self.takes) for name in role.split("|")]
        data = {
            role: context.data[role]
            for role in roles
            if role in context.data and role != self.faces
        }
        faces = context.data.get(self.faces) if self.faces in roles else None
        lacking = {role for role in self.takes if role not in context.data}
        probes = [name for name in self.probes if not lacking & set(PROBES[name].needs)]
        return audit(model, faces, data=data, probes=probes, unseen=unseen,
                     progress=context.progress, **keywords)  # fmt: skip


@dataclass(frozen=True)
class CaptionAudit:
    """An audit of training captions (role `corpus`), with keywords of `tiltmeter.audit_captions`.

    In the built-in world these are captions with the planted bias, and as part `fair` captions
    without.
    """

    keywords: Keywords = field(default_factory=dict)

    roles: ClassVar[tuple[str, ...]] = ("corpus",)
    trains: ClassVar[bool] = False
    of_models: ClassVar[bool] = False

    def measure(self, model: str, context: Context) -> dict[str, Run]:
        options = {"seed": context.keywords["seed"], "progress": context.progress}
        if "corpus" in context.data:
            return {"": audit_captions(context.data["corpus"], **options, **self.keywords)}
        runs = {}
        for part, name, strength in (("", "biased", 1.0), ("fair", "fair", 0.0)):
            world = World.plant(strength)
            rng = np.random.default_rng(context.keywords["seed"])
            captions = draw_captioned_scenes(world, WORLD_CAPTIONS, rng, targets=1.0)
            file = context.folder / "corpus" / f"{name}.parquet"
            write_corpus(captions, file)
            words = [world.concepts[at].name for at in world.planted_targets]
            runs[part] = audit_captions(file, words=words, groups=GROUP_WORDS, **options)
            sampled = runs[part].instances["captions"]["image"].to_pylist()
            draw_images(captions, sampled, file.parent)
        return runs


@dataclass(frozen=True)
class Debiasing:
    """Each model debiased on half of the faces: `before` and `after` on the other half."""

    method: str
    attribute: str
    audited: Audit
    settings: Keywords = field(default_factory=dict)
    share: float = 0.5
    trains: bool = False
    captions: str | None = None  # role of the captions that it is trained with

    of_models: ClassVar[bool] = True

    @property
    def roles(self) -> tuple[str, ...]:
        return self.audited.roles + ((self.captions,) if self.captions else ())

    def measure(self, model: str, context: Context) -> dict[str, Run]:
        place = self.fit(model, context)
        if context.world and "faces" not in context.data:  # fitted on other images
            before = self.audited.of_all_rows(model, context)
        else:
            before = context.keep("before", partial(self.audited.audit, model, context,
                                                    unseen=[place]))  # fmt: skip
        after = context.keep("after", partial(self.audited.audit, place, context, unseen=[place]))
        return {"before": before, "after": after}

    def fit(self, model: str, context: Context) -> str:
        """Debias a model and return the directory of the result; none is trained twice."""
        what = (model, self.method, self.attribute, self.settings, self.share, self.captions)
        place = context.models / f"{self.method}-{content_hash(repr(what))[:12]}"
        if place.is_dir():
            return str(place)
        keywords = {
            option: context.keywords[option]
            for option in ("seed", "store", "device")
            if option in context.keywords
        }
        debias(
            self.method,
            model,
            context.data.get("faces"),  # without: other images of the model's own world
            attribute=context.name(self.attribute),
            captions=context.data.get(self.captions) if self.captions else None,
            settings=self.settings,
            share=self.share,
            out=place,
            progress=context.progress,
            **keywords,
        )
        return str(place)


@dataclass(frozen=True)
class Variants:
    """Several ways to debias each model, all fitted on the same part of the faces.

    `variants` are a method and its settings by name: `before` and every variant are measured on the
    images that none was fitted on. A variant that the model does not allow is left out, and the
    record of `before` says why (`left_out`).
    """

    attribute: str
    audited: Audit
    variants: Mapping[str, tuple[str, Keywords]]
    share: float = 0.5
    trains: bool = False
    captions: str | None = None  # role of the captions that they are trained with

    of_models: ClassVar[bool] = True

    @property
    def roles(self) -> tuple[str, ...]:
        faces = ("faces", *self.audited.roles, *((self.captions,) if self.captions else ()))
        return tuple(dict.fromkeys(faces))

    def measure(self, model: str, context: Context) -> dict[str, Run]:
        runs: dict[str, Run] = {}
        left_out: dict[str, str] = {}
        for name, (method, settings) in self.variants.items():
            one = Debiasing(method, self.attribute, self.audited, settings, self.share,
                            captions=self.captions)  # fmt: skip
            try:
                place = one.fit(model, context)
            except InputError as error:
                left_out[name] = str(error)
                continue
            for part, audited in (("before", model), (name, place)):
                if part not in runs:
                    make = partial(self.audited.audit, audited, context, unseen=[place])
                    runs[part] = context.keep(part, make)
        if not runs:
            raise InputError("; ".join(dict.fromkeys(left_out.values())))
        runs["before"].meta["left_out"] = left_out
        return runs
