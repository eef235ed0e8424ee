"""A model and an adversary that learn in turns: the adversary reads the group from scores.

The adversary is a small MLP over the similarity logits of one image with the training prompts. It
minimises the cross-entropy of the group; the model maximises it, with terms that keep it useful:

    L = - CE(adversary) + itc * ITC + l2 * |texts - texts before|^2
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tiltmeter.debiasers.training_loop import Objective
from tiltmeter.errors import InputError
from tiltmeter.types import Ints

#: Rows -> unit vectors.
RowEncoder = Callable[[Tensor | Ints], Tensor]
NO_PAIRS: Ints = np.empty(0, np.int64)
ADVERSARY_LOSS, ADVERSARY_ACCURACY = "adversary's loss", "adversary's accuracy"


class Adversary(nn.Module):
    """An MLP with two hidden layers and ReLU.

    Parameters
    ----------
    prompts, groups, hidden
        Sizes of the input, the output and the hidden layers.
    squashed
        Whether a sigmoid follows the last layer, as in the authors' code. The cross-entropy then
        applies a softmax to it: with k groups the loss is between ln(1 + (k-1)/e) and
        ln(1 + (k-1)e), whatever the adversary has learned. It can never be certain, and where it
        is, no gradient is left.
    """

    def __init__(self, prompts: int, groups: int, hidden: int = 32, *, squashed: bool = False):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Linear(prompts, hidden),
            nn.ReLU(),
            nn.Linear(hidden, hidden),
            nn.ReLU(),
            nn.Linear(hidden, groups),
        )
        self.squashed = squashed

    def forward(self, logits: Tensor) -> Tensor:
        guess: Tensor = self.layers(logits)
        return guess.sigmoid() if self.squashed else guess


class Turn(NamedTuple):
    """One step: its epoch, its rows of images, and whether the model learns or the adversary."""

    epoch: int
    rows: Ints
    model: bool


def alternate(
    images: int, *, epochs: int, warmup: int, block: int, batch: int, seed: int, adversarial: bool
) -> list[Turn]:
    """Return the turns of a training, batch by batch.

    Epochs before 0 are the adversary's alone. Where there is no adversary, its turns are left out:
    so the model has as many steps in every variant.

    Parameters
    ----------
    images
        Number of images.
    epochs, warmup
        Number of epochs, and of the adversary's epochs before them.
    block
        Batches until the other one's turn.
    batch
        Images per batch.
    seed
        Seed of the order.
    adversarial
        Whether there is an adversary.
    """
    turns = []
    step = 0
    for epoch in range(-warmup, epochs):
        order = np.random.default_rng([seed, 0, epoch + warmup]).permutation(images)
        for at in range(0, images, batch):
            model = epoch >= 0 and step // block % 2 == 0
            step += epoch >= 0
            if model or adversarial:
                turns.append(Turn(epoch, order[at : at + batch], model))
    return turns


@dataclass(eq=False)
class AdversaryData:
    """What both learn from. All vectors are unit vectors on one device."""

    codes: Tensor  # the group of each image
    groups: int
    images: RowEncoder
    #: Rows of captions -> vectors of the training prompts, and of those captions.
    texts: Callable[[Ints], tuple[Tensor, Tensor]]
    caption_images: RowEncoder | None  # by rows of captions
    pairs: int  # how many captions there are
    scale: float  # logits are cosines times this
    learning: list[nn.Parameter]  # the model's weights that learn
    prompts_before: Tensor | None = None  # what the l2 term pulls to


@dataclass(eq=False)
class AdversarialObjective(Objective):
    """The losses of model and adversary, and the choice of an epoch.

    The two chase each other, so the last epoch is not the best one. `restore_best` restores the
    weights after the epoch of the least `bias` (after the last one, where that is not given), of
    those before utility fell.

    Parameters
    ----------
    data
        What both learn from.
    turns
        Whose turn each step is: see `alternate`.
    adversarial, itc, l2
        The terms of the model's loss.
    divide
        Logits are divided by this before the adversary reads them, as in the authors' code.
    hidden, squashed
        See `Adversary`.
    batch
        Captions per step.
    adversary_rate
        The adversary's learning rate.
    seed
        Seed of the adversary's weights and of the order of captions.
    utilities
        By name, what is measured after each epoch, and its least value: training stops when one of
        them is below that.
    bias
        Measured after each epoch.

    Attributes
    ----------
    log : list of dict
        One entry per epoch: mean losses, utility and bias.
    kept, stopped : int or None
        The epoch whose weights are the best, and the epoch of an early stop.
    """

    data: AdversaryData
    turns: Sequence[Turn]
    adversarial: bool = True
    itc: float = 0.05
    l2: float = 0.0
    divide: float = 20.0
    hidden: int = 32
    squashed: bool = False
    batch: int = 256
    adversary_rate: float = 2e-4
    seed: int = 0
    utilities: Mapping[str, tuple[Callable[[], float], float]] = field(default_factory=dict)
    bias: Callable[[], float] | None = None
    log: list[dict[str, Any]] = field(default_factory=list, init=False)
    kept: int | None = field(default=None, init=False)
    stopped: int | None = field(default=None, init=False)
    _lowest: float = field(default=float("inf"), init=False)

    def __post_init__(self) -> None:
        data = self.data
        with torch.no_grad():
            prompts = len(data.texts(NO_PAIRS)[0])
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.seed)
            adversary = Adversary(prompts, data.groups, self.hidden, squashed=self.squashed)
        self.adversary = adversary.to(data.codes.device)
        self.network = nn.ModuleList([nn.ParameterList(data.learning), self.adversary])
        self._best = [weight.detach().clone() for weight in data.learning]
        self._prompts: Tensor | None = None  # unchanged while the adversary learns
        self._model_step = np.cumsum([turn.model for turn in self.turns]) - 1
        self._pair_order: tuple[int, Ints] = (-1, NO_PAIRS)
        if self._contrastive and min(self.batch, data.pairs) < 2:
            raise InputError(
                f"the ITC term compares pairs: two or more are needed, not {data.pairs}"
            )

    @property
    def _contrastive(self) -> bool:
        return bool(self.itc) and self.data.caption_images is not None

    def players(self) -> dict[str, tuple[list[nn.Parameter], float | None]]:
        return {
            "model": (self.data.learning, None),
            "adversary": (list(self.adversary.parameters()), self.adversary_rate),
        }

    def player(self, step: int) -> str:
        return "model" if self.turns[step].model else "adversary"

    def draw(self, step: int, rng: np.random.Generator) -> tuple[bool, Tensor, Ints]:
        """Whether it is the model's turn, rows of images, and rows of captions."""
        turn = self.turns[step]
        rows = torch.as_tensor(turn.rows, device=self.data.codes.device)
        return turn.model, rows, self._pairs(int(self._model_step[step]))

    def losses(
        self, batch: tuple[bool, Tensor, Ints], part: slice | None = None
    ) -> dict[str, Tensor]:
        model, rows, pairs = batch  # always whole: ITC compares all pairs of a batch
        if model:
            self._prompts = None
            return self._model_losses(rows, pairs)
        return self._adversary_losses(rows)

    def total(self, losses: dict[str, Tensor]) -> Tensor:
        if ADVERSARY_LOSS in losses:
            return losses[ADVERSARY_LOSS]
        weights = {"hidden": -1.0, "itc": self.itc, "l2": self.l2}
        total: Any = sum(weights[name] * loss for name, loss in losses.items())
        return total  # type: ignore[no-any-return]

    def end_step(self, step: int, log: list[dict[str, Any]]) -> bool:
        """After the last step of an epoch: measure, keep the best weights, maybe stop."""
        epoch = self.turns[step].epoch
        if step + 1 < len(self.turns) and self.turns[step + 1].epoch == epoch:
            return False
        first = next(at for at, turn in enumerate(self.turns) if turn.epoch == epoch)
        line = {"epoch": epoch, **_means(log[first : step + 1])}
        if epoch >= 0:
            line |= {name: measure() for name, (measure, _) in self.utilities.items()}
            line |= {} if self.bias is None else {"bias": self.bias()}
        self.log.append(line)
        if any(line.get(name, least) < least for name, (_, least) in self.utilities.items()):
            self.stopped = epoch
            return True
        if epoch >= 0 and (self.bias is None or line["bias"] < self._lowest):
            self._lowest, self.kept = line.get("bias", self._lowest), epoch
            self._best = [weight.detach().clone() for weight in self.data.learning]
        return False

    def restore_best(self) -> None:
        """Give the model the weights of the epoch `kept`."""
        with torch.no_grad():
            for weight, value in zip(self.data.learning, self._best, strict=True):
                weight.copy_(value)

    def state(self) -> dict[str, Any]:
        return {"log": self.log, "kept": self.kept, "stopped": self.stopped,
                "lowest": self._lowest, "best": self._best}  # fmt: skip

    def restore(self, state: dict[str, Any]) -> None:
        self.log, self.kept, self.stopped = list(state["log"]), state["kept"], state["stopped"]
        self._lowest, self._best = state["lowest"], state["best"]

    def _adversary_losses(self, rows: Tensor) -> dict[str, Tensor]:
        with torch.no_grad():
            if self._prompts is None:
                self._prompts = self.data.texts(NO_PAIRS)[0]
            images = self.data.images(rows)
        with _full_precision(rows.device):
            guess, codes = self._guess(images, self._prompts), self.data.codes[rows]
            correct = (guess.argmax(dim=1) == codes).float().mean()
            return {ADVERSARY_LOSS: F.cross_entropy(guess, codes), ADVERSARY_ACCURACY: correct}

    def _model_losses(self, rows: Tensor, pairs: Ints) -> dict[str, Tensor]:
        data = self.data
        prompts, texts = data.texts(pairs)
        images = data.images(rows) if self.adversarial else None
        shown = data.caption_images(pairs) if self._contrastive else None  # type: ignore[misc]
        losses: dict[str, Tensor] = {}
        with _full_precision(rows.device):
            if images is not None:
                self.adversary.requires_grad_(False)
                losses["hidden"] = F.cross_entropy(self._guess(images, prompts), data.codes[rows])
                self.adversary.requires_grad_(True)
            if shown is not None:
                logits = data.scale * texts.float() @ shown.float().T
                own = torch.arange(len(logits), device=logits.device)
                losses["itc"] = (F.cross_entropy(logits, own) + F.cross_entropy(logits.T, own)) / 2
            if self.l2 and data.prompts_before is not None:
                losses["l2"] = (prompts - data.prompts_before).square().sum()
        return losses

    def _guess(self, images: Tensor, prompts: Tensor) -> Tensor:
        scale = self.data.scale / self.divide
        guess: Tensor = self.adversary(scale * images.float() @ prompts.float().T)
        return guess

    def _pairs(self, model_step: int) -> Ints:
        """Rows of captions for a step of the model: every one once before any is repeated."""
        if not self._contrastive or model_step < 0:
            return NO_PAIRS
        size = min(self.batch, self.data.pairs)
        epoch, at = divmod(model_step, self.data.pairs // size)
        if self._pair_order[0] != epoch:
            rng = np.random.default_rng([self.seed, 1, epoch])
            self._pair_order = epoch, rng.permutation(self.data.pairs)
        return self._pair_order[1][at * size : (at + 1) * size]


def _means(log: Sequence[dict[str, Any]]) -> dict[str, float]:
    """The mean of each loss over the steps that have it."""
    names = dict.fromkeys(name for losses in log for name in losses)
    return {
        name: float(torch.tensor([float(x[name]) for x in log if name in x]).mean())
        for name in names
    }


def _full_precision(device: torch.device) -> Any:
    return torch.autocast(device.type, enabled=False)
