"""A corrected model as a plain checkpoint of transformers: `--export hf`.

What can be folded into weights, exactly:

- a linear map of vectors, M, into the projections: unit(M unit(W h)) = unit(M W h), since a length
  that is made one anyway does not matter; dropped dimensions are such a map;
- learned tokens, as new numbers of the vocabulary, which the tokenizer puts into every text;
- tuned weights, as they are.

A constant that is added to unit vectors (LEACE, means in the place of features) cannot be folded:
behind the projection it would have to grow with the length that the vector had. Nor can a map that
looks at the text itself. Every checkpoint is read back and compared before it is handed over.
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
CAN = (
    "linear maps of vectors (clip-clip, orth-proj, orth-cali, difference, inlp, fairerclip, "
    "roboshot) and edits of the model (prompt-array, fairvlp)"
)
#: Largest difference of any coordinate between the checkpoint's vectors and the model's.
TOLERANCE = 1e-5
LINEAR = 1e-9  # of a map, in double precision
PROBES = 64  # vectors that a map is tried on
#: Texts that checkpoint and model are compared on: short, long, and longer than any tower reads.
TEXTS = (
    "a photo of a person", "A photo of a good person", "This individual is kind", "a",
    "a photo of a nurse with a stethoscope beside a window in a hospital", "word " * 100,
)  # fmt: skip


def check_format(name: str, model: str) -> None:
    """Refuses what cannot become such a checkpoint, before the work begins."""
    if name not in FORMATS:
        raise UnknownNameError("format of --export", name, FORMATS)
    if not model.startswith("hf:"):
        raise InputError(
            f"--export hf writes a checkpoint of transformers, so the model must be one: got "
            f"{model}, expected hf:NAME_OR_DIR. Without --export the corrected model is kept too"
        )


def export(made: Any, place: str | Path) -> Path:
    """Writes a `Debiased` model of hf: into a directory that `from_pretrained` takes.

    The directory may be the one that the model was saved in; nothing is written where the
    checkpoint could not be the same model.
    """
    place = Path(place)
    under = made.model.model if isinstance(made.model, PromptArrayModel) else made.model
    network, tokenizer = _parts(under, made)
    if isinstance(made.debiaser, ModelEdit) and (place / "config.json").is_file():
        return place  # saved as a whole checkpoint already
    network = copy.deepcopy(network).cpu()
    if isinstance(made.debiaser, VectorMap):
        _fold_maps(network, made)
    elif not isinstance(made.debiaser, ModelEdit):
        raise InputError(
            f"{made.name} changes orders, not vectors: no checkpoint could do that. These can be "
            f"exported: {CAN}"
        )
    place.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=place) as beside:
        written = Path(beside)
        tokenizer.save_pretrained(written)
        if isinstance(made.model, PromptArrayModel):
            _fold_tokens(network, tokenizer, made.model, written)
        network.save_pretrained(written)
        if hasattr(under, "processor"):
            under.processor.save_pretrained(written)
        _compare(made, under, written)
        for file in sorted(written.iterdir()):
            file.replace(place / file.name)
    return place


def export_beside(made: Any, place: Path) -> None:
    """Exports into the directory where the model was saved, which stays where that is refused."""
    try:
        export(made, place)
    except InputError as error:
        raise InputError(
            f"{error}. The corrected model itself is kept: tiltmeter audit {place}"
        ) from None


def _parts(model: Any, made: Any) -> tuple[Any, Any]:
    network, tokenizer = getattr(model, "network", None), getattr(model, "tokenizer", None)
    if not hasattr(network, "save_pretrained") or not hasattr(tokenizer, "save_pretrained"):
        raise InputError(f"{made.name} is no model of transformers: only those of hf: are exported")
    return network, tokenizer


def linear_part(apply: Callable[[Floats], Floats], d: int) -> Floats | None:
    """The matrix of a map of unit vectors that is linear up to lengths; None if it is not.

    It is found by what the map does: the image of each direction of a random basis, and from the
    image of its sum with the first one how long the two are, compared. Then it is tried on others.

    >>> turn = np.array([[0.0, -2.0], [2.0, 0.0]])
    >>> found = linear_part(lambda x: x @ turn.T / np.linalg.norm(x @ turn.T, axis=1)[:, None], 2)
    >>> bool(np.allclose(found / found[1, 0], turn / 2))
    True
    >>> linear_part(lambda x: x + 1, 2) is None
    True
    """
    rng = np.random.default_rng(0)
    basis, _ = np.linalg.qr(rng.normal(size=(d, d)))
    alone = apply(basis)  # each up to its length
    sums = apply((basis[:1] + basis[1:]) / 2**0.5)
    lengths = [1.0]
    for one, both in zip(alone[1:], sums, strict=True):
        (a, b), *_ = np.linalg.lstsq(np.stack([alone[0], one], axis=1), both, rcond=None)
        if not (a > 0 and b > 0):
            return None
        lengths.append(b / a)
    matrix = (alone * np.array(lengths)[:, None]).T @ basis
    tried = rng.normal(size=(PROBES, d))
    tried /= np.linalg.norm(tried, axis=1, keepdims=True)
    wanted, found = apply(tried), tried @ matrix.T
    found /= np.linalg.norm(found, axis=1, keepdims=True)
    return np.asarray(matrix) if np.abs(found - wanted).max() < LINEAR else None


def _fold_maps(network: Any, made: Any) -> None:
    """A linear map of vectors into the two projections."""
    names = ("text_projection", "visual_projection")
    ends: list[Any] = [getattr(network, name, None) for name in names]
    if not all(isinstance(one, nn.Linear) for one in ends):
        raise InputError(
            f"{type(network).__name__} has no two linear projections, text_projection and "
            "visual_projection, to fold a map into: CLIP has"
        )
    debiaser, encode = made.debiaser, made.model.encode_texts

    def map_texts(vectors: Floats) -> Floats:
        return np.asarray(debiaser.map_texts(vectors, [TEXTS[0]] * len(vectors), encode))

    shape = None
    for end, apply, tower in zip(
        ends, (map_texts, debiaser.map_images), ("texts", "images"), strict=True
    ):
        matrix = linear_part(apply, end.out_features)
        if matrix is None:
            raise InputError(
                f"{made.name} cannot be folded into a checkpoint: what it does to vectors of "
                f"{tower} is not linear up to their length. Where it adds a constant to unit "
                "vectors, as LEACE does, no weight of CLIP could (its projections come before the "
                "length is made one, and have no bias); where it looks at each text, neither. "
                f"These can be exported: {CAN}"
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
    """Learned tokens as new numbers at the end of the vocabulary, put into texts by the tokenizer.

    Tokens before the first mark have no position, while words keep theirs: since they stand in
    every text, the table of positions moves up by as many, with zeros before it.
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
    # new numbers are the highest, so the text's end must be known by its own
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
    """Changes the tokenizer's files: it puts the learned tokens into every text."""
    file = place / "tokenizer.json"
    if not file.is_file() or tokenizer.bos_token is None:
        raise InputError(
            "learned tokens are exported through tokenizer.json and a text that begins and ends "
            f"with marks, as CLIP's; {type(tokenizer).__name__} has not both"
        )
    told = json.loads(file.read_text(encoding="utf-8"))
    known = {one["id"] for one in told["added_tokens"]} | set(told["model"]["vocab"].values())
    fillers = [(f"<|unused-{at}|>", at) for at in range(max(known) + 1, first)]
    for name, at in [*fillers, *((name, first + i) for i, name in enumerate(names))]:
        told["added_tokens"].append(
            {"id": at, "content": name, "single_word": False, "lstrip": False, "rstrip": False,
             "normalized": False, "special": True}
        )  # fmt: skip
    begin, end = str(tokenizer.bos_token), str(tokenizer.eos_token)
    row = {
        "after_sos": [begin, *names, None, end],
        "before_sos": [*names, begin, None, end],
        "appended": [begin, None, *names, end],
    }[where]
    single = [
        {"Sequence": {"id": "A", "type_id": 0}}
        if one is None
        else {"SpecialToken": {"id": one, "type_id": 0}}
        for one in row
    ]
    numbers = {begin: tokenizer.bos_token_id, end: tokenizer.eos_token_id}
    numbers |= {name: first + at for at, name in enumerate(names)}
    told["post_processor"] = {
        "type": "TemplateProcessing",
        "single": single,
        "pair": [*single, {"Sequence": {"id": "B", "type_id": 0}}],
        "special_tokens": {
            name: {"id": name, "ids": [number], "tokens": [name]}
            for name, number in numbers.items()
        },
    }
    file.write_text(json.dumps(told, ensure_ascii=False, indent=2), encoding="utf-8")
    settings = place / "tokenizer_config.json"
    chosen = json.loads(settings.read_text(encoding="utf-8"))
    # CLIPTokenizer would put its own marks around a text, whatever the file says
    chosen["tokenizer_class"] = "PreTrainedTokenizerFast"
    settings.write_text(json.dumps(chosen, indent=2, sort_keys=True) + "\n", encoding="utf-8")


