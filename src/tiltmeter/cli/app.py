"""The command line: parse, call, print."""

from __future__ import annotations

import io
import json
import sys
import warnings
from itertools import product
from pathlib import Path
from typing import Annotated

import typer

from tiltmeter import __version__
from tiltmeter.cli.explore import explore
from tiltmeter.cli.frontier import frontier
from tiltmeter.cli.parsing import data_roles, next_run, numbers, probe_options, progress_bar
from tiltmeter.cli.report import report
from tiltmeter.cli.sharing import bundle, card, verify
from tiltmeter.cli.words import compare, words
from tiltmeter.errors import EXPECTED, InputError, TiltmeterError, UnknownNameError
from tiltmeter.errors import reason as reason_of

app = typer.Typer(
    name="tiltmeter",
    help="Measures the social tilt of vision-language models: every number with its interval, "
    "null and p-value.",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="rich",
    pretty_exceptions_enable=False,
)

Images = Annotated[
    str | None,
    typer.Option("--images", metavar="SPEC", help="Images with groups: embeddings:DIR, table:FILE"),
]
Attributes = Annotated[
    list[str] | None,
    typer.Option("--attribute", "-a", help="Label column; again for more. Default: all found"),
]
Cross = Annotated[
    list[str] | None,
    typer.Option("--cross", metavar="A*B", help="Crossing of label columns, such as 'race*gender'"),
]
ConventionName = Annotated[
    str, typer.Option("--convention", help="Named choices: tiltmeter list conventions")
]
TopK = Annotated[
    list[int] | None,
    typer.Option("--k", min=1, help="Top k; again for more. Default: the convention's"),
]
StorePlace = Annotated[
    Path | None,
    typer.Option("--store", metavar="DIR", help="Where vectors of photographs are kept and found"),
]
Device = Annotated[str, typer.Option("--device", help="auto, cpu or cuda")]
Precision = Annotated[
    str, typer.Option("--precision", help="float32 or bfloat16; auto: the second on a GPU")
]
TrustRemoteCode = Annotated[
    bool,
    typer.Option(
        "--trust-remote-code", help="Run code that a checkpoint of hf: brings along: know whose"
    ),
]
EngineName = Annotated[
    str,
    typer.Option(
        "--engine",
        metavar="local|parts|ray",
        help="Where to compute; ray:workers=8,gpus=0.5 has settings",
    ),
]
Strict = Annotated[
    bool,
    typer.Option("--strict", help="Stop at a picture that cannot be read; else it is left out"),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON for machines")]


@app.command(
    epilog="Example:  tiltmeter audit embeddings:my_vectors --cross 'race*gender' --out run"
)
def audit(
    models: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="MODEL",
            help="hf:NAME_OR_DIR, embeddings:DIR, ... (tiltmeter list models). Without one: the "
            "built-in model, testbed:fusion, whose tilt is known, with --cross 'shape*hue'",
        ),
    ] = None,
    images: Annotated[
        list[str] | None,
        typer.Option("--images", metavar="SPEC", help="Images with groups; again for more"),
    ] = None,
    data: Annotated[
        list[str] | None,
        typer.Option("--data", metavar="ROLE=SPEC", help="Other data: captions=..., utility=..."),
    ] = None,
    probe: Annotated[
        list[str] | None,
        typer.Option("--probe", "-p", help="Probe; again for more. Default: all that have data"),
    ] = None,
    words: Annotated[
        str | None,
        typer.Option("--words", help="Word list: a shipped one (list stimuli), .yaml or .csv"),
    ] = None,
    placebo: Annotated[
        str | None, typer.Option("--placebo", help="Neutral words to compare with, likewise")
    ] = None,
    template: Annotated[
        list[str] | None, typer.Option("--template", help="'a photo of a {}'; again for more")
    ] = None,
    classes: Annotated[
        str | None, typer.Option("--classes", help="Classes for the probe harms: a list or a file")
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option("--option", metavar="PROBE.NAME=VALUE", help="A setting of one probe"),
    ] = None,
    attribute: Attributes = None,
    cross: Cross = None,
    convention: ConventionName = "tiltmeter",
    k: TopK = None,
    out: Annotated[
        Path | None,
        typer.Option("--out", "-o", help="Where to keep the run. Default: tiltmeter-runs/NUMBER"),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the run that is there")] = False,
    permutations: Annotated[
        int, typer.Option(min=0, help="Relabellings for p-values; 0 leaves them out")
    ] = 1000,
    bootstraps: Annotated[
        int, typer.Option(min=0, help="Resamples for intervals; 0 leaves them out")
    ] = 400,
    seed: Annotated[int, typer.Option(min=0, help="Same inputs and seed, same bytes")] = 0,
    store: StorePlace = None,
    device: Device = "auto",
    precision: Precision = "auto",
    trust_remote_code: TrustRemoteCode = False,
    strict: Strict = False,
    engine: EngineName = "local",
    with_report: Annotated[
        bool, typer.Option("--report/--no-report", help="Write report.html into the run")
    ] = True,
    keep_vectors: Annotated[
        bool,
        typer.Option(
            "--vectors/--no-vectors",
            help="Keep what was ranked (ids, labels, vectors), for compare and explore",
        ),
    ] = True,
    as_json: Json = False,
) -> None:
    """Measure a model: one bias table, every number with its noise."""
    from tiltmeter.auditing.audit import audit as run_audit
    from tiltmeter.auditing.options import AuditKeywords
    from tiltmeter.cli.report import report_beside
    from tiltmeter.judge.panel import panel
    from tiltmeter.pages import terminal as show
    from tiltmeter.pages.terminal.audit_summary import closing
    from tiltmeter.results import ProbeFailedError, Run

    place = out or next_run()
    if place.exists() and not force:
        raise InputError(f"{place} exists already: name another --out, or pass --force")
    if not models and not images:
        cross = cross or ["shape*hue"]
    with progress_bar(quiet=as_json) as progress:
        asked: AuditKeywords = {
            "data": data_roles(data or ()),
            "attributes": attribute,
            "cross": cross or (),
            "strict": strict,
            "words": words,
            "placebo": placebo,
            "templates": template,
            "classes": classes,
            "probes": probe,
            "options": probe_options(option or ()),
            "convention": convention,
            "k": k,
            "permutations": permutations,
            "bootstraps": bootstraps,
            "seed": seed,
            "engine": engine,
            "store": store,
            "device": device,
            "precision": precision,
            "trust_remote_code": trust_remote_code,
            "keep_vectors": keep_vectors,
        }
        runs: list[Run] = []
        bugs: list[BaseException] = []
        lost: dict[str, str] = {}  # audits of which nothing came
        for model, faces in product(models or ["testbed:fusion"], images or [None]):  # type: ignore[list-item]
            try:
                runs.append(run_audit(model, faces, progress=progress, **asked))
                continue
            except ProbeFailedError as error:
                runs.append(error.run)
                cause = error.__cause__ or error
            except Exception as error:
                if not runs:  # nothing to keep
                    raise
                lost[f"the audit of {model}" + (f" on {faces}" if faces else "")] = reason_of(error)
                cause = error
            if not isinstance(cause, EXPECTED):
                bugs.append(cause)
    run = runs[0] if len(runs) == 1 else panel(runs, seed=seed)
    if lost:
        run.meta["failed"] = {**run.meta.get("failed", {}), **lost}
    run.save(place, replace=force)
    page, reason = report_beside(run, place) if with_report else (None, "")
    if as_json:
        written = {"out": str(place), "report": page and str(page)}
        print(json.dumps({**written, **show.summary(run)}, indent=2))
    else:
        for one in runs:
            show.run(one)
        if len(runs) > 1:
            show.panel(run)
        show.saved(place)
        closing(run, page, reason)
    if bugs:
        raise bugs[0]
    if failed := run.meta.get("failed"):
        told = "; ".join(f"{name} failed: {why}" for name, why in failed.items())
        raise TiltmeterError(f"{told} (the other results are kept in {place})")


