"""Lift against its planted truth, on trained models: `python -m benchmarks.lift_on_testbed dual`.

For each attribute: slope and Spearman of lift against the truth, words above .3 nats that are
found (power), words planted at 1.5 x ln 1.25 or more that are called no larger (wrong), and of the
fair twin the share of words with p_word < .05 over all seeds, the same of single words (neutral
words of the testbed are single words, and heads vary more on phrases), and the words called
associated.
"""

from __future__ import annotations

import argparse
from typing import Any

import numpy as np
from scipy.stats import spearmanr

import tiltmeter as tm
from benchmarks.lift_on_faces import interval
from tiltmeter.results import Run
from tiltmeter.stats.lift_verdict import ASSOCIATED, NO_LARGER, RULE

LARGE = 0.3  # nats


def audited(spec: str, seed: int, options: argparse.Namespace) -> Run:
    """Lift of one model on images of its own."""
    return tm.audit(
        spec,
        f"testbed:?images={options.images}&seed={seed}",
        probes=["lift"],
        words=options.words,
        attributes=options.attributes,
        cross=["shape*hue"] if options.cross else [],
        bootstraps=20,
        seed=seed,
        device=options.device,
        options={
            "lift": {
                "scores": options.scores,
                "splits": 50,
                "masked_images": options.per_cell,
                "matched_images": options.per_cell,
                "matched_neutral": options.neutral,
            }
        },
    )


def words_of(run: Run, attribute: str, experiment: str) -> list[dict[str, Any]]:
    """Rows of words."""
    found = run.where(metric="lift", attribute=attribute, experiment=experiment)
    return [row for row in found if row["concept"]]


def biased_part(rows: list[dict[str, Any]]) -> tuple[float, ...]:
    """Slope, Spearman, power, and words that are wrongly called no larger."""
    known = [row for row in rows if row["truth"] is not None]
    value, truth = (np.array([row[name] for row in known]) for name in ("value", "truth"))
    planted: dict[str, float] = {}
    for row in known:
        planted[row["concept"]] = max(planted.get(row["concept"], 0.0), abs(row["truth"]))
    verdicts = {row["concept"]: row["verdict"] for row in rows if row["verdict"]}

    def share(least: float, verdict: str) -> float:
        return float(np.mean([verdicts[word] == verdict for word, size in planted.items()
                              if size > least]))  # fmt: skip

    return (
        float(np.polyfit(truth, value, 1)[0]),
        float(spearmanr(truth, value).statistic),
        share(LARGE, ASSOCIATED),
        share(1.5 * RULE.smallest, NO_LARGER),
    )


def share_below(rows: list[dict[str, Any]]) -> str:
    """Share of words that stand out among neutral words, with its interval."""
    return interval(sum(row["p_placebo"] < 0.05 for row in rows), len(rows))


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("kind", choices=("dual", "fusion", "stream"))
    parser.add_argument("--scores", default="contrastive")
    parser.add_argument("--words", default="sobit")
    parser.add_argument("--images", type=int, default=2800)
    parser.add_argument("--per-cell", type=int, default=50, help="of masked and matching heads")
    parser.add_argument("--neutral", type=int, default=RULE.neutral_words, help="of matching heads")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--attributes", nargs="+", default=["shape", "hue"])
    parser.add_argument("--no-cross", dest="cross", action="store_false")
    options = parser.parse_args()
    runs = {
        twin: [audited(f"testbed:{options.kind}{twin}", seed, options)
               for seed in range(options.seeds)]
        for twin in ("", "?twin=fair")
    }  # fmt: skip
    shown = [*options.attributes, *(["shape*hue"] if options.cross else [])]
    print("words | attribute | slope | Spearman | power | wrong | "
          "fair: p_word < .05 | single words | associated")  # fmt: skip
    for experiment in sorted({row["experiment"] for row in runs[""][0].where(metric="lift")}):
        for attribute in shown:
            if not any(
                row["value"] is not None for row in words_of(runs[""][0], attribute, experiment)
            ):
                print(f"{experiment} | {attribute} | too few images of each group")
                continue
            by_seed = [biased_part(words_of(run, attribute, experiment)) for run in runs[""]]
            fair = [row for run in runs["?twin=fair"]
                    for row in words_of(run, attribute, experiment) if row["verdict"]]  # fmt: skip
            single = [row for row in fair if " " not in row["concept"]]
            found = sum(row["verdict"] == ASSOCIATED for row in fair)
            numbers = " | ".join(f"{x:.3f}" for x in np.mean(by_seed, axis=0))
            print(
                f"{experiment} | {attribute} | {numbers} | {share_below(fair)} | "
                f"{share_below(single)} | {found}",
                flush=True,
            )


if __name__ == "__main__":
    main()
