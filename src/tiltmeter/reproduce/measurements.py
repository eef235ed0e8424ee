"""Kinds of measurements: each makes runs of one model. Recipes have them as data."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Protocol

from tiltmeter.auditing.audit import audit
from tiltmeter.corpus import audit_captions
from tiltmeter.debiasers.fitting import debias
from tiltmeter.results import Run
from tiltmeter.types import Progress

Keywords = Mapping[str, Any]


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
        A directory for what is fitted.
    world
        Whether this is the built-in world.
    """

    data: Mapping[str, str]
    attributes: Mapping[str, str]
    keywords: Keywords
    folder: Path
    world: bool
    progress: Progress | None = None

    def name(self, attribute: str) -> str:
        """An attribute or intersection as the data name it."""
        return "*".join(self.attributes.get(part, part) for part in attribute.split("*"))


class Measurement(Protocol):
    """Something that is measured once per model, or once if it is not about a model.

    Attributes
    ----------
    roles
        Data that it cannot do without; the built-in world has its own faces.
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

    trains: ClassVar[bool] = False
    of_models: ClassVar[bool] = True

    def measure(self, model: str, context: Context) -> dict[str, Run]:
        return {"": self.audit(model, context)}

    def audit(self, model: str, context: Context, *, unseen: Sequence[str] = ()) -> Run:
        """One audit; `unseen` are debiased models, whose rows are left out."""
        keywords = {**self.keywords, **(self.world if context.world else {}), **context.keywords}
        for name in ("attributes", "cross"):
            if name in keywords:
                keywords[name] = [context.name(one) for one in keywords[name]]
        data = {
            role: context.data[role]
            for role in (*self.roles, *self.takes)
            if role in context.data and role != "faces"
        }
        faces = context.data.get("faces") if "faces" in (*self.roles, *self.takes) else None
        return audit(model, faces, data=data, probes=self.probes, unseen=unseen,
                     progress=context.progress, **keywords)  # fmt: skip


@dataclass(frozen=True)
class CaptionAudit:
    """An audit of training captions: role `corpus`, with keywords of `tiltmeter.audit_captions`."""

    keywords: Keywords = field(default_factory=dict)
    world: Keywords = field(default_factory=dict)

    roles: ClassVar[tuple[str, ...]] = ("corpus",)
    trains: ClassVar[bool] = False
    of_models: ClassVar[bool] = False

    def measure(self, model: str, context: Context) -> dict[str, Run]:
        keywords = {**self.keywords, **(self.world if context.world else {})}
        run = audit_captions(context.data["corpus"], seed=context.keywords["seed"],
                             progress=context.progress, **keywords)  # fmt: skip
        return {"": run}


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
        place = str(context.folder / "debiased")
        keywords = {
            name: context.keywords[name]
            for name in ("seed", "store", "device")
            if name in context.keywords
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
            replace=True,
            progress=context.progress,
            **keywords,
        )
        return {
            "before": self.audited.audit(model, context, unseen=[place]),
            "after": self.audited.audit(place, context, unseen=[place]),
        }
