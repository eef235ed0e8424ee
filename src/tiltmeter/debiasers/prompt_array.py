"""The prompt array (Berg et al. 2022): learned tokens before every text, against an adversary.

A few token embeddings stand among the words of every text; all else is frozen. They learn, in
turns with an adversary, that the group of an image cannot be read off its scores with the training
prompts, and by a contrastive loss (ITC) on captions with their pictures that scores stay useful.
Vectors of images are made once, unless their tower is the part that is tuned.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import nn

from tiltmeter.debiasers.adversary import AdversarialObjective, AdversaryConfig, AdversaryData
from tiltmeter.debiasers.debiaser import GIVEN_BY, GroupTexts, ModelEdit, checked, one_of
from tiltmeter.debiasers.prompt_array_data import (
    judged_by_recall,
    least_ndkl,
    made_anew,
    made_once,
    of_rows,
    one_each,
    prompts_alone,
    prompts_and_captions,
    seen,
)
from tiltmeter.debiasers.text_tower import TextTower, in_image_tower, tower_of, tuned_parts
from tiltmeter.errors import InputError
from tiltmeter.results import content_hash
from tiltmeter.types import Array, Floats, Groups, Ints, Progress

#: Which terms the loss has, beside the pull of `l2`.
VARIANTS = {"both": (True, True), "adversarial": (True, False), "itc": (False, True)}
KEEPS = ("best", "last")
PRECISIONS = ("auto", "float32", "bfloat16")
#: Captions kept from training, on which the early stop is judged: a share, and at most so many.
WATCHED, MOST_WATCHED = 0.1, 500
TUNED = "tuned.safetensors"


class PromptArray(ModelEdit):
    """Prompt array (Berg et al. 2022): learned tokens that hide the group from an adversary.

    `start` is token0, zeros, random or a word. `words` is a list of stimuli (a shipped one, or a
    file), or the prompts themselves. `tune` names what learns: tokens alone, or beside them
    projection, text:3 (last layers), text, image (see PARTS), joined by +. Training stops when
    recall on held-out captions falls under the share `stop` of the original model's. Of the epochs
    before, the one with the least NDKL on the fitted images is kept, or with keep=last the last.
    """

    needs = ("labels", "captions")

    def __init__(
        self,
        tokens: int = 2,
        place: str = "after_sos",
        start: str = "token0",
        variant: str = "both",
        itc: float = 0.05,
        l2: float = 0.0,
        tune: str = "tokens",
        words: str | Sequence[str] = "berg-train",
        epochs: int = 10,
        warmup: int = 2,
        block: int = 10,
        batch: int = 256,
        learning_rate: float = 2e-5,
        adversary_rate: float = 2e-4,
        hidden: int = 32,
        squashed: bool = False,
        divide: float = 20.0,
        stop: float = 0.5,
        keep: str = "best",
        precision: str = "auto",
        seed: int = 0,
    ) -> None:
        self.tokens = tokens
        self.place = place
        self.start = start
        self.variant = variant
        self.itc = itc
        self.l2 = l2
        self.tune = tune
        self.words = words
        self.epochs = epochs
        self.warmup = warmup
        self.block = block
        self.batch = batch
        self.learning_rate = learning_rate
        self.adversary_rate = adversary_rate
        self.hidden = hidden
        self.squashed = squashed
        self.divide = divide
        self.stop = stop
        self.keep = keep
        self.precision = precision
        self.seed = seed

    def fit(
        self,
        model: Any,
        captions: Any = None,
        *,
        vectors: Array | None = None,
        groups: Groups | None = None,
        texts: GroupTexts | None = None,
        images: Any = None,
        progress: Progress | None = None,
    ) -> Self:
        """Learns from vectors of labelled images, and from captions with their pictures.

        `images` are the pictures of those vectors, asked for only where their tower is tuned.
        Without captions there is no ITC and no early stop.
        """
        del texts
        self._check(captions)
        tell = progress or (lambda what, share: None)
        tower_of(model, self.place, self.tokens)  # refuses others
        learner = copy.copy(model)
        learner.network = copy.deepcopy(model.network).requires_grad_(False)
        tower = tower_of(learner, self.place, self.tokens)
        seeds = torch.Generator().manual_seed(self.seed)
        device = next(learner.network.parameters()).device
        tokens = nn.Parameter(tower.start(self.start, seeds).to(device))
        parts = tuned_parts(learner.network, self.tune)
        for weight in parts.values():
            weight.requires_grad_(True)
        learning = [*([tokens] if self.tokens else []), *parts.values()]
        self.log_: list[dict[str, Any]] = []
        self.stopped_: int | None = None  # the epoch of an early stop
        self.kept_: int | None = None  # the epoch whose weights these are
        if learning and self.epochs:
            sides, utility = self._sides(
                model, learner, tower, tokens, parts, captions, vectors, groups, images, tell
            )
            sides.learning = learning
            self._train(sides, utility, device, tell)
        self.tokens_: Floats = tokens.detach().cpu().numpy()
        self.tuned_ = {name: one.detach().cpu().numpy() for name, one in parts.items()}
        return self

    def edited(self, model: Any) -> Any:
        """The model with tuned weights, and with the tokens among the words of its texts."""
        self.check_fitted()
        made = copy.copy(model)
        if self.tuned_:
            made.network = copy.deepcopy(model.network)
            made.network.load_state_dict(
                {name: torch.as_tensor(one) for name, one in self.tuned_.items()}, strict=False
            )
        return PromptArrayModel(made, self.tokens_, self.place) if len(self.tokens_) else made

    def write(self, place: Path, model: Any) -> dict[str, Any]:
        if self.tuned_:
            from safetensors.numpy import save_file

            save_file({k: np.ascontiguousarray(v) for k, v in self.tuned_.items()}, place / TUNED)
        told = super().write(place, model)
        return {name: value for name, value in told.items() if name != "tuned_"}

    def read(self, place: Path, plain: Mapping[str, Any]) -> Self:
        self.tuned_ = {}
        if (place / TUNED).is_file():
            from safetensors.numpy import load_file

            self.tuned_ = load_file(place / TUNED)
        return super().read(place, plain)

    def _train(
        self, sides: AdversaryData, utility: Any, device: torch.device, tell: Progress
    ) -> None:
        adversarial, itc = VARIANTS[self.variant]
        contest = AdversarialObjective(
            self._course(), adversarial, self.itc if itc else 0.0, self.l2, self.divide,
            self.hidden, self.squashed,
            self.precision == "bfloat16" or (self.precision == "auto" and device.type == "cuda"),
        )  # fmt: skip
        judge, original = (None, 0.0) if utility is None else utility
        bias = least_ndkl(sides) if adversarial and self.keep == "best" else None
        self.stopped_ = contest.run(
            sides, utility=judge, least=self.stop * original, bias=bias, progress=tell
        )
        self.kept_ = contest.kept
        self.log_ = [{"epoch": "before", "utility": original}] if judge else []
        self.log_ += contest.log

    def _course(self) -> AdversaryConfig:
        return AdversaryConfig(
            self.epochs, self.warmup, self.block, self.batch, self.learning_rate,
            self.adversary_rate, self.seed,
        )  # fmt: skip

    def _sides(
        self, model: Any, learner: Any, tower: TextTower, tokens: nn.Parameter,
        parts: Mapping[str, nn.Parameter], captions: Any, vectors: Array | None,
        groups: Groups | None, images: Any, tell: Progress,
    ) -> tuple[AdversaryData, tuple[Callable[[], float], float] | None]:  # fmt: skip
        """What both sides learn from, and what the early stop is judged by."""
        device, anew = tokens.device, in_image_tower(tuple(parts))
        x, labels = checked(vectors, groups)
        if anew and images is None:
            raise InputError(
                f"tune = {self.tune} changes the image tower, so vectors made beforehand are not "
                "enough: pass the pictures too, fit(model, captions, ..., images=faces.images)"
            )
        shown = made_once(x, device) if not anew else made_anew(learner, images, device)
        prompts = tower.lay(self._prompts()).to(device)
        with torch.no_grad():
            bare = tower_of(model, self.place, 0)
            before = bare.vectors(bare.lay(self._prompts()).to(device), tokens)
        read, pictures, pairs, utility = prompts_alone(tower, prompts, tokens), None, 0, None
        if captions is not None:
            tell("looking at the captions' pictures", 0.0)
            used, watched = self._drawn(captions, len(x))
            at, pairs = np.asarray(captions.of), len(used)
            if pairs:
                laid = tower.lay([captions.texts[row] for row in used])
                read = prompts_and_captions(tower, prompts, laid, tokens)
                pictures = of_rows(
                    made_anew(learner, captions.images, device, at[used])
                    if anew
                    else made_once(seen(model, captions.images, at[used]), device)
                )
            utility = judged_by_recall(
                model, learner, tower, tokens, captions, watched, at, device, anew=anew
            )
        codes = torch.as_tensor(labels.codes.astype(np.int64), device=device)
        scale = float(model.logit_scale)
        sides = AdversaryData(
            codes, len(labels.names), shown, read, pictures, pairs, scale, [], before.detach()
        )
        return sides, utility

    def _drawn(self, captions: Any, images: int) -> tuple[Ints, Ints]:
        """Rows of captions to learn from, no more than will be seen; and rows to watch."""
        rng = np.random.default_rng([self.seed, 2])
        first = one_each(np.asarray(captions.of), rng)
        count = min(MOST_WATCHED, int(WATCHED * len(first)))
        _, itc = VARIANTS[self.variant]
        turns = self._course().turns(images, adversarial=False)
        most = self.batch * sum(1 for _ in turns) if itc and self.itc else 0
        return first[count : count + most], first[:count]

    def _prompts(self) -> list[str]:
        if not isinstance(self.words, str):
            return list(self.words)
        from tiltmeter import stimuli

        return [one.text for one in stimuli.prompts(stimuli.load(self.words))]

    def _check(self, captions: Any) -> None:
        one_of("variant of the prompt array", self.variant, tuple(VARIANTS))
        one_of("precision", self.precision, PRECISIONS)
        one_of("epoch to keep", self.keep, KEEPS)
        for name, least in (("tokens", 0), ("epochs", 0), ("warmup", 0), ("block", 1),
                            ("batch", 1), ("hidden", 1)):  # fmt: skip
            if getattr(self, name) < least:
                raise InputError(f"{name} must be {least} or more; got {getattr(self, name)}")
        if self.variant == "itc" and not self.itc:
            raise InputError("variant itc with itc = 0 would learn nothing: give it a weight")
        lacking = captions is None or getattr(captions, "images", None) is None
        if lacking and (VARIANTS[self.variant][1] or captions is not None):
            raise InputError(
                f"variant {self.variant} learns from captions with their pictures: "
                f"{GIVEN_BY['captions']}, such as captions=coco:FILE?images=DIR"
            )


class PromptArrayModel:
    """A model with learned tokens among the words of every text; all else is the model's own."""

    def __init__(self, model: Any, tokens: Floats, place: str) -> None:
        self.model = model
        self.tokens_learned = tokens
        self.place = place

    def __getattr__(self, name: str) -> Any:
        if name == "model":  # not there yet, as in a copy that is being made
            raise AttributeError(name)
        return getattr(self.model, name)

    @property
    def identity(self) -> dict[str, Any]:
        known = self.model.identity
        told = [known["weights"], content_hash(self.tokens_learned), self.place]
        return {**known, "weights": content_hash(told)}

    def to(self, device: str | torch.device) -> Self:
        self.model.to(device)
        return self

    def encode_texts(self, texts: Sequence[str]) -> Array:
        tower = tower_of(self.model, self.place, len(self.tokens_learned))
        device = next(self.model.network.parameters()).device
        tokens = torch.as_tensor(self.tokens_learned, device=device)
        block, found = self.model.block, []
        with torch.inference_mode():
            for at in range(0, len(texts), block):
                laid = tower.lay(texts[at : at + block]).to(device)
                found.append(tower.vectors(laid, tokens))
        return torch.cat(found).cpu().numpy()
