"""Attacked images against redrawn ones, on the testbed: `python -m benchmarks.counterfactual`.

Prints the two tables of docs/probes/counterfactual.md and draws their figure: what the
true counterfactual finds of the planted bias, and what an attack finds of that, by its size.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from scipy.stats import spearmanr

import tiltmeter as tm
from benchmarks.cards import line, short
from tiltmeter.pages.calibration.plots import BLUE, GREY, ORANGE
from tiltmeter.testbed.language import HUES
from tiltmeter.testbed.oracle import Oracle, figure_mask, shape_mask
from tiltmeter.testbed.world import World

MODELS = ("fusion", "stream")
IMAGES = 112
EPSILONS = (2, 4, 8, 12, 16, 24, 32)
SHOWN = 16  # the epsilon whose words are drawn
FIGURE = Path(__file__).parents[1] / "docs" / "probes" / "figures" / "attack.svg"
SOFTMAX = "vocabulary"


def measured(model: str, **options: Any) -> tm.Run:
    """The probe's rows, without the tests that no table shows."""
    given = {"softmax": SOFTMAX, "images": 0, "curve": (0.0,), **options}
    return tm.audit(
        f"testbed:{model}", f"testbed:?images={IMAGES}", probes=["counterfactual"],
        options={"counterfactual": given}, permutations=49, bootstraps=20,
    )  # fmt: skip


def by_target(run: tm.Run, metric: str, source: str) -> dict[str, float]:
    rows = run.where(metric=metric, experiment=f"{source}, {SOFTMAX}", template=None)
    return {row["target"]: np.nan if row["value"] is None else row["value"] for row in rows}


def one(run: tm.Run, metric: str, experiment: str, **where: Any) -> float:
    found = [row["value"] for row in run.where(metric=metric, experiment=experiment, **where)]
    return float(np.mean(found))


def posterior(targets: list[str]) -> np.ndarray:
    """bias_V of a perfect model, whose images show all of the bias concept or none of it."""
    world = World.plant(1.0)
    scenes = tm.load_data(f"testbed:?images={IMAGES}", role="faces").images
    other, text = scenes.redrawn(shape=1 - scenes.shape), shape_mask(scenes.shape)
    among = np.array([world.index(target) for target in targets])
    oracle = Oracle(world)
    p = [oracle.posterior(image=figure_mask(s), text=text, among=among) for s in (scenes, other)]
    return (np.where(scenes.shape == 0, -1, 1)[:, None] * (p[1] - p[0])).mean(axis=0)


def redrawn(true: dict[str, tm.Run]) -> None:
    """The first table: the true counterfactual against the posterior, and in the fair twin."""
    head = ["model", "Spearman of `bias_V` by target with the posterior's"]
    head += ["mean absolute `bias_VL`, `bias_V`, `bias_L`", "the same in the fair twin"]
    print(line(head), "|---" * len(head) + "|", sep="\n")
    for model, run in true.items():
        lean = by_target(run, "bias_V", "redrawn")
        rho = spearmanr(list(lean.values()), posterior(list(lean))).statistic
        sizes = [
            ", ".join(
                short(np.mean(np.abs(list(by_target(r, f"bias_{m}", "redrawn").values()))), 4)
                for m in ("VL", "V", "L")
            )
            for r in (run, measured(f"{model}?twin=fair", source="redrawn"))
        ]
        print(line([f"`{model}`", short(rho, 3), *sizes]), flush=True)


