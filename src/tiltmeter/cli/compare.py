"""The command `compare`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from tiltmeter.cli import options as common
from tiltmeter.cli.help import COMPUTE, GATE, OUTPUT, STATISTICS
from tiltmeter.cli.options import option


def compare(
    before: Annotated[Path, typer.Argument(metavar="BEFORE", help="Directory of a saved audit")],
    after: Annotated[Path, typer.Argument(metavar="AFTER", help="Saved audit on the same images")],
    fail_on: Annotated[
        str | None,
        option(
            "--fail-on",
            "worse",
            "Exit with code 1 if an answer is worse; or only one question: "
            "association, retrieval, harms, utility, stereotypes, propagation, refusals, pronouns, "
            "descriptions; without it, changes are only reported",
            GATE,
        ),
    ] = None,
    limits: Annotated[
        list[str] | None,
        option(
            "--max",
            "LIMIT",
            "Exit with code 1 if a value of AFTER exceeds it, such as "
            r"'lift\[gender] < 1.25'; repeatable",
            GATE,
        ),
    ] = None,
    margin: Annotated[
        float,
        option(
            "--margin",
            "P",
            "Tolerated change. 0.1: 10% of log lift, .05 of MaxSkew, 1 point of harms and utility",
            GATE,
        ),
    ] = 0.10,
    bootstraps: Annotated[
        int,
        option("--bootstraps", "N", "Bootstrap resamples for intervals", STATISTICS),
    ] = 400,
    seed: common.Seed = 0,
    store: Annotated[
        Path | None,
        option("--store", "DIR", "Where the embeddings are, if they were moved", COMPUTE),
    ] = None,
    markdown: Annotated[
        str | None,
        option("--markdown", "FILE", "Also write Markdown; - prints only that", OUTPUT),
    ] = None,
    as_json: common.Json = False,
) -> None:
    """Compare two runs; fail a build that got worse.

    Tests association, retrieval, harms and utility; of runs with these probes, stereotypes,
    propagation, refusals, pronouns and descriptions. The chance of any false "worse" over all
    tests is at most 5%.

    Exit codes: 0 passed, 1 worse or a limit exceeded, 2 usage error or runs that cannot be
    compared, 3 nothing could be tested.
    """
    from tiltmeter.judge.gate import Limit, gate
    from tiltmeter.judge.gate import compare as run_compare
    from tiltmeter.judge.gate.decision import check_fail_on
    from tiltmeter.pages.terminal import gate as terminal
    from tiltmeter.results import Run

    parsed = [Limit.parse(limit) for limit in limits or ()]  # a typo fails before the work
    check_fail_on(fail_on or "never")
    run = Run.load(after)
    comparison = run_compare(
        Run.load(before),
        run,
        margin=margin,
        bootstraps=bootstraps,
        seed=seed,
        store=store,
    )
    decision = None
    if parsed or fail_on or not comparison.tested:
        decision = gate(run, comparison, fail_on=fail_on or "never", max=parsed)
    if markdown is not None:
        page = terminal.markdown(comparison, decision)
        if markdown == "-":
            print(page, end="")
        else:
            Path(markdown).write_text(page, encoding="utf-8")
    if as_json:
        print(json.dumps(terminal.summary(comparison, decision), indent=2))
    elif markdown != "-":
        terminal.comparison(comparison, decision)
    if decision is not None and not decision:
        raise typer.Exit(3 if decision.untested else 1)
