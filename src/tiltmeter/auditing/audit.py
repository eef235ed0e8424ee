"""One audit: load, check, embed, run probes, record. The same way on every engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Unpack

from tiltmeter.auditing.options import AuditKeywords, AuditOptions
from tiltmeter.datasets import load_data
from tiltmeter.datasets.roles import ROLES
from tiltmeter.debiasers.debiased import Debiased
from tiltmeter.engine.embedding.embed import (
    SHOWN,
    EmbeddedFaces,
    EmbeddingResult,
    Workers,
    embed,
    load_for,
)
from tiltmeter.engine.embedding.loader import LoaderConfig
from tiltmeter.engine.engines import Engine
from tiltmeter.engine.named import engine_of
from tiltmeter.engine.vectors import (
    InMemoryVectors,
    StoreVectors,
    TransformedVectors,
    Vectors,
    vectors_of,
)
from tiltmeter.errors import EXPECTED, InputError, UnknownNameError, reason
from tiltmeter.io.image_files import GeneratedImages, ImageFiles
from tiltmeter.probes import PROBES
from tiltmeter.probes.embeddings import image_embeddings
from tiltmeter.probes.probe import AuditContext, CannotRunError, Probe, ProbeResult
from tiltmeter.probes.texts import audit_prompts
from tiltmeter.results import ProbeFailedError, Run, combined, prompt_record, run_record
from tiltmeter.store import EmbeddingSpace, Store
from tiltmeter.types import Faces, Progress, Prompt, TextEncoder, planted_world


def audit(
    model: str | TextEncoder = "testbed:fusion",
    faces: str | Faces | None = None,
    *,
    progress: Progress | None = None,
    **options: Unpack[AuditKeywords],
) -> Run:
    """Measures a model on images with groups, and returns the run.

    Parameters
    ----------
    model : str or TextEncoder
        A model, or its spec. `embeddings:DIR` comes with its own images, and a model of the testbed
        is shown images of the world that it was trained in.
    faces : str or Faces, optional
        Images with groups, or their spec.
    progress : callable, optional
        Called with what is being done and the share that is done, from 0 to 1.
    **options
        As keywords, by topic: `data`, `attributes`, `cross`, `strict` (`DataOptions`); `words`,
        `placebo`, `templates`, `classes` (`WordOptions`); `probes`, `options`, `convention`, `k`
        (`ProbeOptions`); `permutations`, `bootstraps`, `seed` (`Resampling`); `engine`, `store`,
        `device`, `precision`, `trust_remote_code` (`ComputeOptions`); `keep_vectors`
        (`OutputOptions`). See `tiltmeter.auditing.options`.

    Returns
    -------
    Run
        Rows of results, with all that is needed to make them again. Probes that could not run are
        named in `run.meta["not_run"]`.

    Raises
    ------
    InputError
        If data, model and options do not go together, or if the first probe fails.
    ProbeFailedError
        If a probe fails after others have finished: `.run` has their results.
    """
    return _Audit(model, faces, AuditOptions.of(**options), progress).run()


@dataclass(eq=False)
class _Audit:
    """One audit under way."""

    given_model: str | TextEncoder
    given_faces: str | Faces | None
    options: AuditOptions
    progress: Progress | None
    embedded: dict[int, EmbeddingResult] = field(default_factory=dict)  # two probes' images: once

    @cached_property
    def engine(self) -> Engine:
        return engine_of(self.options.compute.engine)

    @cached_property
    def store(self) -> Store | None:
        place = self.options.compute.store
        return None if place is None else Store(Path(place))

    @cached_property
    def _loaded(self) -> tuple[Any, Callable[[], Any]]:
        """The model, and how a worker elsewhere gets it."""
        compute = self.options.compute
        if isinstance(self.given_model, str):
            return load_for(
                self.engine, self.given_model, device=compute.device,
                trust_remote_code=compute.trust_remote_code,
            )  # fmt: skip
        return self.given_model, partial(_itself, self.given_model)

    @property
    def model(self) -> Any:
        return self._loaded[0]

    @property
    def spec(self) -> str | None:
        return self.given_model if isinstance(self.given_model, str) else None

    @cached_property
    def prompts(self) -> list[Prompt]:
        words = self.options.words
        return audit_prompts(self.model, words.words, words.placebo, words.templates)

    def run(self) -> Run:
        self._check()
        given = self.given_faces
        given = own_images(self.spec, self.model) if given is None else given
        given_data = {"faces": given, **self.options.data.data}
        probes, not_run = choose_probes(
            self.options.probes.probes, self.model, given_data, self.engine
        )
        configured = {  # a mistyped option is found before any probe runs
            name: probe.options_with(name, self.options.probes.options.get(name, {}))
            for name, probe in probes.items()
        }
        shown = self._load_data(given_data, probes)
        setting = self._setting(shown)
        results: dict[str, ProbeResult] = {}
        failures: dict[str, Exception] = {}
        for name, probe in probes.items():
            own = replace(setting, options=configured[name])
            try:
                results[name] = ProbeResult(*probe.run(self.model, shown, own))
            except Exception as error:  # not even a bug may cost what the others measured
                if self.options.probes.probes is None and isinstance(error, CannotRunError):
                    not_run[name] = str(error)
                    continue
                if not results:  # nothing to keep: a mistake that all probes share is told at once
                    raise
                failures[name] = error
        run = self._recorded(results, shown, setting, not_run)
        if not failures:
            return run
        run.meta["failed"] = {name: reason(error) for name, error in failures.items()}
        bugs = [error for error in failures.values() if not isinstance(error, EXPECTED)]
        raise ProbeFailedError(run) from [*bugs, *failures.values()][0]

    def _check(self) -> None:
        """What can be told before a model is loaded."""
        if self.given_faces is not None and "faces" in self.options.data.data:
            raise InputError("faces are given twice: by --images, and by --data faces=")
        self.options.probes.chosen  # noqa: B018  an unknown convention is named
        for name in self.options.probes.probes or ():
            if why := PROBES[name].refuses(self.engine):
                raise InputError(f"{name} {why}")

    def _load_data(self, given: Mapping[str, Any], probes: Mapping[str, Probe]) -> dict[str, Any]:
        """The data that the probes use; not the rows that a debiaser was fitted on."""
        used = {role for one in probes.values() for role in (*one.needs, *one.takes)}
        wanted, labels = self.options.data, self.options.probes.chosen.labels
        load = partial(load_data, attributes=wanted.attributes, cross=wanted.cross, optional=labels)
        shown: dict[str, Any] = {
            role: load(one, role=role) if isinstance(one, str) else one
            for role, one in given.items()
            if one is not None and role in used
        }
        if isinstance(self.model, Debiased):
            refuse_fitted_rows(self.model, shown)
            if "faces" in shown and self.engine.name == "local":
                shown["faces"] = self.model.corrected(shown["faces"])
        return shown

    def _setting(self, shown: Mapping[str, Any]) -> AuditContext:
        options, convention = self.options, self.options.probes.chosen
        if "faces" in shown:
            convention = convention.on(shown["faces"].name, shown["faces"].groups)
        return AuditContext(
            convention,
            self._embed,
            lambda: self.prompts,
            self._embed_faces,
            engine=self.engine,
            resampling=options.resampling,
            attributes=options.data.attributes,
            cross=options.data.cross,
            classes=options.words.classes,
            progress=self.progress or (lambda what, share: None),
            keep_vectors=options.output.keep_vectors,
            strict=options.data.strict,
        )

    def _embed(self, data: Any) -> EmbeddingResult:
        """Embeddings of image files, made or found in the store once."""
        if id(data) not in self.embedded:
            model, load = self._loaded
            in_memory = self.engine.name == "local" or self.store is None
            self.embedded[id(data)] = embed(
                model,
                data.images,
                data.ids,
                store=self.store,
                pace=LoaderConfig(precision=self.options.compute.precision),
                strict=self.options.data.strict,
                workers=Workers(self.engine, load, read=in_memory),
                progress=self.progress,
            )
        return self.embedded[id(data)]

    def _embed_faces(self, faces: Faces) -> EmbeddedFaces:
        """Faces that can be ranked on the engine, and where their embeddings are."""
        if faces.vectors is None and isinstance(faces.images, ImageFiles | GeneratedImages):
            found = self._embed(faces)
            items = None if found.kept is None else found.items
            if self.engine.name == "local" or self.store is None:
                faces = found.of(faces)
                return EmbeddedFaces(faces, InMemoryVectors(found.vectors), items)
            assert found.kept is not None
            space = EmbeddingSpace(self.store.root / found.kept["space"])
            told = {**faces.provenance, **found.record}
            kept = replace(faces.only(found.rows), provenance=told)
            return EmbeddedFaces(kept, StoreVectors.of(space, found.items), items)
        if faces.vectors is None:
            return EmbeddedFaces(faces, InMemoryVectors(image_embeddings(self.model, faces)))
        images: Vectors = vectors_of(faces.vectors)
        change = getattr(self.model, "map_images", None)
        if change is not None and self.engine.name != "local":  # corrected where they are read
            images = TransformedVectors(images, change)
        return EmbeddedFaces(faces, images)

    def _recorded(
        self,
        results: Mapping[str, ProbeResult],
        shown: Mapping[str, Any],
        setting: AuditContext,
        not_run: dict[str, str],
    ) -> Run:
        options, prompts = self.options, self.__dict__.get("prompts", [])
        data = {
            role: {
                "name": one.name,
                **_images(one, setting.unreadable.get(role), self.embedded.get(id(one))),
            }
            for role, one in shown.items()
        }
        vectors: dict[str, Any] = {}
        for result in results.values():
            vectors |= result.kept
            if result.record:
                data["faces"] |= result.record
        store = options.compute.store
        meta = run_record(
            model=self.model,
            spec=self.spec,
            data=data,
            seed=options.resampling.seed,
            convention=setting.convention.as_dict(),
            prompts=prompt_record(prompts),
            environment={
                "device": str(getattr(self.model, "device", "cpu")),
                **({} if store is None else {"store": str(Path(store).resolve())}),
            },
            not_run=not_run,
            engine=self.engine.name,
            arguments=options.record(self.given_faces),
        )
        tables = combined(result.table for result in results.values())
        instances = {name: result.instances for name, result in results.items()}
        return Run(tables, meta, instances, vectors)


def _itself(model: Any) -> Any:
    return model


def _images(
    data: Any, unreadable: list[str] | None, seen: EmbeddingResult | None
) -> dict[str, Any]:
    """Image provenance: count, source, unreadable files and embedding shards."""
    found: dict[str, Any] = {}
    if seen is not None:
        found = {"images": len(seen.rows), **data.provenance, **seen.record}
        if seen.kept is not None:
            found["vectors"] = {name: seen.kept[name] for name in ("space", "shards")}
        return found
    if unreadable is not None:
        found["unreadable"] = {"count": len(unreadable), "first": unreadable[:SHOWN]}
    count = len(getattr(data, "ids", ())) - len(unreadable or ())
    return {"images": count, **data.provenance, **found}


def refuse_fitted_rows(model: Debiased, data: Mapping[str, Any]) -> None:
    """A corrected model is not judged on the rows that it was fitted on."""
    for role, one in data.items():
        if hasattr(one, "ids") and (rows := model.fitted_on(one)):
            raise InputError(
                f"{len(rows):,} of the {len(one.ids):,} rows of {role} are among those that the "
                "debiaser was fitted on, which proves nothing: audit it on others"
            )


def own_images(spec: str | None, model: Any) -> str | None:
    """The images that belong to some models."""
    spec = model.spec if isinstance(model, Debiased) else spec
    scheme = (spec or "").partition(":")[0]
    if world := planted_world(model):
        return f"testbed:?strength={world.strength}"
    return spec if scheme == "embeddings" else None


def choose_probes(
    asked: Sequence[str] | None, model: Any, data: Mapping[str, Any], engine: Engine
) -> tuple[dict[str, Probe], dict[str, str]]:
    """Probes that can run, and why the others cannot; one that was asked for must."""
    known: dict[str, Probe] = {name: PROBES[name] for name in asked or PROBES}
    roles = {role for name in PROBES for role in (*PROBES[name].needs, *PROBES[name].takes)}
    for role in data:
        if role not in ROLES:
            raise UnknownNameError("role of data", role, ROLES)
        if role not in roles:
            raise InputError(f"no probe uses data of the role {role!r} yet")
    lacking = {
        name: probe.lacks(model, data)
        or (probe.waits(name, data) if asked is None else None)
        or probe.refuses(engine)
        for name, probe in known.items()
    }
    reasons = {name: why for name, why in lacking.items() if why}
    chosen = {name: probe for name, probe in known.items() if name not in reasons}
    # words alone are no audit of a model that sees, unless they are asked for
    if reasons and (asked or not any(probe.needs for probe in chosen.values())):
        together: dict[str, list[str]] = {}
        for name, why in reasons.items():
            together.setdefault(why, []).append(name)
        told = "; ".join(f"{', '.join(names)}: {why}" for why, names in together.items())
        raise InputError(f"{getattr(model, 'name', type(model).__name__)}: {told}")
    return chosen, reasons
