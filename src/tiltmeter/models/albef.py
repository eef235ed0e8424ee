"""`albef:FILE`, `tcl:FILE`: checkpoints as salesforce/ALBEF and uta-smile/TCL release them.

A vision transformer, and a BERT whose later layers attend to the image too. TCL is the same network
trained with more losses. A checkpoint of the pretraining gives embeddings, matches and predicts
masked words; one that was tuned for retrieval predicts none.

Options: `tokenizer` (bert-base-uncased, by name or directory); `image_size` (the checkpoint's own).
No code in a file is run.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tiltmeter.errors import InputError
from tiltmeter.io.specs import Spec
from tiltmeter.models.albef_network import HEAD, AlbefNetwork, Sizes
from tiltmeter.models.hf.checkpoint import Checkpoint
from tiltmeter.models.network import Masked, Matching
from tiltmeter.models.weights import State, fill, read
from tiltmeter.types import Array

MEAN, STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)
#: The longest caption of the original evaluations: in words, and in pieces with [CLS].
LONGEST = 30
#: What only training needs: the momentum encoders, the queues of their embeddings, and the
#: position numbers, which count from 0.
ASIDE = re.compile(
    r"(visual_encoder|text_encoder|vision_proj|text_proj)_m\.|(image|text|idx)_queue$|queue_ptr$"
    r"|text_encoder\.(bert\.)?embeddings\.position_ids$"
)
#: Two names of one tensor, which some files contain once.
TWICE = {
    f"{HEAD}.decoder.bias": f"{HEAD}.bias",
    f"{HEAD}.decoder.weight": "text_encoder.bert.embeddings.word_embeddings.weight",
}


def build(state: State, file: str) -> AlbefNetwork:
    """The network that weights belong to."""
    state = {name: weights for name, weights in state.items() if not ASIDE.match(name)}
    if not any(name.startswith("text_encoder.bert.") for name in state):
        # tuned for retrieval: the text encoder without its head is one level higher
        state = {re.sub(r"^text_encoder\.", "text_encoder.bert.", n): w for n, w in state.items()}
    if f"{HEAD}.bias" in state:
        for name, other in TWICE.items():
            if other in state:
                state.setdefault(name, state[other])
    try:
        network = AlbefNetwork(Sizes.of(state))
    except (KeyError, ValueError) as error:
        raise InputError(
            f"{file} is not a checkpoint of ALBEF or TCL: it has no {error}"
        ) from error
    fill(network, state, file)
    return network


def caption(text: str, mask: str) -> str:
    """A text in the form of the captions that the models were trained on.

    >>> caption("A well-known nurse's dog: [MASK].", "[MASK]")
    'a well known nurses dog [MASK]'
    """
    text = mask.join(part.lower() for part in text.split(mask))
    text = re.sub(r"[,.'!?\"()*#:;~]", "", text).replace("<person>", "person")
    return " ".join(re.sub(r"[-/]", " ", text).split()[:LONGEST])


class Albef(Matching):
    """ALBEF or TCL: embeddings and matching."""

    def __init__(
        self, network: AlbefNetwork, name: str, provenance: dict[str, Any], tokenizer: Any
    ) -> None:
        super().__init__(network, name, provenance)
        self.tokenizer = tokenizer
        self.mask_token, self.mask_id = tokenizer.mask_token, tokenizer.mask_token_id
        self.size = round((network.visual_encoder.pos_embed.shape[1] - 1) ** 0.5) * network.patch
        self.preprocessing = {"size": self.size, "resample": "bicubic", "mean": MEAN, "std": STD}

    @property
    def logit_scale(self) -> float:
        return 1 / float(self.network.temp.detach())

    def pixels(self, images: Any) -> Tensor:
        from PIL import Image

        side = (self.size, self.size)
        squares = [image.convert("RGB").resize(side, Image.Resampling.BICUBIC) for image in images]
        stacked = np.stack([np.asarray(square) for square in squares])
        return torch.as_tensor(stacked).permute(0, 3, 1, 2).float() / 255

    def normal(self, pixels: Tensor) -> Tensor:
        """Normalise pixels from 0 to 1 as in training."""
        mean, std = (pixels.new_tensor(x)[:, None, None] for x in (MEAN, STD))
        return (pixels - mean) / std

    def tokens(self, texts: Sequence[str]) -> Any:
        # [CLS] comes first, and no [SEP] last: as in training
        marked = [f"{self.tokenizer.cls_token} {caption(text, self.mask_token)}" for text in texts]
        return self.tokenizer(
            marked, add_special_tokens=False, padding=True, truncation=True, max_length=LONGEST,
            return_tensors="pt",
        )  # fmt: skip

    def encode_images(self, images: Any) -> Array:
        return self.run(lambda x: self.network.image_vector(self.normal(x)), images, None)

    def encode_texts(self, texts: Sequence[str]) -> Array:
        return self.run(lambda t: self.network.text_vector(*_ids(t)), None, texts)

    def see(self, pixels: Tensor) -> Tensor:
        return self.network.visual_encoder(self.normal(pixels))  # type: ignore[no-any-return]

    def match_seen(self, seen: Tensor, tokens: Any) -> Tensor:
        """The log-odds of a match, one per pair."""
        return self.network.match_seen(seen, *_ids(tokens))  # type: ignore[no-any-return]


class AlbefWithWords(Albef, Masked):
    """ALBEF or TCL: embeddings, matching, and masked words with an image."""

    def pieces(self, word: str) -> tuple[int, ...]:
        """Token numbers of a word's pieces."""
        plain = caption(word, self.mask_token)
        return tuple(self.tokenizer(plain, add_special_tokens=False)["input_ids"])

    def word_logits(self, pixels: Tensor | None, tokens: Any) -> tuple[Tensor, Tensor]:
        """Without pixels the image has no tokens: attention over none adds nothing but its bias.

        The model was never trained without an image.
        """
        seen = None if pixels is None else self.normal(pixels)
        return self.network.word_logits(seen, *_ids(tokens)), tokens["input_ids"]


