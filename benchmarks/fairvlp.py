"""FairVLP beside what it is compared with, on the built-in model: the paper's Tables 4 and 5.

    python -m benchmarks.fairvlp --device cuda

Every row starts from the same weights and learns as long, from the same captions. Bias is measured
on scenes that no row has seen, with the true counterfactual (the scene drawn again with the other
figure) and by the attack; beside it stands the price.
"""

from __future__ import annotations

import argparse
import copy
import json
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from tiltmeter.datasets.roles import Captions
from tiltmeter.debiasers.fairvlp import FairVLP
from tiltmeter.debiasers.utility_cost import masked_hits, recall
from tiltmeter.metrics.counterfactual import counterfactual_bias, directed_bias
from tiltmeter.models import load_model
from tiltmeter.models.trainable import auxiliary_losses, network_of, set_training_mode
from tiltmeter.probes.counterfactual.sources.adversarial import Attack, attack
from tiltmeter.stimuli import load as load_words
from tiltmeter.testbed.captioned import PAIRS, draw_captioned_scenes, frame_words
from tiltmeter.testbed.captions import concept_captions
from tiltmeter.testbed.language import HUES, SHAPE_NOUNS, TARGET_TEMPLATES
from tiltmeter.testbed.world import World

ROWS = {
    "before": {},
    "vanilla": {"variant": "vanilla"},
    "GS (swapping)": {"variant": "swapping"},
    "DR (dropout)": {"variant": "dropout"},
    "edited pictures": {"variant": "edited"},
    "FairVLP-V": {"variant": "vision"},
    "FairVLP-L": {"variant": "language"},
    "FairVLP": {"variant": "both"},
    "FairVLP, true pictures": {"variant": "both", "images": "edited"},
    "fair twin": {},  # trained in a world without tilt: what this measure finds where there is none
}
KINDS, MODALITIES = ("activities", "occupations"), ("V-L", "V", "L")
PROMPT = "a [MASK] is in the picture"
CELLS = 2  # of a target's icon: enough to guess by, too few to know
SEEN = 6  # of an icon, for recall: with all 16 nothing is left to lose
#: The world's pictures are noisy by 12 grey levels; 8/255, which serves for photographs, flips two
#: figures of three here.
EPSILON, STEP, STEPS = 16 / 255, 4 / 255, 8
TARGETS = 0.5  # share of captions that may speak of a group and a target together
BLOCK, DRAWS = 512, 2000


def probability(
    model: Any, pixels: torch.Tensor, texts: list[str], pieces: np.ndarray
) -> np.ndarray:
    """P([MASK] = the piece of each row), over the whole vocabulary."""
    found = []
    with torch.no_grad():
        for at in range(0, len(texts), BLOCK):
            part = slice(at, at + BLOCK)
            logp = model.mask_logprobs(pixels[part], texts[part])[:, 0].double()
            wanted = torch.as_tensor(pieces[part], device=logp.device)
            found.append(logp.gather(1, wanted[:, None])[:, 0].exp().cpu().numpy())
    return np.concatenate(found)


def bias(
    model: Any, world: World, each: int, *, settings: Attack | None = None, seed: int = 5
) -> dict[str, Any]:
    """Mean |bias| in % over targets and templates; of activities, of occupations and of all.

    `each` scenes of every target, half of them round; the text names the figure that is there. The
    counterfactual is attacked by `settings`, else drawn again.
    """
    rng = np.random.default_rng(seed)
    targets, count = np.repeat(world.targets, each), len(world.targets)
    n, shape = len(targets), np.tile(np.arange(each) % 2, count)
    group = shape * len(HUES) + rng.integers(0, len(HUES), n)
    scenes = world.scenes(n, rng, concept=targets, group=group, cells=CELLS)
    pictures = model.pixels(scenes).to(model.device)
    if settings is not None:
        others = torch.cat([
            attack(model, pictures[at : at + BLOCK], 1 - shape[at : at + BLOCK], words=PAIRS[0],
                   prompt=PROMPT, settings=settings)[0]
            for at in range(0, n, BLOCK)
        ])  # fmt: skip
    else:
        others = model.pixels(scenes.redrawn(shape=1 - scenes.shape)).to(model.device)
    answer = np.array([model.pieces(world.concepts[at].name)[0] for at in targets])
    own, opposite = (np.array([model.pieces(SHAPE_NOUNS[one])[0] for one in which])
                     for which in (shape, 1 - shape))  # fmt: skip
    b_f, b_cf, o_cf = (
        probability(model, x, [PROMPT] * n, word)
        for x, word in ((pictures, own), (others, own), (others, opposite))
    )
    ones, none, undefined = np.ones(n), np.zeros(n), 0
    values: dict[str, list[list[float]]] = {one: [] for one in MODALITIES}
    for template in TARGET_TEMPLATES:
        frame = template.replace("{}", "[MASK]")
        said, swapped = ([frame.replace("{g}", SHAPE_NOUNS[one]) for one in which]
                         for which in (shape, 1 - shape))  # fmt: skip
        factual = probability(model, pictures, said, answer)
        for which, seen, text, before, after in (
            ("V-L", others, swapped, (b_f + 1) / 2, b_cf / 2),
            ("V", others, said, b_f, b_cf),
            ("L", pictures, swapped, ones, none),
        ):
            other = probability(model, seen, text, answer)
            found = counterfactual_bias(factual, other, before, after)
            undefined += int(np.isnan(found).sum())
            values[which].append([
                float(directed_bias(x, r == 0))
                for x, r in zip(found.reshape(count, each), shape.reshape(count, each), strict=True)
            ])  # fmt: skip
    activities = {word.text for word in load_words("activities").words}
    is_activity = np.array([world.concepts[at].name in activities for at in world.targets])
    told: dict[str, Any] = {"undefined": undefined, "flipped": float((o_cf > b_cf).mean())}
    some = {"activities": is_activity, "occupations": ~is_activity, "all": np.ones(count, bool)}
    for label, rows in some.items():
        by_target = {m: np.abs(np.array(v)[:, rows]).mean(axis=0) for m, v in values.items()}
        told[label] = {m: _mean(by_target[m]) for m in MODALITIES}
    told["by target"] = np.abs(np.array(values["V-L"])).mean(axis=0).tolist()
    return told


