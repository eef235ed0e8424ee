"""Two sides that learn in turns: an adversary reads the group off scores, the model hides it.

The adversary is a small MLP over the similarity logits of one image with the training prompts. It
minimises the cross-entropy of the group; the model maximises it, beside terms that keep it useful:

    L = - CE(adversary) + itc * ITC + l2 * |texts - texts before|^2
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tiltmeter.errors import InputError
from tiltmeter.types import Ints, Progress


class Adversary(nn.Module):
    """Two hidden layers, ReLU; `squashed` puts a sigmoid behind the last one.

    The authors' code has that sigmoid before the cross-entropy, which applies a softmax to it: with
    k groups the loss then lies between ln(1 + (k-1)/e) and ln(1 + (k-1)e), whatever the adversary
    knows. It can never be sure, and no gradient is left where it is.
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
        found: Tensor = self.layers(logits)
        return found.sigmoid() if self.squashed else found


@dataclass(frozen=True)
class AdversaryConfig:
    """How long, how large, how fast."""

    epochs: int = 10
    warmup: int = 2  # epochs of the adversary alone, before the others
    block: int = 10  # batches until the other side's turn
    batch: int = 256
    learning_rate: float = 2e-5
    adversary_rate: float = 2e-4
    seed: int = 0

    def turns(self, images: int, *, adversarial: bool) -> Iterator[tuple[int, Ints, bool]]:
        """Epoch, rows of images, and whether it is the model's turn, batch by batch.

        Epochs before 0 are the adversary's alone. Where there is none, its turns are left out: so
        a model has as many steps in every variant.
        """
        step = 0
        for epoch in range(-self.warmup, self.epochs):
            order = np.random.default_rng([self.seed, 0, epoch + self.warmup]).permutation(images)
            for at in range(0, images, self.batch):
                models = epoch >= 0 and step // self.block % 2 == 0
                step += epoch >= 0
                if models or adversarial:
                    yield epoch, order[at : at + self.batch], models


@dataclass(eq=False)
class AdversaryData:
    """What the two sides learn from. All vectors are unit and on one device."""

    codes: Tensor  # the group of each image
    groups: int
    images: Callable[[Tensor], Tensor]  # rows -> vectors
    #: Rows of pairs -> vectors of the training prompts, and of those pairs' texts.
    texts: Callable[[Ints], tuple[Tensor, Tensor]]
    pictures: Callable[[Ints], Tensor] | None  # rows of pairs -> vectors of their pictures
    pairs: int  # how many there are
    scale: float  # logits are this many cosines
    learning: list[nn.Parameter]  # the model's weights that learn
    prompts_before: Tensor | None = None  # what the l2 term pulls to


