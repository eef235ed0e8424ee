"""The command `plan`."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Annotated

from tiltmeter.cli import options as common
from tiltmeter.cli.help import COST, STATISTICS, WORDS
from tiltmeter.cli.options import option
from tiltmeter.cli.progress import progress_bar
from tiltmeter.errors import InputError


def plan(
    images: common.Images = None,
    attribute: common.Attributes = None,
    cross: common.Cross = None,
    words: Annotated[
        int,
        option("--words", "N", "Number of words in the audit", WORDS, min=1),
    ] = 400,
    convention: common.ConventionName = "tiltmeter",
    k: common.TopK = None,
    power: Annotated[
        float,
        option("--power", "P", "Probability of detecting the effect", STATISTICS),
    ] = 0.8,
    seed: common.Seed = 0,
    scale: Annotated[
        float | None,
        option("--scale", "N", "Estimate hours and bytes for N images and captions", COST),
    ] = None,
    model: Annotated[
        str | None,
        option(
            "--model",
            "SPEC",
            "Model whose speed is measured on this machine",
            COST,
            complete="models",
        ),
    ] = None,
    rate: Annotated[
        float | None,
        option("--rate", "N", "Images per second of one worker", COST),
    ] = None,
    workers: Annotated[
        int,
        option("--workers", "N", "Number of workers", COST),
    ] = 1,
    shard: Annotated[
        int | None,
        option("--shard", "N", "Images per shard", COST, min=1, default="by layout"),
    ] = None,
    bandwidth: Annotated[
        float,
        option("--bandwidth", "N", "Bytes per second that a worker can read", COST, min=1.0),
    ] = 1.25e9,
    dimensions: Annotated[
        int,
        option("--dimensions", "N", "Dimensions of an embedding", COST, min=1),
    ] = 512,
    device: common.Device = "auto",
    as_json: common.Json = False,
) -> None:
    """Estimate an audit's power (--images) or its cost (--scale).

    --images: the smallest effect that the audit can detect, for each group.
    --scale: the hours, bytes and memory that it takes, and what would fail first. Without --rate
    and --model, embeddings are there already.
    """
    if scale is not None:
        _show_cost(
            int(scale), model, device, rate, workers, dimensions, texts=words, shard=shard,
            bandwidth=bandwidth, as_json=as_json,
        )  # fmt: skip
        return
    if images is None:
        raise InputError(
            "plan needs --images SPEC (smallest detectable effect) or --scale N (cost)",
            code="bad-option",
        )
    if not 0 < power < 1:
        raise InputError(
            f"--power must be between 0 and 1; got {power}", code="bad-option", value=power
        )
    _show_power(images, attribute, cross, convention, k, words, power, seed, as_json=as_json)


def _show_power(
    images: str,
    attribute: list[str] | None,
    cross: list[str] | None,
    convention: str,
    k: list[int] | None,
    words: int,
    power: float,
    seed: int,
    *,
    as_json: bool,
) -> None:
    from tiltmeter.datasets import load_data
    from tiltmeter.metrics.convention import get_convention
    from tiltmeter.pages import terminal
    from tiltmeter.pages.terminal.audit import left_out
    from tiltmeter.planning.power import plan as make_plan

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
        print(json.dumps([asdict(attribute_plan) for attribute_plan in plans], indent=2))
    else:
        notes = left_out({"data": {"faces": {"name": data.name, **data.provenance}}})
        terminal.plan(
            plans, images=len(data), words=words, power=power, convention=chosen, notes=notes
        )


def _show_cost(
    total: int,
    model: str | None,
    device: str,
    rate: float | None,
    workers: int,
    dimensions: int,
    *,
    texts: int,
    shard: int | None,
    bandwidth: float,
    as_json: bool,
) -> None:
    from tiltmeter.models import load_model
    from tiltmeter.pages import terminal
    from tiltmeter.planning.cost import estimate_cost, limits

    loaded = None if model is None else load_model(model, device=device)
    steps = estimate_cost(
        total, workers=workers, model=loaded, rate=rate, dimensions=dimensions, texts=texts,
        shard=shard,
    )  # fmt: skip
    scarce = limits(steps, total, workers=workers, texts=texts, shard=shard, bandwidth=bandwidth)
    if as_json:
        listed = [{**limit._asdict(), "ratio": limit.ratio} for limit in scarce]
        print(json.dumps({"steps": [asdict(step) for step in steps], "limits": listed}, indent=2))
    else:
        terminal.scale(steps, scarce, total=total, workers=workers)
