"""VisualBERT and LXMERT: models of image regions that a detector found, instead of pixels.

Their images are `Regions`. Features given as a tensor, alone or in `Regions`, keep gradients: an
attack then acts on features. uclanlp's VisualBERT comes without a tokenizer; it uses that of
bert-base-uncased: save it next to the weights.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from tiltmeter.errors import InputError
from tiltmeter.io.regions import Regions
from tiltmeter.models.hf.checkpoint import Checkpoint
from tiltmeter.models.hf.text import TextCheckpoint, TokenizerMasks, served
from tiltmeter.types import Array


class RegionModel(TokenizerMasks, TextCheckpoint):
    """What both share: regions instead of pixels, and a matching head with two logits."""

    takes_regions = True
    width: str  # name of the dimensions of a region in the config
    matched = 1  # which of the two logits means "match"

    def see(self, regions: Regions | None, tokens: Any) -> tuple[Tensor, Tensor]:
        """Logits of pieces at every position, and the two logits of matching."""
        raise NotImplementedError

    def match(self, images: Any | None, texts: Sequence[str]) -> Array:
        def work(*inputs: Any) -> Tensor:
            *regions, tokens = inputs  # none: the text alone
            logits = self.see(self._checked(regions[0]) if regions else None, tokens)[1]
            return logits[:, self.matched] - logits[:, 1 - self.matched]

        return self.run(work, images, texts)

    def word_logits(self, pixels: Any | None, tokens: Any) -> tuple[Tensor, Tensor]:
        ids = tokens["input_ids"]
        logits = self.see(None if pixels is None else self._checked(pixels), tokens)[0]
        return logits[:, : ids.shape[1]], ids  # the regions come after the text

    def pixels(self, images: Any) -> Any:
        """Regions, as they are."""
        return images if isinstance(images, Regions) else Regions.joined(images)

    def run(
        self, work: Callable[..., Tensor], images: Any | None, texts: Sequence[str] | None
    ) -> Array:
        if isinstance(images, Regions) and isinstance(images.features, Tensor):
            if texts is not None and len(texts) != len(images):
                raise InputError(
                    f"{len(images)} images, but {len(texts)} texts: give one text per image"
                )
            return self._step(work, images, texts)  # whole, with gradients
        return super().run(work, images, texts)

    def _checked(self, seen: Tensor | Regions) -> Regions:
        regions = seen if isinstance(seen, Regions) else Regions(seen)
        actual, expected = regions.features.shape[-1], getattr(self.network.config, self.width)
        if actual != expected:
            raise InputError(
                f"{self.name} takes regions of {expected} dimensions; these have {actual}: use "
                "those of the detector that it was trained with"
            )
        return regions


class VisualBert(RegionModel):
    """VisualBERT: one stream of words and regions.

    The library's documentation has 0 for "match". The training code of the released weights
    (uclanlp/visualbert, dataloaders/bert_data_utils.py) has 1 for a right caption, and so has this
    class; set `matched` to 0 for weights that were trained by the documentation. The released ones
    saw two captions, the first always right; here they see one.
    """

    width = "visual_embedding_dim"

    def see(self, regions: Regions | None, tokens: Any) -> tuple[Tensor, Tensor]:
        shown = {} if regions is None else {"visual_embeds": regions.features}
        output = self.network(**tokens, **shown)
        return output.prediction_logits, output.seq_relationship_logits


class Lxmert(RegionModel):
    """LXMERT: words and regions, each with layers of their own before they are joined."""

    width = "visual_feat_dim"

    def see(self, regions: Regions | None, tokens: Any) -> tuple[Tensor, Tensor]:
        if regions is None:
            raise InputError(
                f"{self.name} is an LXMERT, which cannot read without regions: give those of one "
                "image per text"
            )
        if regions.boxes is None:
            raise InputError(
                f"{self.name} is an LXMERT, which needs the boxes of regions: give "
                "Regions(features, boxes)"
            )
        output = self.network(**tokens, visual_feats=regions.features, visual_pos=regions.boxes)
        return output.prediction_logits, output.cross_relationship_score


def load(checkpoint: Checkpoint) -> RegionModel:
    """VisualBERT or LXMERT with the heads of pretraining."""
    kinds: dict[str, dict[str, type]] = {
        "visual_bert": {"VisualBertForPreTraining": VisualBert},
        "lxmert": {"LxmertForPreTraining": Lxmert},
    }
    return served(checkpoint, kinds[checkpoint.model_type])  # type: ignore[no-any-return]