@dataclass(eq=False)
class AdversarialObjective:
    """The terms of the loss, and the course that both sides take in turns."""

    course: AdversaryConfig
    adversarial: bool = True
    itc: float = 0.05
    l2: float = 0.0
    divide: float = 20.0  # logits, before the adversary reads them: so the authors' code
    hidden: int = 32
    squashed: bool = False
    half: bool = False  # bfloat16 for the towers
    log: list[dict[str, float]] = field(default_factory=list, init=False)
    kept: int | None = field(default=None, init=False)

    def run(
        self,
        sides: AdversaryData,
        *,
        utility: Callable[[], float] | None = None,
        least: float = 0.0,
        bias: Callable[[], float] | None = None,
        progress: Progress | None = None,
    ) -> int | None:
        """Trains; returns the epoch at which `utility` fell under `least`, or None.

        The two sides chase each other, so the last epoch is not the best one. Weights are left as
        they were after the epoch of the least `bias` (after the last one, where that is not given),
        of those before utility fell: `kept` says which.
        """
        self.log, self.kept = [], None
        if not sides.learning:
            return None
        device, course = sides.codes.device, self.course
        adversary = self._adversary(sides).to(device)
        fast: dict[str, Any] = {"fused": True} if device.type == "cuda" else {}
        models = torch.optim.Adam(sides.learning, lr=course.learning_rate, **fast)
        others = torch.optim.Adam(adversary.parameters(), lr=course.adversary_rate, **fast)
        draw = self._pairs(sides)
        seen: list[dict[str, Tensor]] = []
        best = [one.detach().clone() for one in sides.learning]
        lowest, stopped = float("inf"), None
        prompts: Tensor | None = None  # stay the same while the adversary learns
        turns = list(course.turns(len(sides.codes), adversarial=self.adversarial))
        for at, (epoch, rows, models_turn) in enumerate(turns):
            here = torch.as_tensor(rows, device=device)
            if models_turn:
                seen.append(self._model_step(sides, adversary, models, here, next(draw)))
                prompts = None
            else:
                if prompts is None:
                    with torch.no_grad(), self._precision(device):
                        prompts = sides.texts(np.empty(0, np.int64))[0]
                seen.append(self._adversary_step(sides, adversary, others, here, prompts))
            if progress is not None and at % 20 == 0:
                progress(f"epoch {max(epoch, 0) + 1} of {course.epochs}", at / len(turns))
            if at + 1 < len(turns) and turns[at + 1][0] == epoch:
                continue
            judged = {"utility": utility, "bias": bias} if epoch >= 0 else {}
            line = self._note(epoch, seen, {n: f() for n, f in judged.items() if f is not None})
            seen = []
            if line.get("utility", least) < least:
                stopped = epoch
                break
            if epoch >= 0 and (bias is None or line["bias"] < lowest):
                lowest, self.kept = line.get("bias", lowest), epoch
                best = [one.detach().clone() for one in sides.learning]
        _put(sides.learning, best)
        return stopped

    def _adversary(self, sides: AdversaryData) -> Adversary:
        with torch.no_grad(), self._precision(sides.codes.device):
            prompts = len(sides.texts(np.empty(0, np.int64))[0])
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(self.course.seed)
            return Adversary(prompts, sides.groups, self.hidden, squashed=self.squashed)

    def _adversary_step(
        self,
        sides: AdversaryData,
        adversary: Adversary,
        optimizer: Any,
        rows: Tensor,
        prompts: Tensor,
    ) -> dict[str, Tensor]:
        with torch.no_grad(), self._precision(rows.device):
            images = sides.images(rows)
        logits = sides.scale / self.divide * images.float() @ prompts.float().T
        guess, codes = adversary(logits), sides.codes[rows]
        loss = F.cross_entropy(guess, codes)
        optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        right = (guess.argmax(dim=1) == codes).float().mean()
        return {"adversary's loss": loss.detach(), "adversary's accuracy": right.detach()}

    def _model_step(
        self, sides: AdversaryData, adversary: Adversary, optimizer: Any, rows: Tensor, pairs: Ints
    ) -> dict[str, Tensor]:
        with self._precision(rows.device):
            prompts, texts = sides.texts(pairs)
            images = sides.images(rows) if self.adversarial else None
            pictures = sides.pictures(pairs) if self.itc and sides.pictures is not None else None
        found: dict[str, Tensor] = {}
        total = prompts.new_zeros(())
        if images is not None:
            logits = sides.scale / self.divide * images.float() @ prompts.float().T
            adversary.requires_grad_(False)
            found["hidden"] = F.cross_entropy(adversary(logits), sides.codes[rows])
            adversary.requires_grad_(True)
            total = total - found["hidden"]
        if pictures is not None:
            logits = sides.scale * texts.float() @ pictures.float().T
            own = torch.arange(len(logits), device=logits.device)
            itc = (F.cross_entropy(logits, own) + F.cross_entropy(logits.T, own)) / 2
            found["itc"] = itc
            total = total + self.itc * itc
        if self.l2 and sides.prompts_before is not None:
            found["l2"] = (prompts - sides.prompts_before).square().sum()
            total = total + self.l2 * found["l2"]
        optimizer.zero_grad(set_to_none=True)
        total.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        return {name: one.detach() for name, one in found.items()}

    def _pairs(self, sides: AdversaryData) -> Iterator[Ints]:
        """Rows of pairs for each of the model's steps: every pair once before any comes again."""
        none, epoch = np.empty(0, np.int64), 0
        if not self.itc or sides.pictures is None:
            while True:
                yield none
        size = min(self.course.batch, sides.pairs)
        if size < 2:
            raise InputError(f"the ITC term tells pairs apart: give two or more, not {sides.pairs}")
        while True:
            order = np.random.default_rng([self.course.seed, 1, epoch]).permutation(sides.pairs)
            for at in range(0, sides.pairs - size + 1, size):
                yield order[at : at + size]
            epoch += 1

    def _note(
        self, epoch: int, seen: list[dict[str, Tensor]], judged: dict[str, float]
    ) -> dict[str, float]:
        """One line of the log: means over the epoch's batches, and what was measured after it."""
        names = dict.fromkeys(name for one in seen for name in one)
        means = {
            name: float(torch.stack([one[name] for one in seen if name in one]).mean())
            for name in names
        }
        self.log.append({"epoch": epoch, **means, **judged})
        return self.log[-1]

    def _precision(self, device: torch.device) -> Any:
        return torch.autocast(device.type, torch.bfloat16, enabled=self.half)


def _put(weights: list[nn.Parameter], values: list[Tensor]) -> None:
    with torch.no_grad():
        for weight, value in zip(weights, values, strict=True):
            weight.copy_(value)
