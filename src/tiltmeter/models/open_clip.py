"""`open_clip:ARCH/PRETRAINED`: models of the open_clip library.

PRETRAINED is a tag that the library knows (`open_clip:ViT-B-32/laion2b_s34b_b79k`) or a file of
weights with the library's names, which are those of OpenAI's CLIP (`open_clip:ViT-B-32/FILE`):
OpenAI's own archives, and the checkpoints of open_clip, FaRL and DebiasCLIP. The names
`open_clip:hf-hub:NAME` and `open_clip:local-dir:DIR` load a configuration with its weights. No code
in a file is run.
"""

from __future__ import annotations

import logging
import re
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from fnmatch import fnmatch
from importlib import import_module
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tiltmeter.errors import InputError, UnknownNameError
from tiltmeter.io.filesystems import no_file
from tiltmeter.io.specs import Spec
from tiltmeter.models.network import Network
from tiltmeter.models.weights import State, fill, read, read_content
from tiltmeter.types import Array

OPTIONS = ("config", "debias_tokens", "ignore", "image_size", "precision", "tokenizer", "weights")
PRECISIONS = {"fp32": torch.float32, "fp16": torch.float16, "bf16": torch.bfloat16}
#: Values in OpenAI's files that are not weights.
NO_WEIGHTS = ("input_resolution", "context_length", "vocab_size")
#: FaRL's masked image modelling, which its embeddings do not need.
MASKED_IMAGES = re.compile(r"visual\.(lm_transformer|ln_lm|lm_head|mask_token)\b")
#: DebiasCLIP's learned tokens in a state dict, and as a parameter of ours.
DEBIAS_TOKENS = "debias_tokens"

#: Without the first command, pip would keep the torchvision that is there.
SAME_BUILDS = (
    "pip uninstall -y torchvision && pip install torch torchvision "
    "--index-url https://download.pytorch.org/whl/cpu"
)


class OpenClip(Network):
    """A dual encoder whose images and texts are prepared by the open_clip library.

    Parameters
    ----------
    network : torch.nn.Module
        With `encode_image`, `encode_text` and `logit_scale`.
    name, provenance
        See `Network`.
    tokenizer : callable
        From texts to token ids.
    preprocessing : dict
        How images become pixels: the fields of the library's `PreprocessCfg`.
    """

    input_dtype = torch.float32  # of pixels, which the network does not convert

    def __init__(
        self,
        network: nn.Module,
        name: str,
        provenance: dict[str, Any],
        tokenizer: Callable[[list[str]], Tensor],
        preprocessing: dict[str, Any],
    ) -> None:
        super().__init__(network, name, provenance)
        self.tokenizer = tokenizer
        self.preprocessing = dict(preprocessing)
        transform = import_library().transform
        config = transform.PreprocessCfg(**preprocessing)
        *self.steps, self.normal = transform.image_transform_v2(config, is_train=False).transforms

    @property
    def logit_scale(self) -> float:
        return float(self.network.logit_scale.detach().exp())

    @property
    def logit_bias(self) -> float | None:
        """What SigLIP adds to its logits; None for other models."""
        bias = getattr(self.network, "logit_bias", None)
        return None if bias is None else float(bias.detach())

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
            normal = self.normal(pixels).to(self.input_dtype)
            vectors: Tensor = self.network.encode_image(normal, normalize=True)
            return vectors

        return self.run(work, images, None)

    def encode_texts(self, texts: Sequence[str]) -> Array:
        return self.run(self._text_vectors, None, texts)

    def _text_vectors(self, ids: Tensor) -> Tensor:
        network = self.network
        causal = getattr(network, "text_pool_type", None) == "argmax"
        if causal and network.attn_mask is not None and isinstance(network.text_projection, Tensor):
            return causal_text_vectors(network, ids)
        vectors: Tensor = network.encode_text(ids, normalize=True)
        return vectors


class DebiasClip(OpenClip):
    """DebiasCLIP (Berg et al. 2022): learned tokens before every text, as its code places them.

    The tokens come before the start token and have no position; the words keep theirs.
    """

    def _text_vectors(self, ids: Tensor) -> Tensor:
        return causal_text_vectors(self.network, ids, self.network.debias_tokens)


