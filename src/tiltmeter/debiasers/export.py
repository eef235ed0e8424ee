"""A corrected model as a plain checkpoint of transformers: `--export hf`.

What can be folded into weights, exactly:

- a linear map M of vectors, into the projections: unit(M unit(W h)) = unit(M W h), since lengths do
  not matter before the last normalisation; dropped dimensions are such a map;
- learned tokens, as new ids of the vocabulary, which the tokenizer inserts into every text;
- tuned weights, as they are.

A constant that is added to unit vectors (LEACE, SFID's means) cannot be folded: after the
projection it would have to grow with the length of the vector. Nor can a map that depends on the
text itself. Every checkpoint is read back and compared before it is written.
"""

from __future__ import annotations

import copy
import json
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from tiltmeter.debiasers.debiaser import ModelEdit, VectorMap
from tiltmeter.debiasers.prompt_array import PromptArrayModel
from tiltmeter.errors import InputError, UnknownNameError
from tiltmeter.metrics.arrays import to_numpy
from tiltmeter.models import load_model
from tiltmeter.types import Floats

FORMATS = ("hf",)
EXPORTABLE = (
    "linear maps of vectors (clip-clip, orth-proj, orth-cali, difference, inlp, fairerclip, "
    "roboshot) and edits of the model (prompt-array, fairvlp)"
)
#: Largest allowed difference between coordinates of the checkpoint's vectors and the model's.
TOLERANCE = 1e-5
LINEAR = 1e-9  # the same for a linear map, in double precision
PROBES = 64  # vectors that a map is tested on
#: Texts that checkpoint and model are compared on: short, long, and longer than the maximum.
TEXTS = (
    "a photo of a person", "A photo of a good person", "This individual is kind", "a",
    "a photo of a nurse with a stethoscope beside a window in a hospital", "word " * 100,
)  # fmt: skip


def check_format(name: str, model: str) -> None:
    """Raise InputError for what cannot become such a checkpoint, before the work begins.

    Parameters
    ----------
    name
        The format: `hf`.
    model
        The model spec.
    """
    if name not in FORMATS:
        raise UnknownNameError("format of --export", name, FORMATS)
    if not model.startswith("hf:"):
        raise InputError(
            f"--export hf writes a checkpoint of transformers, so the model must be one: got "
            f"{model}, expected hf:NAME_OR_DIR. Without --export the corrected model is saved too"
        )


def export(debiased: Any, place: str | Path) -> Path:
    """Write a corrected model of hf: into a directory that `from_pretrained` reads.

    Parameters
    ----------
    debiased
        A `Debiased` model.
    place
        The directory; it may be the one that the model was saved in.

    Raises
    ------
    InputError
        If a checkpoint could not be the same model; then nothing is written.
    """
    place = Path(place)
    prompted = isinstance(debiased.model, PromptArrayModel)
    base = debiased.model.model if prompted else debiased.model
    network, tokenizer = _parts(base, debiased)
    if isinstance(debiased.debiaser, ModelEdit) and (place / "config.json").is_file():
        return place  # saved as a whole checkpoint already
    network = copy.deepcopy(network).cpu()
    if isinstance(debiased.debiaser, VectorMap):
        _fold_maps(network, debiased)
    elif not isinstance(debiased.debiaser, ModelEdit):
        raise InputError(
            f"{debiased.name} changes orders, not vectors: no checkpoint can do that. These can be "
            f"exported: {EXPORTABLE}"
        )
    place.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place) as temporary:
        written = Path(temporary)
        tokenizer.save_pretrained(written)
        if prompted:
            _fold_tokens(network, tokenizer, debiased.model, written)
        network.save_pretrained(written)
        if hasattr(base, "processor"):
            base.processor.save_pretrained(written)
        _compare(debiased, base, written)
        for file in sorted(written.iterdir()):
            file.replace(place / file.name)
    return place


def export_saved(debiased: Any, place: Path) -> None:
    """Export into the directory where the model was saved, which is kept in any case."""
    try:
        export(debiased, place)
    except InputError as error:
        raise InputError(
            f"{error}. The corrected model itself is saved: tiltmeter audit {place}"
        ) from None


def _parts(model: Any, debiased: Any) -> tuple[Any, Any]:
    network, tokenizer = getattr(model, "network", None), getattr(model, "tokenizer", None)
    if not hasattr(network, "save_pretrained") or not hasattr(tokenizer, "save_pretrained"):
        raise InputError(f"{debiased.name} is not of transformers: only those of hf: are exported")
    return network, tokenizer


