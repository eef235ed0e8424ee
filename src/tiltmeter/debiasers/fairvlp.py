"""FairVLP (Zhang, Wang and Sang 2022): hidden words must not hang on the bias concept.

Each step hides words of captions and minimises

    (1 - alpha) L_mlm + alpha KL( P([MASK] | V_f, L_f) || P([MASK] | V_cf, L_cf) )

with L_mlm over factual and counterfactual pairs, beside the losses that the model was pretrained
with. L_cf has the bias words swapped. V_cf is attacked anew at each step, from the weights of that
step. The paper's comparisons are variants of the same loop, so that they learn as long and as
much.
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

from tiltmeter.debiasers.debiaser import GroupTexts, ModelEdit, one_of
from tiltmeter.debiasers.training import TrainingConfig, train
from tiltmeter.debiasers.word_swaps import Caption, Pairs, gender_pairs, read_caption
from tiltmeter.errors import InputError
from tiltmeter.models.trainable import hidden_logprobs, in_training, network_of, other_losses
from tiltmeter.models.weights import fill, read, weights_hash
from tiltmeter.probes.counterfactual.sources.adversarial import Attack, attack
from tiltmeter.probes.counterfactual.sources.words import spelled, with_masked_head
from tiltmeter.results import content_hash
from tiltmeter.types import Array, Groups, Ints, Progress

#: What each variant does: whether pictures and texts have counterfactuals that are compared.
VARIANTS = {
    "both": "FairVLP: pictures and texts",
    "vision": "FairVLP-V: pictures only",
    "language": "FairVLP-L: texts only",
    "vanilla": "nothing: more training of the same length",
    "swapping": "gender swapping: every second caption with its bias words swapped",
    "dropout": "dropout regularisation: a higher rate of dropout",
    "edited": "swapped pictures: every second picture from an editor (the paper's CycleGAN)",
}
COMPARED = {"both": (True, True), "vision": (True, False), "language": (False, True)}
IMAGES = ("adversarial", "edited")
WEIGHTS = "model.safetensors"


class FairVLP(ModelEdit):
    """FairVLP (Zhang et al. 2022): trains hidden words not to hang on the bias concept.

    `pairs` are bias words, the first of each of side 0, words of gender by default; the first pair
    answers the attack's `prompt`. Words that are `spared` are never hidden, and bias words, unless
    `hide_bias`, only where nothing else could be. `images` says where counterfactual pictures come
    from: the attack, or an editor whose pictures `fit` is given. `variant` names the paper's other
    rows: see VARIANTS.
    """

    def __init__(
        self,
        variant: str = "both",
        alpha: float = 0.5,
        mask: float = 0.15,
        pairs: Sequence[Sequence[str]] | None = None,
        spared: Sequence[str] = (),
        hide_bias: bool = True,
        prompt: str = "a [MASK] is in the picture",
        images: str = "adversarial",
        epsilon: float = 8 / 255,
        step: float = 2 / 255,
        attack_steps: int = 20,
        steps: int = 1000,
        batch: int = 256,
        accumulate: int = 1,
        learning_rate: float = 1e-4,
        weight_decay: float = 0.02,
        dropout: float = 0.3,
        longest: int = 24,
        precision: str = "auto",
        checkpoint: int = 100,
        seed: int = 0,
    ) -> None:
        self.variant = variant
        self.alpha = alpha
        self.mask = mask
        self.pairs = pairs
        self.spared = spared
        self.hide_bias = hide_bias
        self.prompt = prompt
        self.images = images
        self.epsilon = epsilon
        self.step = step
        self.attack_steps = attack_steps
        self.steps = steps
        self.batch = batch
        self.accumulate = accumulate
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.dropout = dropout
        self.longest = longest
        self.precision = precision
        self.checkpoint = checkpoint
        self.seed = seed

    def fit(
        self,
        model: Any,
        captions: Any = None,
        *,
        vectors: Array | None = None,
        groups: Groups | None = None,
        texts: GroupTexts | None = None,
        edited: Any = None,
        place: Path | None = None,
        progress: Progress | None = None,
    ) -> Self:
        """Trains a copy of the model on captions with their pictures.

        `edited` are the captions' pictures as an editor changed them, in the same order. With a
        `place`, checkpoints are kept there, and a training that was killed goes on from the last.
        """
        del vectors, groups, texts
        self._check(model, captions, edited)
        learner = copy.deepcopy(model)
        network = network_of(learner)
        objective = self._objective(learner, captions, edited)
        settings = {k: v for k, v in self.settings.items() if k != "checkpoint"}
        key = content_hash([settings, list(captions.texts), weights_hash(network)])
        hooks = in_training(network, self.dropout if self.variant == "dropout" else None)
        try:
            log = train(
                network,
                objective,
                self._course(),
                rows=len(objective.captions),
                key=key,
                place=place,
                progress=progress,
            )
        finally:
            for hook in hooks:
                hook.remove()
            network.eval()
        self.log_ = log
        self.weights_ = {
            name: weight.detach().cpu().clone() for name, weight in network.state_dict().items()
        }
        return self

    def edited(self, model: Any) -> Any:
        self.check_fitted()
        made = copy.deepcopy(model)
        network = network_of(made)
        fill(network, self.weights_, "FairVLP")
        network.eval()
        return made

    def write(self, place: Path, model: Any) -> dict[str, Any]:
        """Weights; of a model of transformers all that its `from_pretrained` asks for."""
        network: Any = network_of(model)
        if hasattr(network, "save_pretrained"):
            network.save_pretrained(place)
            model.tokenizer.save_pretrained(place)
            if hasattr(model, "processor"):
                model.processor.save_pretrained(place)
        else:
            from safetensors.torch import save_file

            save_file({k: v.contiguous() for k, v in self.weights_.items()}, place / WEIGHTS)
        return {"log_": self.log_}

    def read(self, place: Path, plain: Any) -> Self:
        self.log_ = plain["log_"]
        self.weights_ = read(place / WEIGHTS)
        return self

    def _course(self) -> TrainingConfig:
        return TrainingConfig(
            self.steps, self.batch, self.accumulate, self.learning_rate, self.weight_decay,
            self.precision, self.checkpoint, self.seed,
        )  # fmt: skip

    def _objective(self, learner: Any, captions: Any, edited: Any) -> _Objective:
        pairs = self.pairs or gender_pairs()
        known: dict[str, Any] = dict.fromkeys(self.spared, ())
        words = Pairs.of(pairs)
        said = [read_caption(one, learner, words, self.longest, known) for one in captions.texts]
        if not any(caption.side is not None for caption in said):
            raise InputError(
                f"no caption of {captions.name} speaks of one side of the pairs alone, such as "
                f"{' or '.join(pairs[0])}: there would be nothing to swap. Give pairs of words "
                "that stand in these captions"
            )
        return _Objective(self, learner, words, tuple(pairs[0]), said, captions, edited)

    def _check(self, model: Any, captions: Any, edited: Any) -> None:
        one_of("variant of FairVLP", self.variant, tuple(VARIANTS))
        one_of("source of FairVLP's pictures", self.images, IMAGES)
        with_masked_head(model)
        if not hasattr(model, "parameters"):
            raise InputError(f"{model.name} has no parameters(): it cannot be trained")
        if not 0 <= self.alpha <= 1 or not 0 < self.mask < 1:
            raise InputError(
                f"alpha lies between 0 and 1, the share of words to mask too; got {self.alpha:g} "
                f"and {self.mask:g}"
            )
        if captions is None or getattr(captions, "images", None) is None:
            raise InputError(
                "FairVLP learns from captions with their pictures: --data captions=SPEC, such as "
                "captions=coco:FILE?images=DIR"
            )
        needs_edited = self.variant == "edited" or (
            self.images == "edited" and COMPARED.get(self.variant, (False,))[0]
        )
        if needs_edited and (edited is None or len(edited) != len(captions.ids)):
            raise InputError(
                f"this variant takes an edited picture for each of {len(captions.ids)} pictures; "
                f"got {'none' if edited is None else len(edited)}: --edited DIR"
            )
        spelled(model, (self.pairs or gender_pairs())[0], "bias word")


@dataclass
class _Drawn:
    """A batch: captions with words hidden, and the answers, factual and counterfactual."""

    rows: Ints
    texts: list[str]  # whole
    hidden: list[str]
    answers: list[list[int]]
    others: list[str | None]  # counterfactual text; None: the row has no counterfactual
    sides: list[int | None]
    edit: list[bool]  # whether the picture is the editor's
    masks: int = field(init=False)  # of the whole batch, so that parts add up
    compared: int = field(init=False)

    def __post_init__(self) -> None:
        self.masks = max(1, sum(len(one) for one in self.answers))
        pairs = zip(self.answers, self.others, strict=True)
        self.compared = max(1, sum(len(one) for one, other in pairs if other is not None))


@dataclass(eq=False)
class _Objective:
    """The losses of one variant; those of a batch's parts add up to those of the batch."""

    how: FairVLP
    model: Any
    words: Pairs
    pair: tuple[str, ...]
    captions: list[Caption]
    data: Any
    edited: Any

    def draw(self, rows: Ints, rng: np.random.Generator) -> _Drawn:
        mask = self.model.mask_token
        in_images, in_texts = COMPARED.get(self.how.variant, (False, False))
        texts, hidden, answers, others = [], [], [], []
        sides, edit = [], []
        for row in rows:
            caption = self.captions[row]
            at = caption.masks(self.how.mask, rng, hide_bias=self.how.hide_bias)
            dice = rng.random()
            # a hidden bias word leaves nothing to swap: such a row is a plain masked caption
            bias_hidden = any(caption.sides[one] is not None for one in at.tolist())
            side = None if bias_hidden else caption.side
            second = dice < 0.5 and side is not None
            swap = self.words if self.how.variant == "swapping" and second else None
            texts.append(caption.text((), mask, swap))
            hidden.append(caption.text(at, mask, swap))
            answers.append(caption.answer(at))
            compare = side is not None and len(at) > 0 and (in_images or in_texts)
            other = caption.text(at, mask, self.words if in_texts else None)
            others.append(other if compare else None)
            sides.append(side)
            edit.append(self.how.variant == "edited" and second)
        return _Drawn(rows, texts, hidden, answers, others, sides, edit)

    def losses(self, drawn: _Drawn, part: slice) -> dict[str, Tensor]:
        rows = drawn.rows[part]
        pixels = self._pixels(self.data.images, rows, drawn.edit[part])
        texts, hidden, answers = drawn.texts[part], drawn.hidden[part], drawn.answers[part]
        asked = [at for at, answer in enumerate(answers) if answer]
        found: dict[str, Tensor] = {}
        if asked:
            guess = hidden_logprobs(self.model, pixels[asked], [hidden[at] for at in asked])
            found["mask"] = -_right(guess, [answers[at] for at in asked]).sum() / drawn.masks
        others = drawn.others[part]
        compared = [at for at in asked if others[at] is not None]
        if compared:
            sides = [int(drawn.sides[part][at]) for at in compared]  # type: ignore[arg-type]
            shown = self._counterfactual(pixels[compared], sides, rows[compared])
            other = hidden_logprobs(self.model, shown, [str(others[at]) for at in compared])
            there = [answers[at] for at in compared]
            found["mask, counterfactual"] = -_right(other, there).sum() / drawn.compared
            kept = set(compared)
            same = torch.cat(
                [torch.full((len(answers[at]),), at in kept, device=guess.device) for at in asked]
            )
            factual = guess[same]
            divergence = (factual.exp() * (factual - other)).sum()
            found["divergence"] = divergence / drawn.compared
        share = len(rows) / len(drawn.rows)
        for name, loss in other_losses(self.model, pixels, texts).items():
            found[name] = loss * share
        return found

    def total(self, losses: dict[str, Tensor]) -> Tensor:
        alpha = self.how.alpha if self.how.variant in COMPARED else 0.0
        weight = {"mask": 1 - alpha, "mask, counterfactual": 1 - alpha, "divergence": alpha}
        return torch.stack([weight.get(name, 1.0) * loss for name, loss in losses.items()]).sum()

    def _counterfactual(self, pixels: Tensor, sides: list[int], rows: Ints) -> Tensor:
        """The pictures with the other side in them, from the weights as they are now."""
        if not COMPARED[self.how.variant][0]:
            return pixels
        if self.how.images == "edited":
            return self._pixels(self.edited, rows)
        how = self.how
        settings = Attack(how.epsilon, how.step, how.attack_steps, starts=1)  # anew at every step
        network = network_of(self.model)
        learning = [one.training for one in network.modules()]
        network.eval()
        goal = [1 - side for side in sides]
        words = (self.pair[0], self.pair[1])
        changed, _ = attack(
            self.model, pixels, goal, words=words, prompt=self.how.prompt, settings=settings
        )
        for one, was in zip(network.modules(), learning, strict=True):
            one.training = was
        return changed

    def _pixels(self, images: Any, rows: Ints, edit: Any = None) -> Tensor:
        """Pictures of some captions on the model's device; those to `edit` are the editor's."""
        at = np.asarray(self.data.of)[rows]
        edit = np.zeros(len(at), bool) if edit is None else np.asarray(edit)
        if hasattr(images, "redrawn"):  # scenes
            found: Tensor = self.model.pixels(images[at])
            if edit.any():
                found[edit] = self.model.pixels(self.edited[at[edit]])
        else:  # files, which threads can decode at the same time
            places = [
                (self.edited if e else images, int(one)) for e, one in zip(edit, at, strict=True)
            ]
            with ThreadPoolExecutor() as pool:
                found = self.model.pixels(list(pool.map(lambda place: place[0][place[1]], places)))
        return found.to(next(network_of(self.model).parameters()).device)


def _right(logprobs: Tensor, answers: list[list[int]]) -> Tensor:
    """Log-probabilities of the right pieces, one a mask."""
    number = torch.tensor([piece for one in answers for piece in one], device=logprobs.device)
    return logprobs.gather(1, number[:, None])[:, 0]