def attacked(true: dict[str, tm.Run]) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The second table, by size of the attack; what the figure shows of it."""
    head = ["model", "epsilon", "flipped", "8 bits", "by noise", "log-odds moved", "undefined"]
    head += ["`bias_V` rank", "`bias_V` size", "log shift rank", "log shift slope"]
    print("", line(head), "|---" * len(head) + "|", sep="\n")
    curve, words = [], []
    for model, run in true.items():
        truth = by_target(run, "bias_V", "redrawn")
        for epsilon in EPSILONS:
            step = epsilon / 4
            found = measured(model, source="adversarial", epsilon=float(epsilon), step=step)
            rate = {row["experiment"]: row["value"] for row in found.where(metric="flip_rate")}
            lean = by_target(found, "bias_V", "adversarial")
            a, b = np.array(list(lean.values())), np.array([truth[word] for word in lean])
            known = ~np.isnan(a)
            rows = found.where(metric="bias_V", template=None)
            undefined = np.mean([r["n_undefined"] / (r["n"] + r["n_undefined"]) for r in rows])
            rank, size = ("-", "-")
            if known.all():
                rank = short(spearmanr(a, b).statistic, 2)
                size = f"{np.abs(a).mean() / np.abs(b).mean():.2f}"
            shift = [
                one(found, f"shift_{kind}", "adversarial against redrawn")
                for kind in ("spearman", "slope")
            ]
            rates = [rate[x] for x in ("adversarial", "adversarial, 8 bits", "noise")]
            moved = one(found, "odds_shift", "adversarial")
            cells = [f"{x:.2f}" for x in (*rates, moved, undefined)]
            print(line([f"`{model}`", f"{epsilon}/255", *cells, rank, size,
                        f"{shift[0]:.2f}", f"{shift[1]:.2f}"]), flush=True)  # fmt: skip
            curve += [
                {"model": model, "epsilon": epsilon, "flipped": rates[0], "by": "attack"},
                {"model": model, "epsilon": epsilon, "flipped": rates[2], "by": "noise"},
            ]
            if epsilon == SHOWN:
                words += [
                    {"model": model, "word": word, "true": y, "attacked": x}
                    for word, x, y in zip(lean, a, b, strict=True)
                ]
    return curve, words


def draw(curve: list[dict[str, Any]], words: list[dict[str, Any]]) -> None:
    """Flip rates over epsilon, and bias_V by word, attacked over true."""
    import altair as alt

    colour = alt.Color("model:N", title=None, scale=alt.Scale(range=[BLUE, ORANGE]),
                       legend=alt.Legend(orient="top"))  # fmt: skip
    lines = (
        alt.Chart(alt.InlineData(values=curve))
        .mark_line(point=alt.OverlayMarkDef(size=30))
        .encode(
            x=alt.X("epsilon:Q", title="epsilon, grey levels of 255"),
            y=alt.Y("flipped:Q", title="share of images flipped"),
            color=colour,
            strokeDash=alt.StrokeDash(
                "by:N", title=None, legend=alt.Legend(orient="top", symbolType="stroke")
            ),
        )
    )
    most = max(max(abs(one["true"]), abs(one["attacked"])) for one in words)
    diagonal = alt.InlineData(values=[{"x": -most, "y": -most}, {"x": most, "y": most}])
    cloud = (
        alt.Chart(alt.InlineData(values=words))
        .mark_point(opacity=0.7)
        .encode(
            x=alt.X("true:Q", title="bias_V, redrawn"),
            y=alt.Y("attacked:Q", title=f"bias_V, attacked by {SHOWN}/255"),
            color=colour,
            shape=alt.Shape("model:N", legend=None),
        )
    )
    equal = alt.Chart(diagonal).mark_line(color=GREY, strokeDash=[2, 2]).encode(x="x:Q", y="y:Q")
    frame = {"width": 300, "height": 220}
    chart = alt.hconcat(lines.properties(**frame), alt.layer(equal, cloud).properties(**frame))
    styled = chart.configure(aria=False).configure_axis(grid=False).configure_view(stroke=None)
    FIGURE.parent.mkdir(exist_ok=True)
    styled.save(str(FIGURE))


def main() -> None:
    true = {model: measured(model, source="redrawn") for model in MODELS}
    redrawn(true)
    draw(*attacked(true))
    print(f"\n{IMAGES} figures of {len(HUES)} hues; drawn: {FIGURE.name}")


if __name__ == "__main__":
    main()