def causal_text_vectors(network: Any, ids: Tensor, learned: Tensor | None = None) -> Tensor:
    """Embed texts without the padding, which words of a causal text tower do not see.

    `network.encode_text` gives the same embeddings from all 77 positions.
    """
    dtype, limit = network.transformer.get_cast_dtype(), ids.shape[1]
    end = ids.argmax(dim=-1)
    ids = ids[:, : int(end.max()) + 1]
    x = network.token_embedding(ids).to(dtype)
    x = x + network.positional_embedding[: ids.shape[1]].to(dtype)
    if learned is not None:
        x = torch.cat([learned.to(dtype).expand(len(ids), -1, -1), x], dim=1)[:, :limit]
        end = (end + len(learned)).clamp(max=limit - 1)
    length = x.shape[1]
    x = network.ln_final(network.transformer(x, attn_mask=network.attn_mask[:length, :length]))
    pooled = x[torch.arange(len(ids), device=ids.device), end]
    return F.normalize(pooled @ network.text_projection, dim=-1)


def load(spec: Spec) -> OpenClip:
    """Models of the open_clip library: open_clip:ARCH/TAG, or open_clip:ARCH/FILE of weights.

    Parameters
    ----------
    spec : Spec
        `open_clip:ARCH/TAG`, `open_clip:ARCH/FILE`, `open_clip:hf-hub:NAME` or
        `open_clip:local-dir:DIR`. Options: `precision` (fp32, fp16, bf16), `image_size`,
        `tokenizer` (a directory), `config` (a JSON file that describes ARCH), `debias_tokens` (a
        file of DebiasCLIP's tokens); and for files `weights` (a part of the checkpoint, such as
        model_ema) and `ignore` (weights to leave out, such as `head.*`).

    Returns
    -------
    OpenClip
        The model.

    Raises
    ------
    InputError
        The weights are not named or cannot be loaded, or the library is not installed.
    UnknownNameError
        The library does not know the architecture or the tag.
    """
    spec.check_options(*OPTIONS)
    library = import_library()
    options = spec.options
    if "config" in options:
        _add_config(library, Path(options["config"]))
    with _explained(spec), _quiet():
        if spec.rest.startswith(("hf-hub:", "local-dir:")):
            arch, pretrained = spec.rest, ""
        else:
            arch, pretrained = _arch_and_weights(library, spec.rest)
        tokenizer = _tokenizer(library, arch, options.get("tokenizer"))
        network, found = _network(library, arch, pretrained, options)
    tokens = found.pop(DEBIAS_TOKENS, None)
    if tokens is not None:
        _add_tokens(network, tokens, spec.rest)
    name = f"{arch}/{Path(pretrained).stem}" if pretrained else arch.partition(":")[2]
    kind = OpenClip if tokens is None else DebiasClip
    provenance = {"spec": f"open_clip:{spec.rest}", "options": options, **found}
    model = kind(network, name, provenance, tokenizer, network.visual.preprocess_cfg)
    model.input_dtype = PRECISIONS[options.get("precision", "fp32")]
    return model


