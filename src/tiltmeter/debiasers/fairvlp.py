"""FairVLP (Zhang, Wang and Sang 2022): masked words must not depend on the bias concept.

Each step masks words of captions and minimises

    (1 - alpha) L_mlm + alpha KL( P([MASK] | V_f, L_f) || P([MASK] | V_cf, L_cf) )

with L_mlm over factual and counterfactual pairs, together with the losses that the model was
pretrained with. L_cf has the bias words swapped. V_cf is attacked again at each step, from the
weights of that step. The paper's comparisons are variants of the same loop, so that they train as
long and on as much data.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import Tensor

from tiltmeter.debiasers.debiaser import ModelEdit, check_choice
from tiltmeter.debiasers.training_loop import Objective, TrainingConfig, rows_of_step, train
from tiltmeter.debiasers.word_swaps import Caption, WordPairs, gender_pairs, read_caption
from tiltmeter.errors import InputError
from tiltmeter.models.trainable import (
    auxiliary_losses,
    masked_logprobs,
    network_of,
    set_training_mode,
)
from tiltmeter.models.weights import fill, read, weights_hash
from tiltmeter.probes.counterfactual.sources.adversarial import Attack, attack
from tiltmeter.probes.counterfactual.sources.words import check_words, with_masked_head
from tiltmeter.results import content_hash
from tiltmeter.types import Array, Groups, Ints, Progress

#: What each variant does: whether images and texts have counterfactuals that are compared.
VARIANTS = {
    "both": "FairVLP: images and texts",
    "vision": "FairVLP-V: images only",
    "language": "FairVLP-L: texts only",
    "vanilla": "nothing: more training of the same length",
    "swapping": "gender swapping: every second caption with its bias words swapped",
    "dropout": "dropout regularisation: a higher rate of dropout",
    "edited": "swapped images: every second image from an editor (the paper's CycleGAN)",
    "retrieval": "fine-tuning for retrieval: matching and contrast, no masked words (Table 5)",
}
COMPARED = {"both": (True, True), "vision": (True, False), "language": (False, True)}
IMAGES = ("adversarial", "edited")
#: Losses besides masked words: all that the model has, or matching alone, which the paper names.
LOSSES = {"own": ("match", "contrast"), "paper": ("match",)}
WEIGHTS = "model.safetensors"


@dataclass(eq=False)
class FairVLP(ModelEdit):
    """FairVLP (Zhang et al. 2022): trains masked words not to depend on the bias concept.

    Parameters
    ----------
    variant
        The paper's method or one of its comparisons: see VARIANTS.
    alpha
        From 0 to 1: weight of the divergence.
    mask
        Share of words to mask.
    pairs
        Pairs of bias words, the first of each of side 0; words of gender by default. The first pair
        completes the attack's `prompt`.
    spared
        Words that are never masked.
    hide_bias
        Whether bias words may be masked. If not, only where nothing else can be.
    prompt
        The text that the attack completes.
    images
        Where counterfactual images come from: the `adversarial` attack, or `edited`, an image
        editor whose images are passed to `fit`.
    losses
        What is trained besides masked words: the model's `own` losses (matching, contrast), or what
        the `paper` names (matching).
    hard_negatives
        Whether matching is asked about similar captions and images of the batch, as ALBEF does.
    distillation
        Weight of a slow copy's predictions as soft targets of masked words and contrast; ALBEF has
        0.4. 0: no slow copy.
    momentum
        Share of the slow copy's weights that a step keeps.
    epsilon, step, attack_steps
        Size, step size and steps of the attack.
    steps, batch, accumulate, learning_rate, weight_decay, precision, checkpoint, seed
        See `TrainingConfig`.
    dropout
        Rate of the variant `dropout`.
    max_length
        Word pieces that a caption is cut to.

    Attributes
    ----------
    weights_ : dict of str to Tensor
        The trained weights.
    log_ : list of dict
        Losses by step.
    """

    variant: str = "both"
    alpha: float = 0.5
    mask: float = 0.15
    pairs: Sequence[Sequence[str]] | None = None
    spared: Sequence[str] = ()
    hide_bias: bool = True
    prompt: str = "a [MASK] is in the picture"
    images: str = "adversarial"
    losses: str = "own"
    hard_negatives: bool = False
    distillation: float = 0.0
    momentum: float = 0.995
    epsilon: float = 8 / 255
    step: float = 2 / 255
    attack_steps: int = 20
    steps: int = 1000
    batch: int = 256
    accumulate: int = 1
    learning_rate: float = 1e-4
    weight_decay: float = 0.02
    dropout: float = 0.3
    max_length: int = 24
    precision: str = "auto"
    checkpoint: int = 100
    seed: int = 0

    def fit(
        self,
        model: Any,
        captions: Any = None,
        *,
        vectors: Array | None = None,
        groups: Groups | None = None,
        images: Any = None,
        edited: Any = None,
        utility: Any = None,
        checkpoints: Path | None = None,
        progress: Progress | None = None,
    ) -> Self:
        """Train a copy of the model on captions with their images.

        See `ModelEdit.fit`; labelled images and `utility` are not used.
        """
        self._check(model, captions, edited)
        learner = copy.deepcopy(model)
        network = network_of(learner)
        objective = self._objective(learner, captions, edited)
        params = {k: v for k, v in self.get_params().items() if k != "checkpoint"}
        key = content_hash([params, list(captions.texts), weights_hash(network)])
        config = TrainingConfig(
            self.steps, self.batch, self.accumulate, self.learning_rate, self.weight_decay,
            self.precision, self.checkpoint, self.seed,
        )  # fmt: skip
        hooks = set_training_mode(network, self.dropout if self.variant == "dropout" else None)
        try:
            log = train(objective, config, key=key, checkpoints=checkpoints, progress=progress)
        finally:
            for hook in hooks:
                hook.remove()
            network.eval()
        self.log_ = log
        self.weights_ = {
            name: weight.detach().cpu().clone() for name, weight in network.state_dict().items()
        }
        return self

    def apply(self, model: Any) -> Any:
        self.check_fitted()
        changed = copy.deepcopy(model)
        network = network_of(changed)
        fill(network, self.weights_, "FairVLP")
        network.eval()
        return changed

    def write(self, directory: Path, model: Any) -> dict[str, Any]:
        """Write the weights; a model of transformers as its `from_pretrained` expects."""
        network: Any = network_of(model)
        if hasattr(network, "save_pretrained"):
            network.save_pretrained(directory)
            model.tokenizer.save_pretrained(directory)
            if hasattr(model, "processor"):
                model.processor.save_pretrained(directory)
        else:
            from safetensors.torch import save_file

            save_file({k: v.contiguous() for k, v in self.weights_.items()}, directory / WEIGHTS)
        return {"log_": self.log_}

    def read(self, directory: Path, plain: Any) -> Self:
        self.log_ = plain["log_"]
        self.weights_ = read(directory / WEIGHTS)
        return self

    def _objective(self, learner: Any, captions: Any, edited: Any) -> _MaskedObjective:
        pairs = self.pairs or gender_pairs()
        known: dict[str, Any] = dict.fromkeys(self.spared, ())
        words = WordPairs.of(pairs)
        split = [
            read_caption(text, learner, words, self.max_length, known) for text in captions.texts
        ]
        if len(split) < 2:
            raise InputError(f"training needs two captions or more; got {len(split)}")
        needs_sides = self.variant not in ("vanilla", "dropout", "retrieval")
        if needs_sides and not any(caption.side is not None for caption in split):
            raise InputError(
                f"no caption of {captions.name} names one side of the pairs alone, such as "
                f"{' or '.join(pairs[0])}: there is nothing to swap. Use pairs of words that occur "
                "in these captions"
            )
        return _MaskedObjective(self, learner, words, tuple(pairs[0]), split, captions, edited)

    def _check(self, model: Any, captions: Any, edited: Any) -> None:
        check_choice("variant of FairVLP", self.variant, tuple(VARIANTS))
        check_choice("source of counterfactual images", self.images, IMAGES)
        check_choice("losses of FairVLP", self.losses, tuple(LOSSES))
        with_masked_head(model)
        if not hasattr(model, "parameters"):
            raise InputError(f"{model.name} has no parameters(): it cannot be trained")
        if not 0 <= self.alpha <= 1 or not 0 < self.mask < 1:
            raise InputError(
                f"alpha and mask must be between 0 and 1; got {self.alpha:g} and {self.mask:g}"
            )
        if not 0 <= self.distillation <= 1 or not 0 <= self.momentum <= 1:
            raise InputError(
                "distillation and momentum must be from 0 to 1; got "
                f"{self.distillation:g} and {self.momentum:g}"
            )
        if self.hard_negatives and not (hasattr(model, "match") and hasattr(model, "encode_texts")):
            raise InputError(
                f"hard negatives need embeddings and a matching head, as ALBEF, TCL and "
                f"testbed:fusion have them; {model.name} does not: leave hard_negatives out"
            )
        if self.variant == "retrieval" and not (
            hasattr(model, "match") or hasattr(model, "encode_texts")
        ):
            raise InputError(f"{model.name} has no head for matching: it cannot retrieve")
        if captions is None or getattr(captions, "images", None) is None:
            raise InputError(
                "FairVLP needs captions with their images: --data captions=SPEC, such as "
                "captions=coco:FILE?images=DIR"
            )
        needs_edited = self.variant == "edited" or (
            self.images == "edited" and COMPARED.get(self.variant, (False,))[0]
        )
        if needs_edited and (edited is None or len(edited) != len(captions.ids)):
            raise InputError(
                f"this variant needs an edited image for each of {len(captions.ids)} images; "
                f"got {'none' if edited is None else len(edited)}: --edited DIR"
            )
        check_words(model, (self.pairs or gender_pairs())[0], "bias word")


@dataclass
class _MaskedBatch:
    """Captions with words masked, and the answers, factual and counterfactual."""

    rows: Ints
    texts: list[str]  # whole
    masked: list[str]
    answers: list[list[int]]
    counterfactual: list[str | None]  # None: the row has no counterfactual text
    sides: list[int | None]
    edit: list[bool]  # whether the image is the editor's
    masks: int = field(init=False)  # of the whole batch, so that parts add up
    compared: int = field(init=False)

    def __post_init__(self) -> None:
        self.masks = max(1, sum(len(answer) for answer in self.answers))
        pairs = zip(self.answers, self.counterfactual, strict=True)
        self.compared = max(1, sum(len(answer) for answer, text in pairs if text is not None))


@dataclass(eq=False)
class _MaskedObjective(Objective):
    """The losses of one variant; those of a batch's parts add up to those of the batch."""

    method: FairVLP
    model: Any
    words: WordPairs
    pair: tuple[str, ...]
    captions: list[Caption]
    data: Any
    edited: Any

    def __post_init__(self) -> None:
        self.network = network_of(self.model)
        self.slow = copy.deepcopy(self.model) if self.method.distillation else None
        if self.slow is not None:
            network_of(self.slow).requires_grad_(False).eval()

    def end_step(self, step: int, log: list[dict[str, Any]]) -> bool:
        """Let the slow copy follow."""
        if self.slow is not None:
            pairs = zip(network_of(self.slow).parameters(), self.network.parameters(), strict=True)
            for old, new in pairs:
                old.lerp_(new.detach(), 1 - self.method.momentum)
        return False

    def state(self) -> dict[str, Any]:
        return {} if self.slow is None else network_of(self.slow).state_dict()

    def restore(self, state: dict[str, Any]) -> None:
        if self.slow is not None:
            network_of(self.slow).load_state_dict(state)

    def draw(self, step: int, rng: np.random.Generator) -> _MaskedBatch:
        rows = rows_of_step(step, self.method.batch, len(self.captions), self.method.seed)
        return self.mask_rows(rows, rng)

    def mask_rows(self, rows: Ints, rng: np.random.Generator) -> _MaskedBatch:
        """Mask words of some captions."""
        method, mask = self.method, self.model.mask_token
        in_images, in_texts = COMPARED.get(method.variant, (False, False))
        texts, masked, answers, counterfactual = [], [], [], []
        sides, edit = [], []
        for row in rows:
            caption = self.captions[row]
            at = caption.masks(method.mask, rng, hide_bias=method.hide_bias)
            draw = rng.random()
            # a masked bias word leaves nothing to swap: such a row is a plain masked caption
            bias_masked = any(caption.sides[word] is not None for word in at.tolist())
            side = None if bias_masked else caption.side
            second = draw < 0.5 and side is not None
            swap = self.words if method.variant == "swapping" and second else None
            texts.append(caption.text((), mask, swap))
            masked.append(caption.text(at, mask, swap))
            answers.append(caption.answer(at))
            compare = side is not None and len(at) > 0 and (in_images or in_texts)
            other = caption.text(at, mask, self.words if in_texts else None)
            counterfactual.append(other if compare else None)
            sides.append(side)
            edit.append(method.variant == "edited" and second)
        return _MaskedBatch(rows, texts, masked, answers, counterfactual, sides, edit)

    def losses(self, batch: _MaskedBatch, part: slice) -> dict[str, Tensor]:
        rows = batch.rows[part]
        pixels = self._pixels(self.data.images, rows, batch.edit[part])
        texts, masked, answers = batch.texts[part], batch.masked[part], batch.answers[part]
        method = self.method
        asked = [at for at, answer in enumerate(answers) if answer]
        if method.variant == "retrieval":
            asked = []
        losses: dict[str, Tensor] = {}
        if asked:
            factual, loss = self._masked(
                pixels[asked], [masked[at] for at in asked], [answers[at] for at in asked]
            )
            losses["mask"] = loss / batch.masks
        others = batch.counterfactual[part]
        compared = [at for at in asked if others[at] is not None]
        if compared:
            sides = [int(batch.sides[part][at]) for at in compared]  # type: ignore[arg-type]
            shown = self._counterfactual(pixels[compared], sides, rows[compared])
            other, loss = self._masked(
                shown, [str(others[at]) for at in compared], [answers[at] for at in compared]
            )
            losses["mask, counterfactual"] = loss / batch.compared
            kept = set(compared)
            same = torch.cat(
                [torch.full((len(answers[at]),), at in kept, device=factual.device) for at in asked]
            )
            divergence = (factual[same].exp() * (factual[same] - other)).sum()
            losses["divergence"] = divergence / batch.compared
        share = len(rows) / len(batch.rows)
        auxiliary = auxiliary_losses(
            self.model, pixels, texts, hard_negatives=method.hard_negatives, slow=self.slow,
            distillation=method.distillation,
        )  # fmt: skip
        for name in LOSSES[method.losses]:
            if name in auxiliary:
                losses[name] = auxiliary[name] * share
        return losses

    def _masked(
        self, pixels: Tensor, texts: list[str], answers: list[list[int]]
    ) -> tuple[Tensor, Tensor]:
        """Log-probabilities at all masks, and the cross-entropy summed over them."""
        logprobs = masked_logprobs(self.model, pixels, texts)
        loss = -_right_logprobs(logprobs, answers).sum()
        if self.slow is not None:
            with torch.no_grad():
                soft = masked_logprobs(self.slow, pixels, texts).exp()
            loss = loss.lerp(-(soft * logprobs).sum(), self.method.distillation)
        return logprobs, loss

    def total(self, losses: dict[str, Tensor]) -> Tensor:
        alpha = self.method.alpha if self.method.variant in COMPARED else 0.0
        weight = {"mask": 1 - alpha, "mask, counterfactual": 1 - alpha, "divergence": alpha}
        return torch.stack([weight.get(name, 1.0) * loss for name, loss in losses.items()]).sum()

    def _counterfactual(self, pixels: Tensor, sides: list[int], rows: Ints) -> Tensor:
        """The images with the other side in them, from the current weights."""
        method = self.method
        if not COMPARED[method.variant][0]:
            return pixels
        if method.images == "edited":
            return self._pixels(self.edited, rows)
        settings = Attack(method.epsilon, method.step, method.attack_steps, starts=1)
        training = [module.training for module in self.network.modules()]
        self.network.eval()
        goal = [1 - side for side in sides]
        words = (self.pair[0], self.pair[1])
        changed, _ = attack(
            self.model, pixels, goal, words=words, prompt=method.prompt, settings=settings
        )
        for module, was in zip(self.network.modules(), training, strict=True):
            module.training = was
        return changed

    def _pixels(self, images: Any, rows: Ints, edit: Any = None) -> Tensor:
        """Images of some captions on the model's device; those to `edit` are the editor's."""
        of = np.asarray(self.data.of)[rows]
        edit = np.zeros(len(of), bool) if edit is None else np.asarray(edit)
        if hasattr(images, "redrawn"):  # scenes
            pixels: Tensor = self.model.pixels(images[of])
            if edit.any():
                pixels[edit] = self.model.pixels(self.edited[of[edit]])
        else:  # files, which threads can decode at the same time
            sources = [
                (self.edited if e else images, int(at)) for e, at in zip(edit, of, strict=True)
            ]
            with ThreadPoolExecutor() as pool:
                decoded = pool.map(lambda source: source[0][source[1]], sources)
                pixels = self.model.pixels(list(decoded))
        return pixels.to(next(self.network.parameters()).device)


def _right_logprobs(logprobs: Tensor, answers: list[list[int]]) -> Tensor:
    """Log-probabilities of the right pieces, one per mask."""
    pieces = torch.tensor([p for answer in answers for p in answer], device=logprobs.device)
    return logprobs.gather(1, pieces[:, None])[:, 0]
