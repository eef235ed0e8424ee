"""One audit: check, load, embed, run probes, record. The same path on every engine."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, Unpack

import numpy as np

from tiltmeter.auditing.builtin import (
    ALSO,
    CROSS,
    QUICK,
    THOROUGH,
    built_in_data,
    in_world_of,
    with_sizes,
)
from tiltmeter.auditing.check import check_audit, check_faces, load_roles, no_images
from tiltmeter.auditing.options import AuditKeywords, AuditOptions
from tiltmeter.auditing.unseen import check_shards_unseen, fitted_rows, without_fitted_rows
from tiltmeter.datasets.shards import ShardedFaces
from tiltmeter.debiasers.debiased import Debiased
from tiltmeter.engine.embedding.embed_images import (
    SHOWN,
    EmbeddedFaces,
    EmbeddingResult,
    Workers,
    embed,
    load_for,
)
from tiltmeter.engine.embedding.loader import LoaderConfig
from tiltmeter.engine.embedding.shards import embed_shards
from tiltmeter.engine.engines import Engine
from tiltmeter.engine.indexing import index_shards
from tiltmeter.engine.named import engine_with_store
from tiltmeter.engine.ranking.partitioned import check_order_on_engine
from tiltmeter.engine.vectors import (
    InMemoryVectors,
    ShardVectors,
    TransformedVectors,
    Vectors,
    vectors_of,
)
from tiltmeter.errors import EXPECTED, InputError, reason
from tiltmeter.io.image_files import GeneratedImages, ImageFiles
from tiltmeter.metrics.arrays import to_numpy
from tiltmeter.probes import PROBES
from tiltmeter.probes.embeddings import image_embeddings, texts_embedded_once
from tiltmeter.probes.probe import AuditContext, CannotRunError, Probe, ProbeResult
from tiltmeter.probes.texts import audit_lists, audit_prompts
from tiltmeter.results import ProbeFailedError, Run, combined, prompt_record, run_record
from tiltmeter.stats.resampling import Resampling
from tiltmeter.store import Store
from tiltmeter.types import Continuer, Faces, Progress, Prompt, TextEncoder, planted_world


def audit(
    model: str | TextEncoder = "testbed:fusion",
    faces: str | Faces | None = None,
    *,
    progress: Progress | None = None,
    **options: Unpack[AuditKeywords],
) -> Run:
    """Audit a model on images with group labels.

    Parameters
    ----------
    model : str or TextEncoder
        A model, or its spec, such as `hf:openai/clip-vit-base-patch32`.
    faces : str or Faces, optional
        Images with group labels, or their spec, such as `fairface:DIR?split=val`. Defaults to the
        images that belong to the model: those of `embeddings:DIR`, or those of the testbed. With
        neither images nor `probes`, a model of the testbed is audited by every probe that applies
        to it, in small sizes (`tiltmeter.auditing.builtin`), or with `thorough` in full ones.
    progress : callable, optional
        Called as `progress(what, share)`; `share` is the fraction done, from 0 to 1.
    **options
        Keyword options, by topic: `data`, `attributes`, `cross`, `strict`, `unseen`, `limit`,
        `thorough` (`DataOptions`); `words`, `placebo`, `templates`, `classes` (`WordOptions`);
        `probes`,
        `options`, `convention`, `k` (`ProbeOptions`); `permutations`, `bootstraps`, `seed`
        (`Resampling`); `engine`, `store`, `device`, `precision`, `batch_size`,
        `trust_remote_code` (`ComputeOptions`); `name`, `data_name`, `keep_vectors`
        (`OutputOptions`). See `tiltmeter.auditing.options`.

    Returns
    -------
    Run
        The results table, with everything needed to reproduce it. `run.meta["not_run"]` lists the
        probes that could not run, with the reason.

    Raises
    ------
    InputError
        If data, model and options do not fit together, or if the first probe fails.
    ProbeFailedError
        If a probe fails after others have finished: its `.run` has their results.

    Examples
    --------
    >>> run = audit("testbed:dual", probes=["ranking"], permutations=0, bootstraps=0)
    >>> run.table.num_rows > 0
    True
    """
    with texts_embedded_once():
        return _Audit(model, faces, AuditOptions.of(**options), progress).run()


@dataclass(eq=False)
class _Audit:
    """The state of one audit; what is expensive is made on first use."""

    given_model: str | TextEncoder
    given_faces: str | Faces | None
    options: AuditOptions
    progress: Progress | None
    embedded: dict[int, EmbeddingResult] = field(default_factory=dict)  # by id(): probes share them
    embedded_faces: dict[int, EmbeddedFaces] = field(default_factory=dict)

    @cached_property
    def engine(self) -> Engine:
        return engine_with_store(self.options.compute.engine, self.options.compute.store)

    @cached_property
    def store(self) -> Store | None:
        place = self.options.compute.store
        return None if place is None else Store(Path(place))

    @cached_property
    def _loaded(self) -> tuple[Any, Callable[[], Any]]:
        """The model, and a function that loads it in a worker process."""
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
        return audit_prompts(self.model, *self.options.words.texts)

    def run(self) -> Run:
        given = check_audit(self.given_model, self.given_faces, self.options)
        data_by_role, also = self._data_by_role(given)
        requested = self.options.probes.probes
        probes, not_run = choose_probes(requested, self.model, data_by_role, self.engine, also)
        check_order_on_engine(self.model, self.engine)
        configured = {
            name: probe.options_with(name, self.options.probes.options.get(name, {}))
            for name, probe in probes.items()
        }
        data = self._load_data(data_by_role, probes)
        context = self._context(data)
        self._count_requests(probes, configured, data, context)
        results: dict[str, ProbeResult] = {}
        failures: dict[str, Exception] = {}
        for at, (name, probe) in enumerate(probes.items()):
            progress = self._part(name, at, len(probes))
            progress("starting", 0.0)
            probe_context = replace(context, options=configured[name], progress=progress)
            try:
                results[name] = ProbeResult(*probe.run(self.model, data, probe_context))
            except Exception as error:  # even a bug must not lose the other probes' results
                if self.options.probes.probes is None and isinstance(error, CannotRunError):
                    not_run[name] = str(error)
                    continue
                if not results:  # nothing to keep: fail at once
                    raise
                failures[name] = error
        run = self._record(results, data, context, not_run)
        if not failures:
            return run
        run.meta["failed"] = {name: reason(error) for name, error in failures.items()}
        bugs = [error for error in failures.values() if not isinstance(error, EXPECTED)]
        raise ProbeFailedError(run) from [*bugs, *failures.values()][0]

    def _count_requests(
        self,
        probes: Mapping[str, Probe],
        configured: Mapping[str, dict[str, Any]],
        data: Mapping[str, Any],
        context: AuditContext,
    ) -> None:
        """Of a model behind a server: say how many requests all probes will send, before any.

        The probes run with answers that are made up, so it is the most that they may ask.
        """
        rehearsal = getattr(self.model, "rehearsal", None)
        if rehearsal is None:
            return
        self._tell("counting requests", 0.0)
        silent = replace(
            context, resampling=Resampling(0, 0, context.seed), written={}, unreadable={},
            progress=lambda what, share: None,
        )  # fmt: skip
        with rehearsal(), warnings.catch_warnings(), np.errstate(all="ignore"):
            warnings.simplefilter("ignore")
            for name, probe in probes.items():
                with suppress(Exception):  # statistics of what is made up may fail
                    probe.run(self.model, data, replace(silent, options=configured[name]))

    def _part(self, name: str, at: int, count: int) -> Progress:
        """Progress of one probe as a part of the whole audit, which ends after the last one."""

        def tell(what: str, share: float) -> None:
            # never 100%: the results are still to be written
            self._tell(f"{name}: {what}", min((at + min(share, 1.0)) / count, 0.99))

        return tell

    def _data_by_role(self, given: Mapping[str, Any]) -> tuple[dict[str, Any], Sequence[str]]:
        """Data or specs by role, and probes of the built-in world that elsewhere run on request."""
        requested, world = self.options.probes.probes, planted_world(self.model)
        if world is not None and "faces" in given:
            spec = in_world_of(world, self.given_faces or self.options.data.data["faces"])
            return {**given, "faces": spec or given["faces"]}, ()
        if world is None:
            return {"faces": default_images(self.spec, self.model), **given}, ()
        if requested is not None:  # in full sizes, and no roles that these probes can do without
            probes = [PROBES[name] for name in requested]
            used = {role for probe in probes for role in (*probe.needs, *(probe.enabled_by or ()))}
            own = built_in_data(world, THOROUGH)
            return {**{role: own[role] for role in own if role in {*used, "faces"}}, **given}, ()
        sizes = THOROUGH if self.options.data.thorough else QUICK
        # of a generative model a sample is asked about: too few images for intersections
        cross = () if isinstance(self.model, Continuer) else CROSS
        self.options = with_sizes(self.options, sizes, cross)
        return {**built_in_data(world, sizes), **given}, ALSO

    def _load_data(
        self, data_by_role: Mapping[str, Any], probes: Mapping[str, Probe]
    ) -> dict[str, Any]:
        """Load the data that the probes use, without rows that a debiaser was fitted on."""
        data = load_roles(data_by_role, self.options, probes.values())
        unseen = self.options.data.unseen
        debiased = [self.model] * isinstance(self.model, Debiased)
        fitted = fitted_rows([*debiased, *unseen])
        faces = data.get("faces")
        if isinstance(faces, ShardedFaces):
            data["faces"] = self._opened_shards(faces)
            check_faces(data["faces"], faces.name, self.options, self.model)
            check_shards_unseen(data["faces"], fitted, self.engine, self._tell)
        data = {
            role: without_fitted_rows(loaded, fitted, role=role, requested=bool(unseen))
            for role, loaded in data.items()
        }
        if debiased and "faces" in data and self.engine.name == "local":
            data["faces"] = self.model.corrected(data["faces"])
        return data

    def _tell(self, what: str, share: float) -> None:
        if self.progress is not None:
            self.progress(what, share)

    def _opened_shards(self, faces: ShardedFaces) -> ShardedFaces:
        """The collection with rows and labels counted by workers, who embed its images if any."""
        if faces.table is not None:
            return faces
        if not faces.in_images:
            strict = self.options.data.strict
            return index_shards(faces, self.engine, self._tell, strict=strict)
        assert self.store is not None
        model, load = self._loaded
        return embed_shards(
            model, faces, self.store, Workers(self.engine, load), self._loader_config,
            strict=self.options.data.strict, progress=self._tell,
        ).faces  # fmt: skip

    @property
    def _loader_config(self) -> LoaderConfig:
        compute = self.options.compute
        return LoaderConfig(batch=compute.batch_size, precision=compute.precision)

    def _context(self, data: Mapping[str, Any]) -> AuditContext:
        options, convention = self.options, self.options.probes.chosen
        if "faces" in data:
            convention = convention.on(data["faces"].name, data["faces"].groups)
        return AuditContext(
            convention,
            self._embed,
            lambda: self.prompts,
            self._embed_faces_once,
            engine=self.engine,
            resampling=options.resampling,
            attributes=options.data.attributes,
            cross=options.data.cross,
            classes=options.words.classes,
            own_neutral=options.words.placebo is not None,
            progress=self.progress or (lambda what, share: None),
            keep_vectors=options.output.keep_vectors,
            strict=options.data.strict,
            requested=options.probes.probes is not None,
        )

    def _embed(self, data: Any) -> EmbeddingResult:
        """Embed images once, or read their embeddings from the store."""
        if id(data) not in self.embedded and planted_world(data):  # scenes, drawn in memory
            vectors = to_numpy(self.model.encode_images(data.images))
            rows = list(range(len(vectors)))
            self.embedded[id(data)] = EmbeddingResult(rows, vectors, len(rows), {}, 0.0, {})
        if id(data) not in self.embedded:
            model, load = self._loaded
            in_memory = self.engine.name == "local" or self.store is None
            self.embedded[id(data)] = embed(
                model,
                data.images,
                data.ids,
                store=self.store,
                config=self._loader_config,
                strict=self.options.data.strict,
                workers=Workers(self.engine, load, read=in_memory),
                progress=self.progress,
            )
        return self.embedded[id(data)]

    def _embed_faces_once(self, faces: Faces) -> EmbeddedFaces:
        if id(faces) not in self.embedded_faces:
            self.embedded_faces[id(faces)] = self._embed_faces(faces)
        return self.embedded_faces[id(faces)]

    def _embed_faces(self, faces: Faces) -> EmbeddedFaces:
        """Embed faces for the engine, and say where their embeddings are."""
        if isinstance(faces, ShardedFaces):
            assert faces.table is not None
            corrected = None if faces.in_images else getattr(self.model, "map_images", None)
            return EmbeddedFaces(faces, ShardVectors.of(faces.table, corrected))
        if faces.vectors is None and isinstance(faces.images, ImageFiles | GeneratedImages):
            embedded = self._embed(faces)
            items = None if embedded.kept is None else embedded.items
            if self.engine.name == "local" or self.store is None:
                faces = embedded.of(faces)
                return EmbeddedFaces(faces, embedded.located, items)
            provenance = {**faces.provenance, **embedded.record}
            readable = replace(faces.select(embedded.rows), provenance=provenance)
            return EmbeddedFaces(readable, embedded.located, items)
        if faces.vectors is None:
            vectors = image_embeddings(self.model, faces)
            return EmbeddedFaces(replace(faces, vectors=vectors), InMemoryVectors(vectors))
        images: Vectors = vectors_of(faces.vectors)
        map_images = getattr(self.model, "map_images", None)
        if map_images is not None and self.engine.name != "local":  # corrected on reading
            images = TransformedVectors(images, map_images)
        return EmbeddedFaces(faces, images)

    def _record(
        self,
        results: Mapping[str, ProbeResult],
        data: Mapping[str, Any],
        context: AuditContext,
        not_run: dict[str, str],
    ) -> Run:
        options, prompts = self.options, self.__dict__.get("prompts", [])  # if a probe used them
        lists = audit_lists(self.model, *options.words.texts) if prompts else ()
        data_record = {
            role: {
                "name": loaded.name,
                **_images(loaded, context.unreadable.get(role), self.embedded.get(id(loaded))),
            }
            for role, loaded in data.items()
        }
        vectors: dict[str, Any] = {}
        for result in results.values():
            vectors |= result.kept
            if result.record:
                data_record["faces"] |= result.record
        store = options.compute.store
        meta = run_record(
            model=self.model,
            spec=self.spec,
            data=data_record,
            seed=options.resampling.seed,
            convention=context.convention.as_dict(),
            prompts=prompt_record(prompts, *lists),
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
        for result in results.values():
            meta["model"] |= result.model
        names = options.output
        return Run(tables, meta, instances, vectors).renamed(names.name, names.data_name)


def _itself(model: Any) -> Any:
    return model


def _images(
    data: Any, unreadable: list[str] | None, embedded: EmbeddingResult | None
) -> dict[str, Any]:
    """Image provenance: count, source, unreadable files and embedding shards."""
    record: dict[str, Any] = {}
    if embedded is not None:
        record = {"images": len(embedded.rows), **data.provenance, **embedded.record}
        if embedded.kept is not None:
            record["vectors"] = {name: embedded.kept[name] for name in ("space", "shards")}
        return record
    if isinstance(data, ShardedFaces):
        return {"images": len(data), **data.provenance}
    if unreadable is not None:
        record["unreadable"] = {"count": len(unreadable), "first": unreadable[:SHOWN]}
    count = len(getattr(data, "ids", ())) - len(unreadable or ())
    return {"images": count, **data.provenance, **record}


def default_images(spec: str | None, model: Any) -> str | None:
    """Spec of the images that belong to the model, or None if it has none."""
    spec = model.spec if isinstance(model, Debiased) else spec
    scheme = (spec or "").partition(":")[0]
    if world := planted_world(model):
        return f"testbed:?strength={world.strength}"
    return spec if scheme == "embeddings" else None


def choose_probes(
    requested: Sequence[str] | None,
    model: Any,
    data: Mapping[str, Any],
    engine: Engine,
    also: Sequence[str] = (),
) -> tuple[dict[str, Probe], dict[str, str]]:
    """Choose the probes that can run, and give the reasons why the others cannot.

    Parameters
    ----------
    requested : sequence of str or None
        Names of probes that must run; None chooses all that can.
    model : object
        The loaded model.
    data : mapping
        Data or specs by role.
    engine : Engine
        Where the probes run.
    also : sequence of str
        Probes that run although they would wait for a request.

    Returns
    -------
    tuple
        The chosen probes by name, and the reasons of the others by name.

    Raises
    ------
    InputError
        If a requested probe, or every probe that looks at images, cannot run.
    UnknownNameError
        If a probe does not exist.
    """
    known: dict[str, Probe] = {name: PROBES[name] for name in requested or PROBES}
    lacking = {
        name: probe.reason_cannot_run(model, data)
        or (probe.reason_left_out(name, data) if requested is None and name not in also else None)
        or probe.reason_not_on_engine(engine)
        for name, probe in known.items()
    }
    reasons = {name: problem for name, problem in lacking.items() if problem}
    chosen = {name: probe for name, probe in known.items() if name not in reasons}
    # a probe of words alone is no audit of a vision-language model, unless requested
    if reasons and (requested or not any(probe.needs for probe in chosen.values())):
        if not requested and not any(source is not None for source in data.values()):
            raise no_images(getattr(model, "name", type(model).__name__))
        by_reason: dict[str, list[str]] = {}
        for name, problem in reasons.items():
            by_reason.setdefault(problem, []).append(name)
        explanation = "; ".join(
            f"{', '.join(names)}: {problem}" for problem, names in by_reason.items()
        )
        raise InputError(f"{getattr(model, 'name', type(model).__name__)}: {explanation}")
    return chosen, reasons
