"""A torch module as a model: what all backends with a network have in common.

Images are whatever the backend can convert to pixels, or a tensor of pixels from 0 to 1. A tensor
is processed in one piece and gives a tensor with gradients; anything else is processed in blocks
and gives NumPy arrays.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Self

import torch
from torch import Tensor, nn

from tiltmeter.errors import InputError
from tiltmeter.models.weights import weights_hash
from tiltmeter.results import content_hash
from tiltmeter.types import Array

#: Settings that say where a checkpoint was and what wrote it, not what it computes.
PLACES = ("_name_or_path", "name_or_path", "transformers_version", "_commit_hash")


class Network:
    """A torch module with a name, its provenance, and its preprocessing of images and texts.

    `preprocessing` contains everything that decides how an image becomes pixels: with the hash of
    the weights it says whether a stored embedding is still this model's.

    Parameters
    ----------
    network : torch.nn.Module
        The module; it is set to evaluation mode.
    name : str
        Name of the model.
    provenance : dict
        Where it came from; recorded with the results.
    """

    preprocessing: dict[str, Any] = {}  # noqa: RUF012
    block = 64  # rows at a time where no gradients are needed

    def __init__(self, network: nn.Module, name: str, provenance: dict[str, Any]) -> None:
        self.network: Any = network.eval()
        self.name = name
        self._provenance = provenance

    @property
    def identity(self) -> dict[str, Any]:
        """Everything that decides an embedding, given the pixels: class, settings and weights.

        Weights are hashed again each time: a model that was trained is another one.
        """
        config: Any = getattr(self.network, "config", None)
        if hasattr(config, "to_dict"):
            settings: Any = {k: v for k, v in config.to_dict().items() if k not in PLACES}
        else:
            settings = repr(self.network)  # its layers, with their kinds and sizes
        return {
            "class": type(self.network).__name__,
            "settings": content_hash(settings),
            "weights": weights_hash(self.network),
        }

    @property
    def provenance(self) -> dict[str, Any]:
        """Where it came from, and a hash of its current weights."""
        return {**self._provenance, "weights": weights_hash(self.network)}

    @property
    def device(self) -> torch.device:
        return next(iter(self.parameters())).device

    def to(self, device: str | torch.device) -> Self:
        """Move the model to a device, in place."""
        self.network.to(device)
        return self

    def parameters(self) -> Iterable[Tensor]:
        return self.network.parameters()  # type: ignore[no-any-return]

    def pixels(self, images: Any) -> Tensor:
        """Images as a tensor, n x 3 x height x width, from 0 to 1, on the CPU."""
        raise NotImplementedError

    def tokens(self, texts: Sequence[str]) -> Any:
        """Texts as the network takes them: an object with `.to(device)`."""
        raise NotImplementedError

    def run(
        self, work: Callable[..., Tensor], images: Any | None, texts: Sequence[str] | None
    ) -> Array:
        """Apply `work` to the pixels of images, the tokens of texts, or both."""
        inputs = [x for x in (images, texts) if x is not None]
        if len({len(x) for x in inputs}) > 1:
            raise InputError(
                f"{len(inputs[0])} images, but {len(inputs[1])} texts: give one text per image"
            )
        if isinstance(images, Tensor):
            return self._step(work, images, texts)
        with torch.inference_mode():
            blocks = [
                self._step(work, *(None if x is None else x[at : at + self.block] for x in
                                   (images, texts)))
                for at in range(0, len(inputs[0]), self.block)
            ]  # fmt: skip
            return torch.cat(blocks).float().cpu().numpy()

    def _step(
        self, work: Callable[..., Tensor], images: Any | None, texts: Sequence[str] | None
    ) -> Tensor:
        ready = []
        if images is not None:
            ready.append(images if isinstance(images, Tensor) else self.pixels(images))
        if texts is not None:
            ready.append(self.tokens(texts))
        return work(*(x.to(self.device) for x in ready))


class Matching(Network):
    """A network that scores image and text; it reads the image before it knows the text."""

    def see(self, pixels: Tensor) -> Tensor:
        """What the network makes of images alone."""
        raise NotImplementedError

    def match_seen(self, seen: Tensor, tokens: Any) -> Tensor:
        """One logit per pair of an image that was seen and a text."""
        raise NotImplementedError

    def match(self, images: Any, texts: Sequence[str]) -> Array:
        """The logit of a match, one per pair."""
        return self.run(lambda x, t: self.match_seen(self.see(x), t), images, texts)

    def match_grid(self, images: Any, texts: Sequence[str]) -> Array:
        """Logits of all images with all texts, images x texts; each image is read once."""
        blocks = []
        with torch.inference_mode():
            for at in range(0, len(images), self.block):
                seen = self.see(self.pixels(images[at : at + self.block]).to(self.device))
                logits = [self.match_seen(seen, self.tokens([text] * len(seen)).to(self.device))
                          for text in texts]  # fmt: skip
                blocks.append(torch.stack(logits, dim=1))
            return torch.cat(blocks).float().cpu().numpy()


class Masked(Network):
    """A network that predicts masked words."""

    mask_token: str
    mask_id: int

    def pieces(self, word: str) -> tuple[int, ...]:
        """Token numbers of a word's pieces."""
        raise NotImplementedError

    def word_logits(self, pixels: Tensor | None, tokens: Any) -> tuple[Tensor, Tensor]:
        """Logits of every piece at every position of the texts, and the texts' token numbers."""
        raise NotImplementedError

    def mask_logprobs(self, images: Any | None, texts: Sequence[str]) -> Array:
        """Log-probabilities of every piece at every mask.

        Parameters
        ----------
        images : object or None
            One image per text, or None.
        texts : sequence of str
            Texts with `mask_token`, equally often in each.

        Returns
        -------
        array of shape (texts, masks, pieces)
            NumPy, or a tensor where `images` is one.

        Raises
        ------
        InputError
            A text has no mask or another number of them, or is too long.
        """
        counts = {text.count(self.mask_token) for text in texts}
        if len(counts) != 1 or 0 in counts:
            raise InputError(
                f"every text must contain {self.mask_token}, all of them equally often; got texts "
                f"with {', '.join(str(count) for count in sorted(counts))}"
            )

        def work(*ready: Any) -> Tensor:
            logits, ids = self.word_logits(ready[0] if len(ready) == 2 else None, ready[-1])
            hidden = ids == self.mask_id
            if set(hidden.sum(dim=1).tolist()) != counts:
                raise InputError(
                    f"a text is too long for {self.name}: a {self.mask_token} is cut off"
                )
            logprobs = logits[hidden].log_softmax(dim=-1)
            return torch.unflatten(logprobs, 0, (len(ids), -1))

        return self.run(work, images, texts)