def _compare(made: Any, under: Any, place: Path) -> None:
    """Reads the checkpoint back: its vectors must be those of the corrected model."""
    again = load_model(f"hf:{place}")
    if not hasattr(made, "encode_texts"):
        return  # no vectors: its weights were written as they are
    pixels = _pictures(under)
    with torch.no_grad():
        pairs = {
            "texts": (made.encode_texts(list(TEXTS)), again.encode_texts(list(TEXTS))),
            "images": (made.encode_images(pixels.to(under.device)), again.encode_images(pixels)),
        }
    for what, both in pairs.items():
        a, b = (np.asarray(to_numpy(x)) for x in both)
        away = np.abs(a - b).max() if a.shape == b.shape else np.inf
        if not away < TOLERANCE:
            raise InputError(
                f"{made.name} cannot be exported: vectors of {what} that the checkpoint gives are "
                f"off by {away:.1e}, so it does more than weights can hold. These can be "
                f"exported: {CAN}"
            )


def _pictures(model: Any) -> Tensor:
    """Pixels of a few random pictures, as the model's own processor makes them."""
    from PIL import Image

    rng = np.random.default_rng(0)
    drawn = rng.integers(0, 256, (4, 64, 64, 3), dtype=np.uint8)
    found: Tensor = model.pixels([Image.fromarray(one) for one in drawn])
    return found
