"""The prompt array (Berg et al. 2022): learned tokens in every text, trained against an adversary.

A few token embeddings are added to the words of every text; all else is frozen. They learn, in
turns with an adversary, that the group of an image cannot be read from its scores with the training
prompts, and by a contrastive loss (ITC) on captions with their images that scores stay useful.
Image embeddings are computed once, unless the image tower is tuned.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from torch import nn

from tiltmeter.debiasers.adversary import (
    AdversarialObjective,
    AdversaryData,
    RowEncoder,
    Turn,
    alternate,
)
from tiltmeter.debiasers.debiaser import (
    GIVEN_BY,
    ModelEdit,
    check_at_least,
    check_choice,
    check_labelled,
)
from tiltmeter.debiasers.prompt_array_data import (
    Learner,
    accuracy_judge,
    caption_vectors,
    encode_each_time,
    lookup,
    mean_ndkl,
    one_caption_each,
    recall_judge,
)
from tiltmeter.debiasers.text_tower import frozen_copy, in_image_tower, tower_of, tuned_parts
from tiltmeter.debiasers.training_loop import TrainingConfig, train
from tiltmeter.errors import InputError
from tiltmeter.results import content_hash
from tiltmeter.types import Array, Floats, Groups, Ints, Progress

#: Which terms the loss has, besides `l2`: adversarial, ITC.
VARIANTS = {"both": (True, True), "adversarial": (True, False), "itc": (False, True)}
KEEPS = ("best", "last")
#: Captions held out of training, on which the early stop is judged: a share, and at most so many.
WATCHED, MOST_WATCHED = 0.1, 500
TUNED = "tuned.safetensors"
BLOCK = 64  # texts at a time, for models that do not say


@dataclass(eq=False)
class PromptArray(ModelEdit):
    """Prompt array (Berg et al. 2022): learned tokens that hide the group from an adversary.

    Parameters
    ----------
    tokens
        Number of learned tokens.
    place
        Where they are put: `after_sos`, `before_sos`, `appended`, `append_after_eos`, or `add` (to
        the first words).
    start
        What they start from: `token0`, `zeros`, `random` or a word.
    variant
        `both` losses, `adversarial` or `itc` alone.
    itc, l2
        Weights of the contrastive loss and of the distance from the original texts.
    tune
        What learns: `tokens` alone, or with them projection, text:3 (last layers), text, image
        (see PARTS), joined by +.
    words
        Training prompts: a built-in list of stimuli, a file, or the prompts themselves.
    epochs, warmup, block
        Epochs, epochs of the adversary alone before them, and batches per turn.
    batch, learning_rate, adversary_rate
        Batch size, and the learning rates of tokens and adversary.
    hidden, squashed, divide
        The adversary: its width, whether a sigmoid follows its last layer, and what its input is
        divided by.
    stop
        Training stops when recall on held-out captions, or accuracy on the images with classes
        that are given (`utility`), falls below this share of the original model's.
    keep
        Which epoch before the stop is kept: `best` (the least NDKL on the fitted images) or `last`.
    keep_words
        Prompts by which the best epoch is chosen: lists of stimuli joined by +. Empty: the training
        prompts. The authors' code uses those of training, test and sanity:
        `berg-train+berg+berg-sanity`.
    precision, checkpoint, seed
        See `TrainingConfig`.

    Attributes
    ----------
    tokens_ : array of shape (tokens, width)
        The learned tokens.
    tuned_ : dict of str to array
        The tuned weights.
    log_ : list of dict
        Losses, utility and bias by epoch.
    stopped_ : int or None
        The epoch of an early stop.
    kept_ : int or None
        The epoch whose weights these are.
    """

    needs = ("labels", "captions")

    tokens: int = 2
    place: str = "after_sos"
    start: str = "token0"
    variant: str = "both"
    itc: float = 0.05
    l2: float = 0.0
    tune: str = "tokens"
    words: str | Sequence[str] = "berg-train"
    epochs: int = 10
    warmup: int = 2
    block: int = 10
    batch: int = 256
    learning_rate: float = 2e-5
    adversary_rate: float = 2e-4
    hidden: int = 32
    squashed: bool = False
    divide: float = 20.0
    stop: float = 0.5
    keep: str = "best"
    keep_words: str = ""
    precision: str = "auto"
    seed: int = 0
    checkpoint: int = 500

    @property
    def needs_captions(self) -> bool:
        """Only for the contrastive loss; without captions there is no early stop by recall."""
        return VARIANTS.get(self.variant, (True, True))[1]

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
        """Learn from embeddings of labelled images, and from captions with their images.

        See `ModelEdit.fit`. `images` are needed only where the image tower is tuned. Without
        captions there is no ITC and no early stop; `edited` is not used.
        """
        self._check(captions)
        tower_of(model, self.place, self.tokens)  # refuses models without a known text tower
        copied = frozen_copy(model)
        tower = tower_of(copied, self.place, self.tokens)
        device = tower.device
        start = tower.start(self.start, torch.Generator().manual_seed(self.seed))
        tokens = nn.Parameter(start.to(device))
        parts = tuned_parts(tower.network, self.tune)
        for weight in parts.values():
            weight.requires_grad_(True)
        learner = Learner(copied, tower, tokens, device, in_image_tower(tuple(parts)))
        learning = [*([tokens] if self.tokens else []), *parts.values()]
        self.log_: list[dict[str, Any]] = []
        self.stopped_: int | None = None
        self.kept_: int | None = None
        if learning and self.epochs:
            x, labels = check_labelled(vectors, groups)
            params = {k: v for k, v in self.get_params().items() if k != "checkpoint"}
            data = [content_hash(x), labels.codes.tolist(), list(getattr(captions, "texts", ()))]
            key = content_hash([params, data, model.identity["weights"]])
            if progress is not None and captions is not None:
                progress("embedding the captions' images", 0.0)
            objective = self._objective(
                model, learner, learning, captions, x, labels, images, utility
            )
            train(objective, self._config(objective), key=key, checkpoints=checkpoints,
                  progress=progress)  # fmt: skip
            objective.restore_best()
            self.stopped_, self.kept_ = objective.stopped, objective.kept
            self.log_ += objective.log
        self.tokens_: Floats = tokens.detach().cpu().numpy()
        self.tuned_ = {name: weight.detach().cpu().numpy() for name, weight in parts.items()}
        return self

    def apply(self, model: Any) -> Any:
        """Return the model with tuned weights, and with the tokens in its texts."""
        self.check_fitted()
        changed = copy.copy(model)
        if self.tuned_:
            changed.network = copy.deepcopy(model.network)
            weights = {name: torch.as_tensor(weight) for name, weight in self.tuned_.items()}
            changed.network.load_state_dict(weights, strict=False)
        if not len(self.tokens_):
            return changed
        embeds = changed if in_image_tower(tuple(self.tuned_)) else model
        return PromptArrayModel(changed, self.tokens_, self.place, embeds)

    def write(self, directory: Path, model: Any) -> dict[str, Any]:
        from safetensors.numpy import save_file

        if self.tuned_:
            arrays = {name: np.ascontiguousarray(weight) for name, weight in self.tuned_.items()}
            save_file(arrays, directory / TUNED)
        plain = super().write(directory, model)
        return {name: value for name, value in plain.items() if name != "tuned_"}

    def read(self, directory: Path, plain: Mapping[str, Any]) -> Self:
        from safetensors.numpy import load_file

        self.tuned_ = load_file(directory / TUNED) if (directory / TUNED).is_file() else {}
        return super().read(directory, plain)

    def _objective(
        self, model: Any, learner: Learner, learning: list[nn.Parameter], captions: Any, x: Floats,
        labels: Groups, images: Any, utility: Any,
    ) -> AdversarialObjective:  # fmt: skip
        """The training, and what the early stop is judged by."""
        if learner.tunes_images and images is None:
            raise InputError(
                f"tune = {self.tune} changes the image tower, so embeddings are not enough: pass "
                "the images too, fit(model, captions, ..., images=faces.images)"
            )
        device, prompts = learner.device, self._prompts()
        shown = encode_each_time(learner, images) if learner.tunes_images else lookup(x, device)
        with torch.no_grad():
            bare = tower_of(model, self.place, 0)
            before = bare.vectors(bare.tokenize(prompts).to(device), learner.tokens)
        used: Ints = np.empty(0, np.int64)
        caption_images: RowEncoder | None = None
        judges: dict[str, tuple[Any, float]] = {}
        if captions is not None:
            used, watched = self._split(captions, len(x))
            of = np.asarray(captions.of)
            if len(used):
                caption_images = (
                    encode_each_time(learner, captions.images, of[used])
                    if learner.tunes_images
                    else lookup(caption_vectors(model, captions, used), device)
                )
            judge, original = recall_judge(model, learner, captions, watched)
            judges |= {} if judge is None else {"utility": (judge, original)}
        if utility is not None:
            judges["accuracy"] = accuracy_judge(model, learner, utility)
        texts = learner.text_encoder(prompts, [captions.texts[row] for row in used])
        codes = torch.as_tensor(labels.codes.astype(np.int64), device=device)
        adversarial, itc = VARIANTS[self.variant]
        data = AdversaryData(
            codes, len(labels.names), shown, texts, caption_images, len(used),
            float(model.logit_scale), learning, before.detach(),
        )  # fmt: skip
        if judges:
            self.log_ = [
                {"epoch": "before", **{name: value for name, (_, value) in judges.items()}}
            ]
        shown_by = learner.text_encoder(_texts(self.keep_words), []) if self.keep_words else None
        return AdversarialObjective(
            data, self._turns(len(x), adversarial), adversarial, self.itc if itc else 0.0, self.l2,
            self.divide, self.hidden, self.squashed, self.batch, self.adversary_rate, self.seed,
            {name: (measure, self.stop * value) for name, (measure, value) in judges.items()},
            mean_ndkl(data, shown_by) if adversarial and self.keep == "best" else None,
        )  # fmt: skip

    def _config(self, objective: AdversarialObjective) -> TrainingConfig:
        return TrainingConfig(
            len(objective.turns), self.batch, learning_rate=self.learning_rate, weight_decay=0.0,
            precision=self.precision, checkpoint=self.checkpoint, seed=self.seed, clip=None,
            distributed=False,
        )  # fmt: skip

    def _turns(self, images: int, adversarial: bool) -> list[Turn]:
        return alternate(
            images, epochs=self.epochs, warmup=self.warmup, block=self.block, batch=self.batch,
            seed=self.seed, adversarial=adversarial,
        )  # fmt: skip

    def _split(self, captions: Any, images: int) -> tuple[Ints, Ints]:
        """Rows of captions to learn from, no more than will be seen; and rows held out."""
        rng = np.random.default_rng([self.seed, 2])
        rows = one_caption_each(np.asarray(captions.of), rng)
        count = min(MOST_WATCHED, int(WATCHED * len(rows)))
        _, itc = VARIANTS[self.variant]
        most = self.batch * len(self._turns(images, False)) if itc and self.itc else 0
        return rows[count : count + most], rows[:count]

    def _prompts(self) -> list[str]:
        return _texts(self.words) if isinstance(self.words, str) else list(self.words)

    def _check(self, captions: Any) -> None:
        check_choice("variant of the prompt array", self.variant, tuple(VARIANTS))
        check_choice("epoch to keep", self.keep, KEEPS)
        check_at_least(0, tokens=self.tokens, epochs=self.epochs, warmup=self.warmup)
        check_at_least(1, block=self.block, batch=self.batch, hidden=self.hidden)
        if self.variant == "itc" and not self.itc:
            raise InputError("variant itc with itc = 0 would learn nothing: use a weight above 0")
        lacking = captions is None or getattr(captions, "images", None) is None
        if lacking and (VARIANTS[self.variant][1] or captions is not None):
            raise InputError(
                f"variant {self.variant} needs captions with their images: "
                f"{GIVEN_BY['captions']}, such as captions=coco:FILE?images=DIR"
            )


def _texts(words: str) -> list[str]:
    """The prompts of lists of stimuli, joined by +, each once."""
    from tiltmeter import stimuli
    from tiltmeter.probes.texts import lists

    texts = (prompt.text for listed in lists(words) for prompt in stimuli.prompts(listed))
    return list(dict.fromkeys(texts))


class PromptArrayModel:
    """A model with learned tokens among the words of every text; all else is the model's own.

    Parameters
    ----------
    model
        The model, with its tuned weights.
    tokens : array of shape (n_tokens, width)
        The learned tokens.
    place
        Where they are put.
    embeds
        The model that it embeds images as: the uncorrected one, unless the image tower was tuned.
    """

    def __init__(self, model: Any, tokens: Floats, place: str, embeds: Any) -> None:
        self.model = model
        self.tokens_learned = tokens
        self.place = place
        self.embeds = embeds

    def __getattr__(self, name: str) -> Any:
        if name == "model":  # not set yet, as in a copy that is being made
            raise AttributeError(name)
        return getattr(self.model, name)

    @property
    def identity(self) -> dict[str, Any]:
        identity = self.model.identity
        weights = [identity["weights"], content_hash(self.tokens_learned), self.place]
        return {**identity, "weights": content_hash(weights)}

    @property
    def image_identity(self) -> dict[str, Any]:
        """What determines its embeddings of images: learned tokens do not."""
        return self.embeds.identity  # type: ignore[no-any-return]

    def to(self, device: str | torch.device) -> Self:
        if hasattr(self.model, "to"):  # a model of the user's own may have no device
            self.model.to(device)
        return self

    def encode_texts(self, texts: Sequence[str]) -> Array:
        tower = tower_of(self.model, self.place, len(self.tokens_learned))
        device = tower.device
        tokens = torch.as_tensor(self.tokens_learned, device=device)
        block, vectors = getattr(self.model, "block", BLOCK), []
        with torch.inference_mode():
            for at in range(0, len(texts), block):
                batch = tower.tokenize(texts[at : at + block]).to(device)
                vectors.append(tower.vectors(batch, tokens))
        return torch.cat(vectors).cpu().numpy()