def linear_part(apply: Callable[[Floats], Floats], d: int) -> Floats | None:
    """Return the matrix of a map of unit vectors that is linear up to lengths; None if it is not.

    It is found from the outputs for each direction of a random basis; the output for its sum with
    the first direction gives their relative lengths. Then it is tested on other vectors.

    Parameters
    ----------
    apply
        The map.
    d
        Number of dimensions.

    Examples
    --------
    >>> turn = np.array([[0.0, -2.0], [2.0, 0.0]])
    >>> matrix = linear_part(lambda x: x @ turn.T / np.linalg.norm(x @ turn.T, axis=1)[:, None], 2)
    >>> bool(np.allclose(matrix / matrix[1, 0], turn / 2))
    True
    >>> linear_part(lambda x: x + 1, 2) is None
    True
    """
    rng = np.random.default_rng(0)
    basis, _ = np.linalg.qr(rng.normal(size=(d, d)))
    alone = apply(basis)  # each up to its length
    sums = apply((basis[:1] + basis[1:]) / 2**0.5)
    lengths = [1.0]
    for direction, both in zip(alone[1:], sums, strict=True):
        (a, b), *_ = np.linalg.lstsq(np.stack([alone[0], direction], axis=1), both, rcond=None)
        if not (a > 0 and b > 0):
            return None
        lengths.append(b / a)
    matrix = (alone * np.array(lengths)[:, None]).T @ basis
    probes = rng.normal(size=(PROBES, d))
    probes /= np.linalg.norm(probes, axis=1, keepdims=True)
    output = probes @ matrix.T
    output /= np.linalg.norm(output, axis=1, keepdims=True)
    return np.asarray(matrix) if np.abs(output - apply(probes)).max() < LINEAR else None


def _fold_maps(network: Any, debiased: Any) -> None:
    """Fold a linear map of vectors into the two projections."""
    names = ("text_projection", "visual_projection")
    ends: list[Any] = [getattr(network, name, None) for name in names]
    if not all(isinstance(end, nn.Linear) for end in ends):
        raise InputError(
            f"{type(network).__name__} has no linear text_projection and visual_projection to fold "
            "a map into, as CLIP has"
        )
    debiaser, encode = debiased.debiaser, debiased.model.encode_texts

    def map_texts(vectors: Floats) -> Floats:
        return np.asarray(debiaser.map_texts(vectors, [TEXTS[0]] * len(vectors), encode))

    shape = None
    for end, apply, tower in zip(
        ends, (map_texts, debiaser.map_images), ("texts", "images"), strict=True
    ):
        matrix = linear_part(apply, end.out_features)
        if matrix is None:
            raise InputError(
                f"{debiased.name} cannot be folded into a checkpoint: its map of {tower} is not "
                "linear up to the length of vectors. CLIP's projections come before the "
                "normalisation and have no bias, so they can neither add a constant to unit "
                "vectors, as LEACE does, nor depend on the text. "
                f"These can be exported: {EXPORTABLE}"
            )
        with torch.no_grad():
            folded = torch.as_tensor(matrix) @ end.weight.double()
            end.weight = nn.Parameter(folded.to(end.weight.dtype))
            if end.bias is not None:
                end.bias = nn.Parameter((torch.as_tensor(matrix) @ end.bias.double()).float())
        end.out_features = shape = len(matrix)
    network.config.projection_dim = network.projection_dim = shape
    for part in ("text_config", "vision_config"):
        if hasattr(getattr(network.config, part), "projection_dim"):
            getattr(network.config, part).projection_dim = shape


def _fold_tokens(network: Any, tokenizer: Any, prompted: PromptArrayModel, place: Path) -> None:
    """Learned tokens as new ids at the end of the vocabulary, inserted by the tokenizer.

    Tokens before the start token have no position, while words keep theirs: since they are in every
    text, the table of positions moves up by as many, with zeros before it.
    """
    tokens = torch.as_tensor(prompted.tokens_learned)
    names = [f"<|learned-{at}|>" for at in range(len(tokens))]
    embeddings, config = network.text_model.embeddings, network.config.text_config
    old = embeddings.token_embedding.weight.detach()
    first = max(len(old), len(tokenizer))
    table = torch.zeros(first + len(tokens), old.shape[1])
    table[: len(old)], table[first:] = old, tokens
    embeddings.token_embedding = nn.Embedding(len(table), table.shape[1])
    embeddings.token_embedding.weight = nn.Parameter(table)
    config.vocab_size = len(table)
    # new ids are the highest, so the end token must be found by its own id
    config.eos_token_id = network.text_model.eos_token_id = int(tokenizer.eos_token_id)
    if prompted.place == "before_sos":
        positions = embeddings.position_embedding.weight
        with torch.no_grad():
            moved = torch.cat([torch.zeros_like(positions[: len(tokens)]), positions])
            positions.copy_(moved[: len(positions)])
    _rewrite_tokenizer(tokenizer, names, first, prompted.place, place)


