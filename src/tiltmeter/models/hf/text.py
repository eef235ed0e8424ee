"""Masked words with a checkpoint's tokenizer, and models that only read texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor

from tiltmeter.errors import InputError
from tiltmeter.models.hf.checkpoint import Checkpoint
from tiltmeter.models.network import Masked, Network
from tiltmeter.types import Array


class TokenizerMasks(Masked):
    """Masks and pieces of the checkpoint's own tokenizer; a mixin, listed first."""

    tokenizer: Any

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        if self.tokenizer.mask_token is None:
            raise InputError(
                f"the tokenizer of {self.name} has no mask token: it cannot mask words"
            )
        self.mask_token = str(self.tokenizer.mask_token)
        self.mask_id = int(self.tokenizer.mask_token_id)
        self._swallow_space()

    def pieces(self, word: str) -> tuple[int, ...]:
        """Token numbers of a word's pieces, as inside a sentence."""
        # there a word follows a space, which byte-level pieces such as RoBERTa's include
        ids = self.tokenizer(f" {word}", add_special_tokens=False)["input_ids"]
        if not ids or self.tokenizer.unk_token_id in ids:
            raise InputError(f"the tokenizer of {self.name} has no pieces for {word!r}")
        return tuple(ids)

    def _swallow_space(self) -> None:
        """Let a mask include the space before it, as in training."""
        # the library loses this where a byte-level tokenizer was saved without tokenizer.json
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
    """BERT and RoBERTa: masked words from texts alone."""

    text_only = True

    def mask_logprobs(self, images: Any | None, texts: Sequence[str]) -> Array:
        """Log-probabilities of every piece at every mask; images must be None."""
        if images is not None:
            raise InputError(f"{self.name} only reads texts: images must be None")
        return super().mask_logprobs(None, texts)

    def word_logits(self, pixels: Tensor | None, tokens: Any) -> tuple[Tensor, Tensor]:
        return self.network(**tokens)[0], tokens["input_ids"]


def served(checkpoint: Checkpoint, kinds: Mapping[str, type]) -> Any:
    """The checkpoint in the class of `kinds` for the architecture that it was saved from."""
    import transformers

    name = checkpoint.architecture
    if name not in kinds:
        raise InputError(
            f"hf:{checkpoint.name} was saved from {name or 'an unnamed class'}; of "
            f"{checkpoint.model_type} the classes {', '.join(kinds)} can be measured. The name "
            "is in its config.json under architectures"
        )
    return kinds[name](checkpoint, getattr(transformers, name))


def load(checkpoint: Checkpoint) -> TextModel:
    """BERT or RoBERTa with the head for masked words."""
    names = ("BertForMaskedLM", "BertForPreTraining", "RobertaForMaskedLM")
    return served(checkpoint, dict.fromkeys(names, TextModel))  # type: ignore[no-any-return]