@app.command(epilog="Example:  tiltmeter embed hf:DIR --images fairface:DIR --store store")
def embed(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="tiltmeter list models")],
    images: Annotated[
        str, typer.Option("--images", metavar="SPEC", help="Photographs: tiltmeter list datasets")
    ],
    store: Annotated[
        Path, typer.Option("--store", metavar="DIR", help="Where the vectors are kept")
    ],
    device: Device = "auto",
    batch: Annotated[int | None, typer.Option(min=1, help="Pictures at a time")] = None,
    workers: Annotated[
        int | None, typer.Option(min=0, help="Processes that decode; of a Ray worker, threads")
    ] = None,
    precision: Precision = "auto",
    decode: Annotated[
        str,
        typer.Option("--decode", help="Who decodes JPEG files: cpu or gpu; auto: a GPU that can"),
    ] = "auto",
    compiled: Annotated[
        bool, typer.Option("--compile", help="torch.compile: slow to start, then faster")
    ] = False,
    trust_remote_code: TrustRemoteCode = False,
    strict: Strict = False,
    engine: EngineName = "local",
    as_json: Json = False,
) -> None:
    """Make a model's vectors of photographs and keep them; what is there already is not made again.

    It may be stopped at any moment: the next call goes on from what was kept.
    """
    from tiltmeter.datasets import load_data
    from tiltmeter.datasets.found_images import describe
    from tiltmeter.engine.embedding.embed import Workers, load_for
    from tiltmeter.engine.embedding.embed import embed as run_embed
    from tiltmeter.engine.embedding.loader import LoaderConfig
    from tiltmeter.engine.named import engine_of
    from tiltmeter.pages import terminal as show
    from tiltmeter.store import Store

    where = engine_of(engine)
    tower, load = load_for(where, model, device=device, trust_remote_code=trust_remote_code)
    data = load_data(images)
    with progress_bar(quiet=as_json) as progress:
        done = run_embed(
            tower,
            getattr(data, "images", None),
            getattr(data, "ids", ()),
            store=Store(store),
            pace=LoaderConfig(
                batch, workers, precision=precision, decode=decode, compiled=compiled
            ),
            strict=strict,
            workers=Workers(where, load, read=False),
            progress=progress,
        )
    if as_json:
        told = {"images": len(done.rows), "embedded": done.new, "unreadable": done.unreadable}
        print(json.dumps({**told, "seconds": round(done.seconds, 3)}, indent=2))
    else:
        show.embedded(done, describe(data), store)