def _mean(by_target: np.ndarray) -> list[float]:
    """Mean in %, and its 95% interval by a bootstrap over the targets that are defined."""
    known = by_target[~np.isnan(by_target)]
    if not len(known):
        return [float("nan")] * 3
    draws = np.random.default_rng(0).choice(known, (DRAWS, len(known))).mean(axis=1)
    return [100 * float(x) for x in (known.mean(), *np.percentile(draws, [2.5, 97.5]))]


def utility(model: Any, world: World, n: int, seed: int = 6) -> dict[str, float]:
    """Masked accuracy on held-out captions; recall over one scene a concept, its icon in part."""
    rng = np.random.default_rng(seed)
    held = draw_captioned_scenes(world, n, rng)
    hits = masked_hits(model, held, rng=rng, pairs=PAIRS, spared=frame_words())
    concept = np.arange(len(world.concepts))
    scenes = world.scenes(len(concept), rng, concept=concept, cells=SEEN)
    texts = tuple(concept_captions().values())
    known = int((~np.isnan(hits)).sum())
    found = {"masked accuracy": 100 * float(np.nanmean(hits)), "masked n": known}
    ways = recall(model, Captions(tuple(map(str, concept)), texts, concept, scenes))
    for way, table in ways.items():
        for at, k in enumerate((1, 5, 10)):
            found[f"{way} R@{k}"] = 100 * float(np.nanmean(table[:, at]))
    return found


def tuned(model: Any, world: World, steps: int, batch: int, seed: int = 7) -> Any:
    """The model fine-tuned for retrieval by its own contrast and matching, as for Table 5."""
    made = copy.deepcopy(model)
    network = network_of(made)
    set_training_mode(network)
    optimizer = torch.optim.AdamW(network.parameters(), lr=1e-4, weight_decay=0.02)
    rng = np.random.default_rng(seed)
    for step in range(steps):
        data = draw_captioned_scenes(world, batch, rng, cells=SEEN)
        torch.manual_seed(step)
        pixels = made.pixels(data.images).to(made.device)
        with torch.autocast(made.device.type, torch.bfloat16, enabled=made.device.type == "cuda"):
            losses = auxiliary_losses(made, pixels, list(data.texts))
            loss = torch.stack(list(losses.values())).sum()
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        optimizer.step()
    network.eval()
    return made


def against(row: dict[str, Any], vanilla: dict[str, Any]) -> str:
    """Bias as a share of vanilla's, with its 95% interval by a bootstrap over the same targets."""
    a, b = (np.array(one["redrawn"]["by target"]) for one in (row, vanilla))
    at = np.random.default_rng(0).integers(0, len(a), (DRAWS, len(a)))
    low, high = np.percentile(a[at].mean(axis=1) / b[at].mean(axis=1), [2.5, 97.5])
    return f"{a.mean() / b.mean():.2f} [{low:.2f}, {high:.2f}]"


