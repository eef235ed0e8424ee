"""The main results of a run in an experiment tracker: MLflow or Weights & Biases.

Both are imported only when needed, and write to where their own settings point
(MLFLOW_TRACKING_URI; WANDB_MODE, WANDB_DIR). Results, arguments and the card's section are
logged; no embeddings, no ids of images.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from contextlib import nullcontext
from importlib import import_module
from typing import Any

from tiltmeter.errors import MissingError, TiltmeterError
from tiltmeter.results import Run
from tiltmeter.sharing.card import headline, section

CARD = "tiltmeter.md"
LONGEST = 250  # letters of a name or a value that every tracker takes
_OTHER = re.compile(r"[^\w\-./ ]+", re.ASCII)


def metrics(run: Run) -> dict[str, float]:
    """Main results with interval and null, by names that trackers take.

    >>> from tiltmeter.results import rows
    >>> metrics(Run(rows(1, probe="ranking", metric="max_skew", dataset="fairface", k=100,
    ...                  attribute="race*gender", value=[0.5], null_high=0.2)))
    {'fairface/race_gender/max_skew_100': 0.5, 'fairface/race_gender/max_skew_100.null_high': 0.2}
    """
    found: dict[str, float] = {}
    for row in headline(run):
        metric = row["metric"] + (f"_{row['k']}" if row["k"] else "")
        metric += f"_{row['experiment']}" if row["experiment"] else ""
        parts = [_OTHER.sub("_", str(part))[:60].strip("/. ") for part in
                 (row["dataset"], row["attribute"], metric) if part]  # fmt: skip
        name = again = "/".join(part or "_" for part in parts)
        number = 1
        while again in found:  # labels that differ in signs only
            number += 1
            again = f"{name}_{number}"
        found[again] = row["value"]
        for column in ("ci_low", "ci_high", "null_low", "null_high", "p"):
            if row[column] is not None:
                found[f"{again}.{column}"] = row[column]
    return found


def settings(run: Run) -> dict[str, str]:
    """Model, data and arguments, as short texts."""
    meta = run.meta.get("panel", [run.meta])[0]
    arguments = meta.get("arguments") or {}
    found = {**arguments.get("defaulted", {}), **arguments.get("given", {})}
    found["model"] = (meta.get("model") or {}).get("name")
    found["weights"] = (meta.get("model") or {}).get("weights")
    found["tiltmeter"] = (meta.get("versions") or {}).get("tiltmeter")
    for role, one in (meta.get("data") or {}).items():
        found[f"data.{role}"] = one.get("name")
    return {name: str(value)[:LONGEST] for name, value in sorted(found.items())
            if value is not None}  # fmt: skip


def to_mlflow(run: Run) -> str:
    """Logs to MLflow, into the active run or a new one; returns the run's id."""
    mlflow = _imported("mlflow", "--mlflow")
    try:
        active = mlflow.active_run()
        with nullcontext(active) if active else mlflow.start_run(run_name=_title(run)) as made:
            mlflow.log_params({_OTHER.sub("_", name): one for name, one in settings(run).items()})
            mlflow.log_metrics(metrics(run))
            mlflow.log_text(section(run), CARD)
            return str(made.info.run_id)
    except mlflow.exceptions.MlflowException as error:
        raise TiltmeterError(f"MLflow did not take the run: {error}") from None


def to_wandb(run: Run) -> str:
    """Logs to Weights & Biases, as a run of the project `tiltmeter`; returns the run's id."""
    wandb = _imported("wandb", "--wandb")
    columns = ["dataset", "attribute", "metric", "k", "value", "ci_low", "ci_high", "null_low",
               "null_high", "p", "n", "convention"]  # fmt: skip
    listed = [[_cell(row, name) for name in columns] for row in headline(run)]
    found: dict[str, Any] = {"config": settings(run), "job_type": "audit"}
    try:
        with wandb.init(project="tiltmeter", name=_title(run), **found) as made:
            made.log({"headline": wandb.Table(columns=columns, data=listed)})
            made.summary.update(metrics(run))
            return str(made.id)
    except wandb.errors.Error as error:
        raise TiltmeterError(f"Weights & Biases did not take the run: {error}") from None


def _cell(row: Mapping[str, Any], name: str) -> Any:
    return str(row[name])[:LONGEST] if isinstance(row[name], str) else row[name]


def _title(run: Run) -> str:
    return f"audit of {settings(run).get('model', 'a model')}"[:LONGEST]


def _imported(package: str, option: str) -> Any:
    try:
        return import_module(package)
    except ImportError as error:
        if (error.name or "").partition(".")[0] != package:
            raise
        raise MissingError(option, package) from None
