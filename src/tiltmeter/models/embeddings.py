"""`embeddings:DIR`: a model that is known only by the vectors it gave to some texts.

`texts.npy` beside `texts.csv` (or .tsv, .parquet) with the columns text, and where known concept,
template, category, role (`word` or `placebo`) and pos.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from tiltmeter.errors import InputError, UnknownNameError
from tiltmeter.io.specs import Spec
from tiltmeter.io.tables import find_table, read_table, read_vectors
from tiltmeter.results import content_hash
from tiltmeter.types import Floats, Prompt

ROLES = ("word", "placebo")


class StoredTexts:
    """A text tower that answers from a table; `prompts` are the texts it knows."""

    def __init__(self, name: str, prompts: Sequence[Prompt], vectors: Floats) -> None:
        self.name = name
        self.prompts = tuple(prompts)
        self.vectors = vectors
        self.row = {prompt.text: row for row, prompt in enumerate(prompts)}
        self.provenance = {"vectors": content_hash(vectors)}

    def encode_texts(self, texts: Sequence[str]) -> Floats:
        for text in texts:
            if text not in self.row:
                raise UnknownNameError(f"text in the vectors of {self.name}:", text, self.row)
        return self.vectors[[self.row[text] for text in texts]]


def load(spec: Spec) -> StoredTexts:
    """Text vectors made elsewhere: texts.npy + texts.csv (text, concept, template, ...)."""
    spec.only("attributes")  # which is for the images of the same directory
    directory = spec.directory()
    table_path = find_table(directory, "texts")
    if table_path is None or not (directory / "texts.npy").is_file():
        raise InputError(
            f"{directory} has no text vectors: expected texts.npy and texts.csv (or .tsv, "
            ".parquet). With a text tower at hand, audit that instead: "
            f"tiltmeter audit python:FILE.py:factory --images embeddings:{directory}"
        )
    vectors = read_vectors([directory / "texts.npy"])
    prompts = read_prompts(table_path)
    if len(vectors) != len(prompts):
        raise InputError(
            f"{directory}: {len(vectors)} text vectors, but {len(prompts)} rows in "
            f"{table_path.name}: they must be the same texts in the same order"
        )
    return StoredTexts(directory.resolve().name, prompts, vectors)


def read_prompts(path: Path) -> list[Prompt]:
    """The texts table; a concept that is not given is the text itself."""
    table = read_table(path)
    if "text" not in table.column_names:
        raise InputError(
            f"{path} has no column 'text'; it has {', '.join(table.column_names)}. Expected "
            "text, and where known concept, template, category, role, pos"
        )
    prompts: list[Prompt] = []
    seen: Counter[str] = Counter()
    concepts = Counter(str(entry.get("concept") or "") for entry in table.to_pylist())
    for row, entry in enumerate(table.to_pylist()):
        given = {name: str(entry.get(name) or "") for name in
                 ("text", "concept", "template", "category", "role", "pos")}  # fmt: skip
        if not given["text"]:
            raise InputError(f"{path}: row {row} has no text")
        if given["concept"] and not given["template"] and concepts[given["concept"]] > 1:
            seen[given["concept"]] += 1  # several wordings without names: told apart by number
            given["template"] = f"wording {seen[given['concept']]}"
        given["concept"] = given["concept"] or given["text"]
        given["role"] = given["role"] or "word"
        if given["role"] not in ROLES:
            raise UnknownNameError(f"role in row {row} of {path}:", given["role"], ROLES)
        prompts.append(Prompt(**given))
    texts = [prompt.text for prompt in prompts]
    if len(set(texts)) < len(texts):
        twice = next(text for row, text in enumerate(texts) if text in texts[:row])
        raise InputError(f"{path}: the text {twice!r} stands there more than once")
    return prompts