def table(found: dict[str, dict[str, Any]]) -> str:
    """Table 4's shape, the price beside it; then Table 5's."""
    head = [f"B@{m} {kind}" for kind in KINDS for m in MODALITIES]
    head += ["B@V-L all [95%]", "of vanilla [95%]", "attacked B@V-L", "flipped by attack",
             "masked accuracy", "T to I R@1", "I to T R@1", "seconds"]  # fmt: skip
    lines = ["| method | " + " | ".join(head) + " |", "|---" * (len(head) + 1) + "|"]
    for name, one in found.items():
        cells = [f"{one['redrawn'][kind][m][0]:.2f}" for kind in KINDS for m in MODALITIES]
        mean, low, high = one["redrawn"]["all"]["V-L"]
        cells.append(f"{mean:.2f} [{low:.2f}, {high:.2f}]")
        cells.append(against(one, found["vanilla"]) if "vanilla" in found else "")
        hit = one["attacked"]
        cells += [f"{hit['all']['V-L'][0]:.2f}", f"{hit['flipped']:.2f}"] if hit else ["", ""]
        cells.append(f"{one['utility']['masked accuracy']:.1f}")
        cells += [f"{one['utility'][f'{w} R@1']:.1f}" for w in ("text to image", "image to text")]
        lines.append(f"| {name} | " + " | ".join([*cells, f"{one['seconds']:.0f}"]) + " |")
    if any(one["tuned"] for one in found.values()):
        ways = [f"{w} R@{k}" for w in ("image to text", "text to image") for k in (1, 5, 10)]
        lines += ["", "| fine-tuned | " + " | ".join(ways) + " |", "|---" * (len(ways) + 1) + "|"]
        for name, one in found.items():
            if one["tuned"]:
                cells = [f"{one['tuned'][way]:.1f}" for way in ways]
                lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0] if __doc__ else None)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--model", default="testbed:fusion", help="or testbed:stream")
    parser.add_argument("--steps", type=int, help="200 on a GPU, 40 on a CPU")
    parser.add_argument("--batch", type=int, help="512 on a GPU, 64 on a CPU")
    parser.add_argument("--captions", type=int, help="100,000 on a GPU, 4,000 on a CPU")
    parser.add_argument("--learning-rate", type=float, default=1e-4)
    parser.add_argument("--alpha", type=float, default=0.5)
    parser.add_argument("--epsilon", type=float, default=EPSILON * 255, help="in grey levels")
    parser.add_argument("--each", type=int, help="scenes a target to measure on: 16, or 4")
    parser.add_argument("--tune", type=int, help="steps of fine-tuning for Table 5: 50, or 0")
    parser.add_argument("--rows", nargs="*", default=list(ROWS), choices=list(ROWS))
    parser.add_argument("--no-attack", action="store_true", help="measure by the redraw alone")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", type=Path, help="keep the figures there, after every row")
    given = parser.parse_args()
    big = given.device != "cpu"
    steps, batch = given.steps or (200 if big else 40), given.batch or (512 if big else 64)
    each = given.each or (16 if big else 4)
    tune = given.tune if given.tune is not None else (50 if big else 0)
    world, rng = World.plant(), np.random.default_rng(given.seed + 10)
    data = draw_captioned_scenes(
        world, given.captions or (100_000 if big else 4000), rng, targets=TARGETS
    )
    edited = data.images.redrawn(shape=1 - data.images.shape)
    how = Attack(given.epsilon / 255, STEP, STEPS)
    found: dict[str, dict[str, Any]] = {}
    for name in given.rows:
        twin = "?twin=fair" if name == "fair twin" else ""
        model = load_model(f"{given.model}{twin}", device=given.device)
        started = time.perf_counter()
        if ROWS[name]:
            method = FairVLP(
                **ROWS[name], alpha=given.alpha, pairs=PAIRS, spared=frame_words(),
                hide_bias=False, epsilon=how.epsilon, step=STEP, attack_steps=STEPS, steps=steps,
                batch=batch, learning_rate=given.learning_rate, seed=given.seed,
            )  # fmt: skip
            model = method.fit(model, data, edited=edited).apply(model)
        one: dict[str, Any] = {"seconds": time.perf_counter() - started}
        one["redrawn"] = bias(model, world, each)
        one["attacked"] = None if given.no_attack else bias(model, world, each, settings=how)
        one["utility"] = utility(model, world, 10_000 if big else 1000)
        one["tuned"] = utility(tuned(model, world, tune, batch), world, 100) if tune else None
        found[name] = one
        print(f"{name}: {one['seconds']:.0f} s", flush=True)
        if given.json:
            given.json.write_text(json.dumps(found, indent=2) + "\n")
    rate = f"learning rate {given.learning_rate:g}, alpha {given.alpha:g}, {how}"
    print(f"\n{given.model}, {steps} steps of {batch} on {given.device}, {rate}; bias in %\n")
    print(table(found))


if __name__ == "__main__":
    main()
