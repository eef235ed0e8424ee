"""The command `audit`."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tiltmeter.cli import options as common
from tiltmeter.cli.completion import completion_of
from tiltmeter.cli.config import config_option, printed
from tiltmeter.cli.help import COMPUTE, DATA, OUTPUT, PROBES, WORDS
from tiltmeter.cli.options import flag, option
from tiltmeter.cli.parsing import check_new, data_roles, next_run, probe_options, server_specs
from tiltmeter.cli.progress import progress_bar
from tiltmeter.errors import EXPECTED, InputError, TiltmeterError, reason

if TYPE_CHECKING:
    from tiltmeter.auditing.options import AuditKeywords
    from tiltmeter.results import Run
    from tiltmeter.types import Progress


def audit(
    ctx: typer.Context,
    models: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="MODEL",
            help="hf:NAME, embeddings:DIR, ... (tiltmeter list models)",
            show_default="testbed:fusion, the built-in model",
            autocompletion=completion_of("models"),
        ),
    ] = None,
    images: Annotated[
        list[str] | None,
        option(
            "--images",
            "SPEC",
            "Images with group labels: fairface:DIR, ...; repeatable",
            DATA,
            complete="datasets",
        ),
    ] = None,
    data: Annotated[
        list[str] | None,
        option("--data", "ROLE=SPEC", "Other data: captions=..., utility=...; repeatable", DATA),
    ] = None,
    attribute: common.Attributes = None,
    cross: common.Cross = None,
    strict: common.Strict = False,
    limit: Annotated[
        int | None,
        option("--limit", "N", "Audit N of the images, drawn at random", DATA, min=1),
    ] = None,
    unseen: Annotated[
        list[Path] | None,
        option(
            "--unseen",
            "DIR",
            "Leave out images this debiased model was fitted on; repeatable",
            DATA,
        ),
    ] = None,
    thorough: Annotated[
        bool, flag("--thorough", "Use the built-in data in full size; takes a few minutes", DATA)
    ] = False,
    words: common.WordList = None,
    placebo: Annotated[
        str | None,
        option(
            "--placebo", "NAME|FILE", "Neutral words to compare with", WORDS, complete="stimuli"
        ),
    ] = None,
    template: Annotated[
        list[str] | None,
        option("--template", "TEXT", "Such as 'a photo of a {}'; repeatable", WORDS),
    ] = None,
    articles: Annotated[
        str | None,
        option(
            "--articles",
            "adjusted|written",
            "Write an before a vowel sound, or leave articles as written",
            WORDS,
            default="as the word list says",
        ),
    ] = None,
    classes: Annotated[
        str | None,
        option("--classes", "NAME|FILE", "Classes for the probe harms", WORDS),
    ] = None,
    probe: Annotated[
        list[str] | None,
        option(
            "--probe -p",
            "NAME",
            "Probe to run; repeatable",
            PROBES,
            default="all that can run",
            complete="probes",
        ),
    ] = None,
    option: Annotated[
        list[str] | None,
        option("--option", "PROBE.NAME=VALUE", "Option of a probe; repeatable", PROBES),
    ] = None,
    convention: common.ConventionName = "tiltmeter",
    k: common.TopK = None,
    permutations: common.AuditPermutations = None,
    bootstraps: common.AuditBootstraps = None,
    seed: common.Seed = 0,
    store: common.StorePlace = None,
    device: common.Device = "auto",
    precision: common.Precision = "auto",
    batch_size: Annotated[
        int | None,
        option(
            "--batch-size", "N", "Images embedded together", COMPUTE, min=1, default="by device"
        ),
    ] = None,
    engine: common.EngineName = "local",
    trust_remote_code: common.TrustRemoteCode = False,
    allow_upload: Annotated[
        bool,
        flag("--allow-upload", "Let images leave this machine for an openai: server", COMPUTE),
    ] = False,
    max_requests: Annotated[
        int | None,
        option("--max-requests", "N", "Send no more requests to an openai: server", COMPUTE, min=1),
    ] = None,
    out: Annotated[
        Path | None,
        option(
            "--out -o",
            "DIR",
            "Directory to save the run in",
            OUTPUT,
            default="tiltmeter-runs/001, ...",
        ),
    ] = None,
    force: common.Force = False,
    name: Annotated[
        str | None,
        option("--name", "TEXT", "Name of the model in tables and report", OUTPUT, default="own"),
    ] = None,
    data_name: Annotated[
        str | None,
        option("--data-name", "TEXT", "Name of the images", OUTPUT, default="their own"),
    ] = None,
    with_report: Annotated[
        bool, flag("--report/--no-report", "Write report.html into the run", OUTPUT)
    ] = True,
    keep_vectors: Annotated[
        bool,
        flag("--vectors/--no-vectors", "Keep embeddings, for compare and explore", OUTPUT),
    ] = True,
    config: Annotated[Path | None, config_option()] = None,
    print_config: Annotated[
        bool, flag("--print-config", "Check and print these options, and stop", OUTPUT)
    ] = False,
    verbose: Annotated[bool, flag("--verbose", "Print the tables of every probe", OUTPUT)] = False,
    quiet: Annotated[bool, flag("--quiet -q", "Print the path of the report only", OUTPUT)] = False,
    as_json: common.Json = False,
) -> None:
    """Measure the social bias of one or more models."""
    from tiltmeter.auditing.check import check_audit
    from tiltmeter.auditing.options import AuditOptions
    from tiltmeter.cli.report import write_run_report
    from tiltmeter.judge.panel import panel
    from tiltmeter.pages import terminal
    from tiltmeter.pages.terminal.audit_summary import closing

    own = [spec for spec in images or () if not spec.startswith("testbed:")]
    if own and not models:
        raise InputError(
            "name the model to audit on these images, such as tiltmeter audit "
            f"hf:openai/clip-vit-base-patch32 --images {shlex.quote(own[0])} (tiltmeter list "
            "models); the built-in model knows only the images of the testbed",
            code="bad-option",
            value=own[0],
        )
    place = out or next_run()
    check_new(place, force=force)
    models = server_specs(
        models or ["testbed:fusion"], allow_upload=allow_upload, max_requests=max_requests
    )
    datasets: list[str | None] = [*images] if images else [None]
    pairs = list(product(models, datasets))
    if name is not None and len(pairs) > 1:
        raise InputError(
            "--name names one model on one dataset; audit them one by one",
            code="bad-option",
            value=name,
        )
    keywords: AuditKeywords = {
        "data": data_roles(data or ()),
        "attributes": attribute,
        "cross": cross or (),
        "strict": strict,
        "unseen": [str(place) for place in unseen or ()],
        "limit": limit,
        "thorough": thorough,
        "words": words,
        "placebo": placebo,
        "templates": template,
        "articles": articles,
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
        "batch_size": batch_size,
        "trust_remote_code": trust_remote_code,
        "keep_vectors": keep_vectors,
        "name": name,
        "data_name": data_name,
    }
    if print_config or len(pairs) > 1:  # a mistake in the last pair costs no work on the first
        for model, faces in pairs:
            check_audit(model, faces, AuditOptions.of(**keywords))
    if print_config:
        print(printed(ctx, models=models, cross=cross), end="")
        return
    with progress_bar(quiet=as_json or quiet) as progress:
        outcome = _audit_all(pairs, keywords, progress)
        run = outcome.runs[0] if len(outcome.runs) == 1 else panel(outcome.runs, seed=seed)
        if outcome.failed:
            run.meta["failed"] = {**run.meta.get("failed", {}), **outcome.failed}
        run.meta.setdefault("environment", {})["place"] = str(place)
        progress("writing results and report", 0.99)
        run.save(place, replace=force)
        page, why_not = write_run_report(run, place) if with_report else (None, "")
    if as_json:
        files = {"out": str(place), "report": page and str(page)}
        print(json.dumps({**files, **terminal.summary(run)}, indent=2))
    else:
        if verbose and not quiet:
            terminal.tables(outcome.runs, run)
        closing(run, place, page, quiet=quiet)
    if outcome.bugs:
        raise outcome.bugs[0]
    if why_not:
        raise TiltmeterError(f"no report was written: {why_not} (the results are kept in {place})")
    if failed := run.meta.get("failed"):
        reasons = "; ".join(f"{name} failed: {why}" for name, why in failed.items())
        raise TiltmeterError(
            f"{reasons} (the other results are kept in {place})",
            code="probe-failed",
            value=list(failed),
        )


@dataclass(frozen=True)
class _Outcome:
    """Audits of all models on all images: one that fails does not lose the others."""

    runs: list[Run] = field(default_factory=list)
    failed: dict[str, str] = field(default_factory=dict)  # audits without any result: the reason
    bugs: list[BaseException] = field(default_factory=list)


def _audit_all(
    pairs: list[tuple[str, str | None]], keywords: AuditKeywords, progress: Progress
) -> _Outcome:
    from tiltmeter.auditing.audit import audit as run_audit
    from tiltmeter.results import ProbeFailedError

    outcome = _Outcome()
    for model, faces in pairs:
        try:
            outcome.runs.append(run_audit(model, faces, progress=progress, **keywords))
            continue
        except ProbeFailedError as error:
            outcome.runs.append(error.run)
            cause = error.__cause__ or error
        except Exception as error:
            if not outcome.runs:  # nothing to keep
                raise
            name = f"the audit of {model}" + (f" on {faces}" if faces else "")
            outcome.failed[name] = reason(error)
            cause = error
        if not isinstance(cause, EXPECTED):
            outcome.bugs.append(cause)
    return outcome
