"""Corrections that learn from labels, and re-rankers, on the built-in model.

    python -m benchmarks.label_maps

Each is fitted for shape on 1,400 figures and judged on 1,400 that it has not seen, as in
`benchmarks.text_maps`; beside that, how often a linear probe (fitted on corrected vectors of the
first, asked about the others) tells the shape: 0.5 is chance. Re-rankers change no vector: only
what they show is measured.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np

from benchmarks.text_maps import ATTRIBUTES, HELD_OUT, MODEL, arrow, measured, noise
from tiltmeter.datasets import load_data
from tiltmeter.debiasers.debiaser import Reranker
from tiltmeter.debiasers.fitting import debias
from tiltmeter.debiasers.learners import linear_probe, scale_of
from tiltmeter.metrics.ranking import max_of, skew_of_shares
from tiltmeter.models import load_model
from tiltmeter.testbed.captions import concept_captions
from tiltmeter.testbed.world import World

FITTED, K = "testbed:?images=1400&seed=1", 100


def methods(world: World) -> dict[str, tuple[str, dict[str, Any]]]:
    return {
        "leace": ("leace", {}),
        "leace, shrink=0.001": ("leace", {"shrink": 1e-3}),
        "sfid": ("sfid", {}),
        "sfid, dims=0.5": ("sfid", {"dims": 0.5}),
        "inlp": ("inlp", {}),
        "inlp, rounds=1": ("inlp", {"rounds": 1}),
        "spd": ("spd", {}),
        "transport": ("transport", {}),
        "transport, clusters=1": ("transport", {"clusters": 1}),
        "fairerclip": ("fairerclip", {}),
        "fairerclip, tau=0.9": ("fairerclip", {"tau": 0.9}),
        "fairerclip, targets: all captions": (
            "fairerclip",
            {"targets": list(concept_captions().values())},
        ),
        "pbm": ("pbm", {}),
        "mpr": ("mpr", {}),
        "mpr, rho=0.2": ("mpr", {"rho": 0.2}),
    }


def shown(made: Any, world: World, faces: Any) -> dict[str, np.ndarray]:
    """MaxSkew of what a re-ranker shows, word by word."""
    lean = np.array([not concept.placebo for concept in world.concepts])
    images = np.asarray(made.encode_images(faces.images))
    scores = np.asarray(made.encode_texts(list(concept_captions().values())))[lean] @ images.T
    top = made.reordering(faces)(scores, K, None, images)
    found = {}
    for name in ATTRIBUTES:
        groups = faces.attribute(name)
        size = len(groups.names)
        p = np.array([np.bincount(row, minlength=size) for row in groups.codes[top]]) / K
        found[f"MaxSkew, {name}"] = max_of(skew_of_shares(p, groups.shares, k=K, empty="bounded"))
    return found


def told(model: Any, fitted: Any, faces: Any) -> float:
    """How often a linear probe tells the shape of other figures."""
    x, others = (np.asarray(model.encode_images(one.images), float) for one in (fitted, faces))
    middle, scale = x.mean(axis=0), scale_of(x)
    probe = linear_probe((x - middle) / scale, fitted.groups["shape"].codes)
    return float((probe.predict((others - middle) / scale) == faces.groups["shape"].codes).mean())


def main() -> None:
    model = load_model(MODEL, device="cpu")
    fitted, faces = (load_data(one, role="faces") for one in (FITTED, HELD_OUT))
    world = World.plant(model.provenance["strength"])
    before, icons = measured(model, world, faces)
    print(f"| method | {' | '.join(before)} | probe tells shape | icons | seconds |")
    print("|---" * (len(before) + 4) + "|")
    line = " | ".join(f"{x.mean():.3f}" for x in before.values())
    print(f"| before | {line} | {told(model, fitted, faces):.3f} | {icons:.3f} | |")
    floor = noise(faces, len(next(iter(before.values()))))
    print(f"| at random | {' | '.join(floor.get(name, '') for name in before)} | | | |")
    for label, (method, settings) in methods(world).items():
        made = debias(method, MODEL, FITTED, attribute="shape", settings=settings, device="cpu")
        seconds = made.record["seconds"]
        if isinstance(made.debiaser, Reranker):
            started = time.perf_counter()
            after, rest = shown(made, world, faces), " | "
            seconds = time.perf_counter() - started
        else:
            after, icons = measured(made, world, faces)
            rest = f"{told(made, fitted, faces):.3f} | {icons:.3f}"
        line = " | ".join(
            f"{after[name].mean():.3f}{arrow(before[name], after[name])}" if name in after else ""
            for name in before
        )
        print(f"| {label} | {line} | {rest} | {seconds:.1f} |", flush=True)


if __name__ == "__main__":
    main()