def _rewrite_tokenizer(
    tokenizer: Any, names: list[str], first: int, where: str, place: Path
) -> None:
    """Change the tokenizer's files: it inserts the learned tokens into every text."""
    file = place / "tokenizer.json"
    if not file.is_file() or tokenizer.bos_token is None:
        raise InputError(
            "exporting learned tokens needs a tokenizer.json and a start token, as CLIP has; "
            f"{type(tokenizer).__name__} does not have both"
        )
    config = json.loads(file.read_text(encoding="utf-8"))
    known = {token["id"] for token in config["added_tokens"]}
    known |= set(config["model"]["vocab"].values())
    fillers = [(f"<|unused-{at}|>", at) for at in range(max(known) + 1, first)]
    for name, at in [*fillers, *((name, first + i) for i, name in enumerate(names))]:
        config["added_tokens"].append(
            {"id": at, "content": name, "single_word": False, "lstrip": False, "rstrip": False,
             "normalized": False, "special": True}
        )  # fmt: skip
    begin, end = str(tokenizer.bos_token), str(tokenizer.eos_token)
    rows = {
        "after_sos": [begin, *names, None, end],
        "before_sos": [*names, begin, None, end],
        "appended": [begin, None, *names, end],
    }
    if where not in rows:
        raise InputError(
            f"learned tokens at place = {where} cannot be exported: a tokenizer can insert tokens, "
            f"but the text would be read elsewhere. Use {', '.join(rows)}"
        )
    row = rows[where]
    single = [
        {"Sequence": {"id": "A", "type_id": 0}}
        if token is None
        else {"SpecialToken": {"id": token, "type_id": 0}}
        for token in row
    ]
    ids = {begin: tokenizer.bos_token_id, end: tokenizer.eos_token_id}
    ids |= {name: first + at for at, name in enumerate(names)}
    config["post_processor"] = {
        "type": "TemplateProcessing",
        "single": single,
        "pair": [*single, {"Sequence": {"id": "B", "type_id": 0}}],
        "special_tokens": {
            name: {"id": name, "ids": [token_id], "tokens": [name]}
            for name, token_id in ids.items()
        },
    }
    file.write_text(json.dumps(config, ensure_ascii=False, indent=2), encoding="utf-8")
    settings = place / "tokenizer_config.json"
    chosen = json.loads(settings.read_text(encoding="utf-8"))
    # CLIPTokenizer would add its own start and end tokens, whatever the file says
    chosen["tokenizer_class"] = "PreTrainedTokenizerFast"
    settings.write_text(json.dumps(chosen, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _compare(debiased: Any, base: Any, place: Path) -> None:
    """Read the checkpoint back: its vectors must be those of the corrected model."""
    loaded = load_model(f"hf:{place}")
    if not hasattr(debiased, "encode_texts"):
        return  # no vectors: its weights were written as they are
    pixels = _random_pixels(base)
    with torch.no_grad():
        pairs = {
            "texts": (debiased.encode_texts(list(TEXTS)), loaded.encode_texts(list(TEXTS))),
            "images": (
                debiased.encode_images(pixels.to(base.device)), loaded.encode_images(pixels)
            ),
        }  # fmt: skip
    for what, both in pairs.items():
        a, b = (np.asarray(to_numpy(x)) for x in both)
        away = np.abs(a - b).max() if a.shape == b.shape else np.inf
        if not away < TOLERANCE:
            raise InputError(
                f"{debiased.name} cannot be exported: the checkpoint's vectors of {what} differ by "
                f"{away:.1e}, so the correction is more than a change of weights. These can be "
                f"exported: {EXPORTABLE}"
            )


def _random_pixels(model: Any) -> Tensor:
    """Pixels of a few random images, as the model's own processor makes them."""
    from PIL import Image

    rng = np.random.default_rng(0)
    images = rng.integers(0, 256, (4, 64, 64, 3), dtype=np.uint8)
    pixels: Tensor = model.pixels([Image.fromarray(image) for image in images])
    return pixels