def import_library() -> Any:
    """The library, or InputError with what to install."""
    try:
        return import_module("open_clip")
    except (ImportError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and "torchvision" in str(error):
            raise InputError(
                "the library open_clip cannot be imported: torch and torchvision are of different "
                f"builds, such as CPU and CUDA ({error}). Install both from one index: "
                f"{SAME_BUILDS}",
                code="missing-package",
                value="torchvision",
            ) from error
        raise InputError(
            f"open_clip: models need a library that cannot be imported ({error}): "
            "pip install 'tiltmeter[open-clip]', or pip install open_clip_torch",
            code="missing-package",
            value="open_clip_torch",
        ) from error


@contextmanager
def _explained(spec: Spec) -> Iterator[None]:
    try:
        yield
    except InputError:
        raise
    except (OSError, RuntimeError, ImportError, ValueError, KeyError) as error:
        reason = " ".join(str(error).split())[:300]
        raise InputError(f"open_clip:{spec.rest} cannot be loaded: {reason}") from error


@contextmanager
def _quiet() -> Iterator[None]:
    """Hide the library's log: it calls a model random whose weights are about to be loaded."""
    root = logging.getLogger()
    handlers = root.handlers[:]
    root.addFilter(_not_of_the_library)
    try:
        yield
    finally:
        root.removeFilter(_not_of_the_library)
        root.handlers[:] = handlers  # logging.warning adds one where there is none


def _not_of_the_library(record: logging.LogRecord) -> bool:
    return "open_clip" not in record.pathname


def _add_config(library: Any, path: Path) -> None:
    if not path.is_file():
        raise no_file(path, "file for config")
    try:
        library.add_model_config(path)
    except ValueError as error:
        raise InputError(f"config={path} is not JSON: {error}", code="bad-file") from error


def _arch_and_weights(library: Any, rest: str) -> tuple[str, str]:
    arch, _, pretrained = rest.partition("/")
    if not arch or not pretrained:
        raise InputError(
            f"open_clip:{rest} names no weights: write open_clip:ARCH/TAG or open_clip:ARCH/FILE, "
            "such as open_clip:ViT-B-32/laion2b_s34b_b79k"
        )
    if arch not in library.list_models():
        raise UnknownNameError("architecture of open_clip", arch, library.list_models())
    if not Path(pretrained).is_file():
        tags = library.list_pretrained_tags_by_model(arch)
        if pretrained.lower().replace("-", "_") not in tags and pretrained not in tags:
            if not tags or "/" in pretrained or Path(pretrained).suffix:
                raise InputError(
                    f"open_clip:{rest}: no such file: {pretrained}. Tags of {arch}: "
                    f"{', '.join(tags) or 'none'}",
                    code="not-found",
                    value=pretrained,
                )
            raise UnknownNameError(f"tag of {arch}", pretrained, tags)
    return arch, pretrained


def _tokenizer(library: Any, arch: str, directory: str | None) -> Any:
    text = (library.get_model_config(arch) or {}).get("text_cfg", {})
    if directory is not None:
        return library.tokenizer.HFTokenizer(
            directory,
            context_length=text.get("context_length", 77),
            tokenizer_mode=text.get("tokenizer_mode"),
            **text.get("tokenizer_kwargs", {}),
        )
    try:
        return library.get_tokenizer(arch)
    except (OSError, ValueError) as error:
        name = text.get("hf_tokenizer_name")
        raise InputError(
            f"the tokenizer of {arch} ({name}) is neither here nor on the Hugging Face Hub: if you "
            "have it, name its directory with ?tokenizer=DIR"
        ) from error


def _network(
    library: Any, arch: str, pretrained: str, options: dict[str, str]
) -> tuple[Any, dict[str, Any]]:
    """The network with its weights, and what was found out about them."""
    precision = options.get("precision", "fp32")
    if precision not in PRECISIONS:
        raise UnknownNameError("precision", precision, PRECISIONS)
    create = {"precision": precision, "force_image_size": _image_size(options)}
    if pretrained and Path(pretrained).is_file():
        return _from_file(library, arch, Path(pretrained), options, create)
    for name in ("weights", "ignore"):
        if name in options:
            raise InputError(
                f"{name}={options[name]} is for a file of weights: write open_clip:ARCH/FILE",
                code="bad-option",
            )
    found: dict[str, Any] = {}
    if pretrained:
        trained = bool(library.get_pretrained_cfg(arch, pretrained).get("quick_gelu", False))
        built = bool(library.get_model_config(arch).get("quick_gelu", False))
        create["force_quick_gelu"] = found["quick_gelu"] = trained or built
    if DEBIAS_TOKENS in options:
        found[DEBIAS_TOKENS] = _read_tokens(Path(options[DEBIAS_TOKENS]))
    network = library.create_model(
        arch, pretrained=pretrained or None, require_pretrained=True, **create
    )
    return network, found


def _image_size(options: dict[str, str]) -> int | None:
    size = options.get("image_size")
    if size is None:
        return None
    if not size.isdecimal() or not 0 < int(size) <= 4096:
        raise InputError(
            f"image_size must be a number of pixels, such as 224; got {size}",
            code="bad-option",
            value=size,
        )
    return int(size)


def _from_file(
    library: Any, arch: str, path: Path, options: dict[str, str], create: dict[str, Any]
) -> tuple[Any, dict[str, Any]]:
    state = read(path, options.get("weights"))
    found: dict[str, Any] = {}
    if f"{DEBIAS_TOKENS}.weight" in state:
        found[DEBIAS_TOKENS] = state.pop(f"{DEBIAS_TOKENS}.weight")
        state = {n.removeprefix("clip."): w for n, w in state.items()}
    if DEBIAS_TOKENS in options:
        found[DEBIAS_TOKENS] = _read_tokens(Path(options[DEBIAS_TOKENS]))
    openai = any(name in state for name in NO_WEIGHTS)
    farl = any(MASKED_IMAGES.match(name) for name in state)
    built = bool(library.get_model_config(arch).get("quick_gelu", False))
    trained = built or openai or farl or DEBIAS_TOKENS in found
    if not trained and f"{arch}-quickgelu" in library.list_models():
        warnings.warn(
            f"{path} does not say which activation it was trained with: {arch} uses GELU. For "
            f"OpenAI's weights, and those tuned from them, write open_clip:{arch}-quickgelu/{path}",
            stacklevel=2,
        )
    found["quick_gelu"] = trained
    network = library.create_model(
        arch, load_weights=False, pretrained_text=False, force_quick_gelu=trained, **create
    )
    ignored = options.get("ignore", "").split(",")
    computed = {name for name, _ in network.named_buffers()} - set(network.state_dict())
    state = {
        name: weights
        for name, weights in state.items()
        if name not in NO_WEIGHTS
        and name not in computed
        and not MASKED_IMAGES.match(name)
        and not any(fnmatch(name, pattern) for pattern in ignored)
    }
    try:
        fill(network, _as_the_library_names(library, state, network), str(path))
    except InputError as error:
        raise InputError(f"{error}. {_advice(state, network)}", code=error.code) from error
    return network, found


def _as_the_library_names(library: Any, state: State, network: Any) -> State:
    """Weights in the layouts that the library converts when it loads a checkpoint itself."""
    state = library.factory.convert_state_dict(network, state)
    if "positional_embedding" in state and not hasattr(network, "positional_embedding"):
        state = library.model.convert_to_custom_text_state_dict(state)
    for name in ("logit_scale", "logit_bias"):
        ours = getattr(network, name, None)
        if name in state and ours is not None and state[name].numel() == ours.numel():
            state[name] = state[name].reshape(ours.shape)
    library.factory.resize_pos_embed(state, network)
    return state


def _advice(state: State, network: Any) -> str:
    ours = set(network.state_dict())
    if set(state) <= ours and all(name.startswith("visual.") for name in state):
        return "It has the image tower alone: an audit needs the text tower too"
    if not ours & set(state):
        return "None of its names are open_clip's: hf:, albef:, slip: and fit: load other layouts"
    if ours < set(state):
        return "Leave out weights that the model does not need: ?ignore=NAME, or ?ignore=A*,B*"
    return "Is this the architecture that the weights were trained with?"


def _read_tokens(path: Path) -> Tensor:
    """DebiasCLIP's tokens: a tensor alone, as its authors released them."""
    if not path.is_file():
        raise no_file(path, "file for debias_tokens")
    content = read_content(path)
    if isinstance(content, dict) and len(content) == 1:
        content = next(iter(content.values()))
    if not isinstance(content, Tensor):
        raise InputError(f"debias_tokens={path} is not a tensor", code="bad-file", value=path)
    return content


def _add_tokens(network: Any, tokens: Tensor, rest: str) -> None:
    """Tokens become a weight of the network, so that they count for its identity."""
    words = getattr(network, "token_embedding", None)
    if words is None or tokens.ndim != 2 or tokens.shape[1] != words.weight.shape[1]:
        width = "no word embeddings" if words is None else f"width {words.weight.shape[1]}"
        raise InputError(
            f"debias_tokens have shape {tuple(tokens.shape)}, but open_clip:{rest} has {width}: "
            "expected tokens x width"
        )
    network.debias_tokens = nn.Parameter(tokens.detach().to(words.weight.dtype))