store_app = typer.Typer(help="Look after stored vectors.", no_args_is_help=True)
app.add_typer(store_app, name="store")
StoreArgument = Annotated[Path, typer.Argument(metavar="DIR", help="A store")]


@store_app.command("info")
def store_info(store: StoreArgument, as_json: Json = False) -> None:
    """Models, pictures and bytes of a store."""
    from tiltmeter.pages import terminal as show
    from tiltmeter.store import Store

    found = [space.info() for space in Store(store).spaces()]
    if as_json:
        print(json.dumps(found, indent=2))
    else:
        show.spaces(found)


@store_app.command("verify")
def store_verify(
    store: StoreArgument,
    remove: Annotated[
        bool, typer.Option("--remove", help="Remove what is damaged: it is then embedded again")
    ] = False,
) -> None:
    """Check every file against its checksum; exit code 1 where something is wrong."""
    from tiltmeter.store import Store

    count, shards = 0, 0
    for space in Store(store).spaces():
        shards += len(space.shards())
        for shard, what in list(space.problems()):
            print(f"{space.path}: {what}" + (" (removed)" if remove else ""))
            count += 1
            if remove:
                space.remove(shard)
    print(f"{shards:,} shards looked at, {count:,} damaged.")
    if count and not remove:
        raise typer.Exit(1)


@store_app.command("merge")
def store_merge(
    store: StoreArgument,
    others: Annotated[list[Path], typer.Argument(metavar="OTHER...", help="Stores to take from")],
) -> None:
    """Take over the vectors of other stores; those stay as they are."""
    from tiltmeter.store import Store

    for other in others:
        print(f"{Store(store).merge(Store(other)):,} shards taken from {other}.")


@store_app.command("gc")
def store_gc(store: StoreArgument) -> None:
    """Remove leftovers of killed writers, and shards whose pictures others hold too."""
    from tiltmeter.store import Store

    print(f"{len(Store(store).gc()):,} files removed.")