def _ids(tokens: Any) -> tuple[Tensor, Tensor]:
    """The token numbers of texts, and the attention mask, for every head and position."""
    return tokens["input_ids"], tokens["attention_mask"].bool()[:, None, None]


def load(spec: Spec) -> Albef:
    """Checkpoints as ALBEF and TCL release them: albef:FILE, tcl:FILE; ?tokenizer=DIR.

    Parameters
    ----------
    spec : Spec
        `albef:FILE` or `tcl:FILE`, with the options `tokenizer` and `image_size`.

    Returns
    -------
    Albef
        With masked words (`AlbefWithWords`) where the checkpoint has that head.

    Raises
    ------
    InputError
        The file is not such a checkpoint, or the tokenizer does not fit it.
    """
    spec.check_options("tokenizer", "image_size")
    path = Path(spec.rest)
    if not path.is_file():
        raise InputError(
            f"{spec.scheme}: {spec.rest or 'nothing'} is not a file; write {spec.scheme}:FILE"
        )
    network = build(read(path), spec.rest)
    if "image_size" in spec.options:
        network.visual_encoder.resize(_side(spec.options["image_size"], network.patch))
    name = spec.options.get("tokenizer", "bert-base-uncased")
    tokenizer = _tokenizer(name, network.bert.embeddings["word_embeddings"].num_embeddings)
    provenance = {
        "spec": f"{spec.scheme}:{spec.rest}",
        "tokenizer": name,
    }
    kind = AlbefWithWords if "cls" in network.text_encoder else Albef
    return kind(network, f"{spec.scheme}:{path.stem}", provenance, tokenizer)


def _side(size: str, patch: int) -> int:
    if not size.isdecimal() or int(size) == 0 or int(size) % patch:
        raise InputError(
            f"image_size must be a multiple of {patch}, such as {24 * patch}; got {size}"
        )
    return int(size) // patch


def _tokenizer(name: str, vocabulary: int) -> Any:
    try:
        tokenizer = Checkpoint(name).tokenizer
    except InputError as error:
        raise InputError(f"{error}. Name another one with ?tokenizer=DIR") from error
    if len(tokenizer) != vocabulary:
        raise InputError(
            f"the tokenizer {name} knows {len(tokenizer)} pieces, the weights {vocabulary}: "
            "name the tokenizer they were trained with: ?tokenizer=DIR"
        )
    return tokenizer
