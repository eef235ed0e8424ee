"""Words: how a checkpoint's tokenizer hides and spells them; and the models that only read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from tiltmeter.errors import InputError
from tiltmeter.models.hf.checkpoint import Checkpoint
from tiltmeter.models.network import Masked, Network
from tiltmeter.types import Array


class TokenizerMasks(Masked):
    """Masks and pieces as the checkpoint's own tokenizer has them; stands before what loads it."""

    tokenizer: Any

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        if self.tokenizer.mask_token is None:
            raise InputError(f"the tokenizer of {self.name} has no mask: it cannot hide words")
        self.mask_token = str(self.tokenizer.mask_token)
        self.mask_id = int(self.tokenizer.mask_token_id)
        self._swallow_space()

    def pieces(self, word: str) -> tuple[int, ...]:
        """The numbers of a word's pieces, as they stand inside a sentence."""
        # there a word follows a space, and byte-level pieces such as RoBERTa's hold that space
        found = self.tokenizer(f" {word}", add_special_tokens=False)["input_ids"]
        if not found or self.tokenizer.unk_token_id in found:
            raise InputError(f"the tokenizer of {self.name} has no pieces for {word!r}")
        return tuple(found)

    def _swallow_space(self) -> None:
        """Lets a mask stand for a word with the space before it, as it did in training."""
        # the library forgets this where a byte-level tokenizer was saved without tokenizer.json
        spaced, tight = (
            self.tokenizer(f"a{gap}{self.mask_token}")["input_ids"] for gap in (" ", "")
        )
        if spaced != tight:
            from transformers import AddedToken

            mask = AddedToken(self.mask_token, lstrip=True, special=True, normalized=False)
            self.tokenizer.add_special_tokens({"mask_token": mask})


class TextCheckpoint(Network):
    """A checkpoint without an image processor."""

    def __init__(self, checkpoint: Checkpoint, kind: type) -> None:
        network = checkpoint.network(kind)
        super().__init__(network, checkpoint.name, checkpoint.provenance(network))
        self.tokenizer = checkpoint.tokenizer

    def tokens(self, texts: Sequence[str]) -> Any:
        return self.tokenizer(list(texts), padding=True, truncation=True, return_tensors="pt")


class TextModel(TokenizerMasks, TextCheckpoint):
    """BERT and RoBERTa: words beside words, and no picture."""

    def mask_logprobs(self, images: Any | None, texts: Sequence[str]) -> Array:
        """Log-probabilities of every piece at every mask; images must be None."""
        if images is not None:
            raise InputError(f"{self.name} only reads texts: images must be None")
        return super().mask_logprobs(None, texts)

    def word_logits(self, pixels: Tensor | None, tokens: Any) -> tuple[Tensor, Tensor]:
        return self.network(**tokens)[0], tokens["input_ids"]


def served(checkpoint: Checkpoint, kinds: Mapping[str, type]) -> Any:
    """The checkpoint in the one of our kinds that fits the class that it was saved from."""
    import transformers

    name = checkpoint.architecture
    if name not in kinds:
        raise InputError(
            f"hf:{checkpoint.name} was saved from {name or 'a class that it does not name'}; of "
            f"{checkpoint.model_type} the classes {', '.join(kinds)} can be measured. The name "
            "stands in its config.json under architectures"
        )
    return kinds[name](checkpoint, getattr(transformers, name))


def load(checkpoint: Checkpoint) -> TextModel:
    """BERT or RoBERTa with the head for hidden words."""
    names = ("BertForMaskedLM", "BertForPreTraining", "RobertaForMaskedLM")
    return served(checkpoint, dict.fromkeys(names, TextModel))  # type: ignore[no-any-return]