@app.command(
    epilog="Example:  tiltmeter plan --images table:labels.csv --cross 'race*gender' --words 400"
)
def plan(
    images: Annotated[
        str | None, typer.Option("--images", metavar="SPEC", help="embeddings:DIR or table:FILE")
    ] = None,
    attribute: Attributes = None,
    cross: Cross = None,
    convention: ConventionName = "tiltmeter",
    k: TopK = None,
    words: Annotated[int, typer.Option(min=1, help="How many words the audit will have")] = 400,
    power: Annotated[float, typer.Option(help="Chance to find what is there")] = 0.8,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    scale: Annotated[
        float | None,
        typer.Option("--scale", metavar="N", help="Hours and bytes for N images and captions"),
    ] = None,
    model: Annotated[
        str | None, typer.Option("--model", help="With --scale: a model, whose speed is measured")
    ] = None,
    rate: Annotated[
        float | None, typer.Option("--rate", help="With --scale: images a second of one worker")
    ] = None,
    workers: Annotated[
        int, typer.Option("--workers", help="With --scale: workers of the cluster")
    ] = 1,
    dimensions: Annotated[
        int, typer.Option("--dimensions", min=1, help="With --scale: of a vector")
    ] = 512,
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Tell the smallest effect that an audit could see, or with --scale what it takes."""
    from dataclasses import asdict

    from tiltmeter.datasets import load_data
    from tiltmeter.metrics.convention import get_convention
    from tiltmeter.pages import terminal as show
    from tiltmeter.planning.power import plan as make_plan

    if scale is not None:
        from tiltmeter.models import load_model
        from tiltmeter.planning.cost import scale as make_scale

        tower = None if model is None else load_model(model, device=device)
        steps = make_scale(
            int(scale), workers=workers, model=tower, rate=rate, dimensions=dimensions, texts=words
        )
        if as_json:
            print(json.dumps([asdict(one) for one in steps], indent=2))
        else:
            show.scale(steps, total=int(scale), workers=workers)
        return
    if images is None:
        raise InputError(
            "plan needs --images SPEC (what could be seen) or --scale N (what it takes)"
        )
    if not 0 < power < 1:
        raise InputError(f"--power must lie between 0 and 1; got {power}")
    chosen = get_convention(convention)
    chosen = chosen.with_(k=tuple(sorted(set(k)))) if k else chosen
    with progress_bar(quiet=as_json) as progress:
        progress("reading labels", 0.0)
        data = load_data(
            images, attributes=attribute, cross=cross or (), role="faces", optional=chosen.labels
        )
        chosen = chosen.on(data.name, data.groups)
        names = [*(attribute or data.groups), *(cross or ())]
        progress("drawing random rankings", 0.3)
        plans = make_plan(
            data, attributes=names, convention=chosen, words=words, power=power, seed=seed
        )
    if as_json:
        print(json.dumps([asdict(one) for one in plans], indent=2))
    else:
        show.plan(plans, images=len(data), words=words, power=power, convention=chosen)


@app.command(
    epilog="Example:  tiltmeter calibrate --metric c_asc --metric max_skew --out calibration"
)
def calibrate(
    metric: Annotated[
        list[str] | None, typer.Option("--metric", help="Metric; again for more. Default: all")
    ] = None,
    doses: Annotated[
        str | None,
        typer.Option("--doses", metavar="0,0.5,1,...", help="Strengths of the planted world"),
    ] = None,
    replicates: Annotated[int, typer.Option(help="Data sets a dose")] = 16,
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="Where to keep the table, page and figures")
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace what is there")] = False,
    seed: Annotated[int, typer.Option(min=0, help="Same arguments and seed, same bytes")] = 0,
    as_json: Json = False,
) -> None:
    """Try every metric on a bias of known size: what it finds, and when it cries wolf."""
    from dataclasses import asdict

    from tiltmeter.judge.calibration import calibrate as run_calibration
    from tiltmeter.judge.calibration.measurement import DOSES
    from tiltmeter.pages import terminal as show
    from tiltmeter.pages.calibration import pages

    if out is not None:
        pages.check_place(out, replace=force)
    with progress_bar(quiet=as_json) as progress:
        found = run_calibration(
            metric,
            doses=DOSES if doses is None else numbers("--doses", doses),
            replicates=replicates,
            seed=seed,
            progress=progress,
        )
    lacking = None if out is None else pages.save(found, out, replace=force)
    if as_json:
        summaries = [asdict(one) for one in found.summaries]
        print(json.dumps({"out": out and str(out), "metrics": summaries}, indent=2))
    else:
        show.calibration(found.summaries)
        if out is not None and lacking is not None:
            show.calibration_saved(out, lacking)


@app.command(epilog="Example:  tiltmeter captions corpus/*.parquet --against tiltmeter-runs/001")
def captions(
    corpus: Annotated[
        list[str],
        typer.Argument(
            metavar="CORPUS...",
            help="Files, folders or patterns: Parquet, CSV, TSV, JSONL or COCO's JSON",
        ),
    ],
    words: Annotated[
        str, typer.Option("--words", help="Word list: a shipped one (list stimuli), .yaml or .csv")
    ] = "sobit",
    column: Annotated[
        str | None, typer.Option("--column", help="Column of captions. Default: caption, text, ...")
    ] = None,
    against: Annotated[
        Path | None,
        typer.Option("--against", metavar="RUN", help="A saved audit: does the data explain it?"),
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Where to keep the run")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace the run that is there")] = False,
    strict: Annotated[
        bool,
        typer.Option("--strict", help="Stop at a file that cannot be read; else it is left out"),
    ] = False,
    seed: Annotated[int, typer.Option(min=0, help="Same files and seed, same bytes")] = 0,
    engine: EngineName = "local",
    as_json: Json = False,
) -> None:
    """Look through the captions a model learned from: which words stand beside which groups."""
    from tiltmeter.corpus import audit_captions
    from tiltmeter.engine.named import engine_of
    from tiltmeter.pages import terminal as show

    if out is not None and out.exists() and not force:
        raise InputError(f"{out} exists already: name another --out, or pass --force")
    with progress_bar(quiet=as_json) as progress:
        run = audit_captions(
            corpus,
            words=words,
            column=column,
            against=against,
            strict=strict,
            seed=seed,
            engine=engine_of(engine),
            progress=progress,
        )
    if out is not None:
        run.save(out, replace=force)
    if as_json:
        print(json.dumps({"out": out and str(out), **show.captions_summary(run)}, indent=2))
    else:
        show.captions(run)
        if out is not None:
            show.saved(out)


@app.command(
    epilog="Example:  tiltmeter debias leace hf:DIR --images fairface:DIR -a gender --out fair"
)
def debias(
    method: Annotated[str, typer.Argument(metavar="METHOD", help="clip-clip, leace, fairvlp, ...")],
    model: Annotated[str, typer.Argument(metavar="MODEL", help="tiltmeter list models")],
    out: Annotated[Path, typer.Option("--out", "-o", help="Where the corrected model is kept")],
    images: Images = None,
    attribute: Annotated[
        str | None,
        typer.Option("--attribute", "-a", help="Label column, or a crossing: 'race*gender'"),
    ] = None,
    data: Annotated[
        list[str] | None,
        typer.Option("--data", metavar="ROLE=SPEC", help="captions=SPEC, to train on"),
    ] = None,
    prompts: Annotated[
        Path | None,
        typer.Option("--prompts", metavar="FILE", help="YAML: texts that name each group"),
    ] = None,
    edited: Annotated[
        str | None,
        typer.Option("--edited", metavar="DIR", help="Edited pictures by id; or `redraw`"),
    ] = None,
    option: Annotated[
        list[str] | None,
        typer.Option("--option", metavar="NAME=VALUE", help="A setting of the method"),
    ] = None,
    share: Annotated[
        float, typer.Option("--share", help="Fit on this share of the images, drawn at random")
    ] = 1.0,
    export: Annotated[
        str | None,
        typer.Option("--export", metavar="hf", help="OUT is also a checkpoint of transformers"),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace what is there")] = False,
    store: StorePlace = None,
    device: Device = "auto",
    strict: Strict = False,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    as_json: Json = False,
) -> None:
    """Correct a model: OUT is a model that `tiltmeter audit OUT` takes.

    A training may be stopped at any moment: the same call goes on from its last checkpoint.
    """
    from tiltmeter.debiasers.fitting import debias as run_debias

    if export is not None:
        from tiltmeter.debiasers.export import check_format, export_beside

        check_format(export, model)
    roles = data_roles(data or ())
    if unknown := [role for role in roles if role != "captions"]:
        raise UnknownNameError("role of data for debias", unknown[0], ("captions",))
    pairs = [one.partition("=") for one in option or ()]
    for one, (name, equals, value) in zip(option or (), pairs, strict=True):
        if not (name and equals and value):
            raise InputError(f"--option takes NAME=VALUE, such as keep=400; got {one!r}")
    with progress_bar(quiet=as_json) as progress:
        made = run_debias(
            method,
            model,
            images,
            attribute=attribute,
            captions=roles.get("captions"),
            prompts=prompts,
            edited=edited,
            settings={name: value for name, _, value in pairs},
            share=share,
            out=out,
            replace=force,
            store=store,
            device=device,
            strict=strict,
            seed=seed,
            progress=progress,
        )
    if export is not None:
        export_beside(made, out)
    told = made.provenance["debiaser"]
    if as_json:
        print(json.dumps({"out": str(out), **told}, indent=2))
        return
    rows = told["fitted"]["count"] if told["fitted"] else 0
    print(f"{made.name}: fitted on {rows:,} rows in {told['seconds']:.1f} s.")
    for one in told.get("price", ()):
        print(
            f"  {one['metric']:28} {one['before']:.3f} -> {one['after']:.3f}  "
            f"change {one['change']:+.3f} [{one['change_low']:+.3f}, {one['change_high']:+.3f}]  "
            f"n = {one['n']:,}"
        )
    print(f"Audit it on other rows:  tiltmeter audit {out} --images SPEC")


@app.command("list", epilog="Example:  tiltmeter list conventions")
def list_(
    kind: Annotated[
        str | None,
        typer.Argument(help="models, datasets, probes, debiasers, metrics, conventions or stimuli"),
    ] = None,
    as_json: Json = False,
) -> None:
    """Name what there is."""
    from tiltmeter.cli.catalogue import KINDS, entries
    from tiltmeter.pages import terminal as show

    if kind is not None and kind not in KINDS:
        raise UnknownNameError("kind of thing", kind, KINDS)
    found = {name: entries(name) for name in ([kind] if kind else KINDS)}
    if as_json:
        print(json.dumps(found, indent=2))
    else:
        show.catalogue(found)


@app.command()
def doctor(as_json: Json = False) -> None:
    """Look whether all that is needed is there and computes what it should."""
    from tiltmeter.pages import terminal as show
    from tiltmeter.planning.installation import examine

    findings = list(examine())
    if as_json:
        print(json.dumps([finding._asdict() for finding in findings], indent=2))
    else:
        show.findings(findings)
    if any(finding.ok is False for finding in findings):
        raise typer.Exit(1)


@app.callback(invoke_without_command=True)
def version(
    ctx: typer.Context,
    show_version: Annotated[bool, typer.Option("--version", help="Print the version")] = False,
) -> None:
    """Measures the social tilt of vision-language models."""
    if show_version:
        print(f"tiltmeter {__version__}")
        raise typer.Exit
    if ctx.invoked_subcommand is None:
        print(ctx.get_help())


app.command(epilog="Example:  tiltmeter words tiltmeter-runs/001 --category Occupation")(words)
app.command(epilog="Example:  tiltmeter compare before after --fail-on worse")(compare)
app.command(epilog="Example:  tiltmeter frontier testbed:dual -a shape --out swept")(frontier)
app.command(epilog="Example:  tiltmeter explore tiltmeter-runs/001 --show-images")(explore)
app.command(epilog="Example:  tiltmeter report tiltmeter-runs/001 --figures figures")(report)
app.command(epilog="Example:  tiltmeter card tiltmeter-runs/001 --out README.md")(card)
app.command(epilog="Example:  tiltmeter bundle tiltmeter-runs/001 --out 001.tiltmeter.zip")(bundle)
app.command(epilog="Example:  tiltmeter verify 001.tiltmeter.zip")(verify)


def main() -> None:
    """Runs the command line; what the user can put right ends with one line and exit code 2."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal that knows ASCII only
    # a sentence for whoever sits at the terminal, without our line of code
    warnings.formatwarning = lambda message, *_, **__: f"warning: {message}\n"
    try:
        app()
    except TiltmeterError as error:
        _fail(str(error))
    except OSError as error:
        _fail(f"{error.filename or 'a file'}: {error.strerror or error}")


def _fail(message: str) -> None:
    from rich.console import Console
    from rich.text import Text

    from tiltmeter.pages.text import printable

    told = Text.assemble(("error: ", "bold red"), printable(message))
    Console(stderr=True, soft_wrap=True).print(told)
    sys.exit(2)
