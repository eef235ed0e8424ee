"""`open_clip:ARCH/PRETRAINED`: models of the open_clip library, which only this file imports.

PRETRAINED is a tag that the library knows (`open_clip:ViT-B-32/laion2b_s34b_b79k`) or a file of
weights with the library's own names, which are those of OpenAI's CLIP (`open_clip:ViT-B-32/FILE`).
OpenAI's weights and those tuned from them, such as FaRL's, need an architecture whose name ends in
`-quickgelu`. No code in a file is run: OpenAI's own files are programs, so their weights are loaded
by the tag `openai`.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tiltmeter.errors import InputError, UnknownNameError
from tiltmeter.io.specs import Spec
from tiltmeter.models.network import Network
from tiltmeter.models.weights import fill, read
from tiltmeter.types import Array

#: Values in OpenAI's files that are not weights.
NO_WEIGHTS = ("input_resolution", "context_length", "vocab_size")


class OpenClip(Network):
    """A dual encoder of the open_clip library."""

    def __init__(self, network: Any, name: str, spec: str, tokenizer: Any, transform: Any) -> None:
        super().__init__(network, name, {"spec": spec})
        self.tokenizer = tokenizer
        *self.steps, self.normal = transform.transforms
        self.preprocessing = dict(network.visual.preprocess_cfg)

    @property
    def logit_scale(self) -> float:
        return float(self.network.logit_scale.detach().exp())

    def pixels(self, images: Any) -> Tensor:
        """The library's transform without its last step, normalisation, which `normal` does."""
        return torch.stack([self._pixels(image) for image in images])

    def _pixels(self, image: Any) -> Tensor:
        for step in self.steps:
            image = step(image)
        pixels: Tensor = image
        return pixels

    def tokens(self, texts: Sequence[str]) -> Any:
        return self.tokenizer(list(texts))

    def encode_images(self, images: Any) -> Array:
        def work(pixels: Tensor) -> Tensor:
            vectors: Tensor = self.network.encode_image(self.normal(pixels), normalize=True)
            return vectors

        return self.run(work, images, None)

    def encode_texts(self, texts: Sequence[str]) -> Array:
        return self.run(lambda t: self.network.encode_text(t, normalize=True), None, texts)


def load(spec: Spec) -> OpenClip:
    """Models of the open_clip library: open_clip:ARCH/TAG, or open_clip:ARCH/FILE of weights.

    Parameters
    ----------
    spec : Spec
        `open_clip:ARCH/PRETRAINED`.

    Returns
    -------
    OpenClip
        The model.

    Raises
    ------
    InputError
        The weights are not named or cannot be loaded, or the library is not installed.
    UnknownNameError
        The library does not know the architecture.
    """
    spec.check_options()
    arch, _, pretrained = spec.rest.partition("/")
    if not arch or not pretrained:
        raise InputError(
            f"open_clip:{spec.rest} names no weights: write open_clip:ARCH/TAG or "
            "open_clip:ARCH/FILE, such as open_clip:ViT-B-32/laion2b_s34b_b79k"
        )
    library = _library()
    if arch not in library.list_models():
        raise UnknownNameError("architecture of open_clip", arch, library.list_models())
    try:
        if Path(pretrained).is_file():
            network = _from_file(library, arch, Path(pretrained))
        else:
            network = library.create_model(arch, pretrained=pretrained, require_pretrained=True)
        tokenizer = library.get_tokenizer(arch)
    except (OSError, RuntimeError, ImportError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise InputError(f"open_clip:{spec.rest} cannot be loaded: {reason}") from error
    config = library.transform.PreprocessCfg(**network.visual.preprocess_cfg)
    transform = library.transform.image_transform_v2(config, is_train=False)
    name = f"{arch}/{Path(pretrained).stem}"
    return OpenClip(network, name, f"open_clip:{spec.rest}", tokenizer, transform)


def _library() -> Any:
    try:
        return import_module("open_clip")
    except (
        ImportError,
        RuntimeError,
    ) as error:  # RuntimeError: torchvision built for another torch
        raise InputError(
            f"open_clip: models need a library that cannot be imported ({error}): "
            'pip install "tiltmeter[open_clip]", or pip install open_clip_torch'
        ) from error


def _from_file(library: Any, arch: str, path: Path) -> Any:
    network = library.create_model(arch, load_weights=False, pretrained_text=False)
    state = {name.removeprefix("module."): weights for name, weights in read(path).items()}
    fill(network, {name: state[name] for name in state if name not in NO_WEIGHTS}, str(path))
    return network
