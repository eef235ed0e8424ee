"""The command `calibrate`."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

from tiltmeter.cli import options as common
from tiltmeter.cli.help import METHOD, OUTPUT, STATISTICS
from tiltmeter.cli.options import flag, option
from tiltmeter.cli.parsing import numbers
from tiltmeter.cli.progress import progress_bar


def calibrate(
    metric: Annotated[
        list[str] | None,
        option("--metric", "NAME", "Metric; repeatable", METHOD, default="all", complete="metrics"),
    ] = None,
    doses: Annotated[
        str | None,
        option(
            "--doses",
            "0,0.5,1",
            "Strengths of the planted bias",
            METHOD,
            default="nine from 0 to 3",
        ),
    ] = None,
    replicates: Annotated[
        int,
        option("--replicates", "N", "Datasets per dose", STATISTICS),
    ] = 16,
    trained: Annotated[
        bool,
        flag("--trained/--no-trained", "Also test the testbed's trained models", METHOD),
    ] = True,
    matching: Annotated[
        bool,
        flag("--matching", "Also score by the testbed's matching heads: some minutes", METHOD),
    ] = False,
    seed: common.Seed = 0,
    out: Annotated[
        Path | None,
        option("--out -o", "DIR", "Directory for the table, page and figures", OUTPUT),
    ] = None,
    force: common.Force = False,
    as_json: common.Json = False,
) -> None:
    """Test every metric against known bias.

    Reports the dose-response, false-positive rate and power on planted bias, and which metric to
    trust for which question.
    """
    from tiltmeter.judge.calibration import calibrate as run_calibration
    from tiltmeter.judge.calibration.measurement import DOSES
    from tiltmeter.judge.calibration.trained import MATCHING, TRAINED
    from tiltmeter.judge.calibration.trust import which_to_trust
    from tiltmeter.pages import terminal
    from tiltmeter.pages.calibration import pages

    if out is not None:
        pages.check_place(out, replace=force)
    with progress_bar(quiet=as_json) as progress:
        calibration = run_calibration(
            metric,
            doses=DOSES if doses is None else numbers("--doses", doses),
            replicates=replicates,
            seed=seed,
            trained=(TRAINED if trained else ()) + (MATCHING if matching else ()),
            progress=progress,
        )
    missing = None if out is None else pages.save(calibration, out, replace=force)
    if as_json:
        summaries = [asdict(summary) for summary in calibration.summaries]
        trust = [asdict(answer) for answer in which_to_trust(calibration.summaries)]
        result = {"out": out and str(out), "metrics": summaries, "trust": trust}
        print(json.dumps(result, indent=2))
        return
    terminal.calibration(calibration.summaries)
    if out is not None and missing is not None:
        terminal.calibration_saved(out, missing)
