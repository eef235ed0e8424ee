"""`embeddings:DIR`: a model that is known only by its embeddings of texts.

`texts.npy` next to `texts.csv` (or .tsv, .parquet) with the column text, and optionally concept,
template, category, role (`word` or `placebo`) and pos.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from heapq import nlargest
from pathlib import Path

from tiltmeter.errors import InputError, UnknownNameError
from tiltmeter.io.specs import Spec
from tiltmeter.io.tables import find_table, read_table, read_vectors
from tiltmeter.results import content_hash
from tiltmeter.types import Floats, Prompt

ROLES = ("word", "placebo")


class StoredTexts:
    """A text encoder that looks embeddings up in a table.

    Parameters
    ----------
    name : str
        Name of the model.
    prompts : sequence of Prompt
        The texts that it knows.
    vectors : array of shape (prompts, dimensions)
        Their embeddings.
    """

    def __init__(self, name: str, prompts: Sequence[Prompt], vectors: Floats) -> None:
        self.name = name
        self.prompts = tuple(prompts)
        self.vectors = vectors
        self.row = {prompt.text: row for row, prompt in enumerate(prompts)}
        self.provenance = {"vectors": content_hash(vectors)}

    def encode_texts(self, texts: Sequence[str]) -> Floats:
        """Embeddings of known texts; UnknownNameError for any other."""
        for text in texts:
            if text not in self.row:
                raise self._unknown(text)
        return self.vectors[[self.row[text] for text in texts]]

    def _unknown(self, text: str) -> UnknownNameError:
        """Suggest texts with most words in common: of thousands, letters take half a second."""
        words = set(text.split())
        nearest = nlargest(3, self.row, lambda known: len(words.intersection(known.split())))
        kind = f"text in the embeddings of {self.name}:"
        return UnknownNameError(kind, text, self.row, suggestions=nearest)


def load(spec: Spec) -> StoredTexts:
    """Text embeddings made elsewhere: texts.npy + texts.csv (text, concept, template, ...).

    Parameters
    ----------
    spec : Spec
        `embeddings:DIR`.

    Returns
    -------
    StoredTexts
        A text encoder for the texts of the table.

    Raises
    ------
    InputError
        A file is missing, or the two do not have the same number of rows.
    """
    spec.check_options("attributes")  # which is for the images of the same directory
    directory = spec.directory()
    table_path = find_table(directory, "texts")
    if table_path is None or not (directory / "texts.npy").is_file():
        raise InputError(
            f"{directory} has no text embeddings: expected texts.npy and texts.csv (or .tsv, "
            ".parquet). If you have the model, audit it instead: "
            f"tiltmeter audit python:FILE.py:factory --images embeddings:{directory}"
        )
    vectors = read_vectors([directory / "texts.npy"])
    prompts = read_prompts(table_path)
    if len(vectors) != len(prompts):
        raise InputError(
            f"{directory}: {len(vectors)} text embeddings, but {len(prompts)} rows in "
            f"{table_path.name}: they must be the same texts in the same order"
        )
    return StoredTexts(directory.resolve().name, prompts, vectors)


def read_prompts(path: Path) -> list[Prompt]:
    """Read a table of texts.

    Parameters
    ----------
    path : Path
        A .csv, .tsv or .parquet file with the column text.

    Returns
    -------
    list of Prompt
        One per row; the concept is the text itself where it is not given.

    Raises
    ------
    InputError
        The column text is missing, or a text is empty or occurs twice.
    UnknownNameError
        A role is neither word nor placebo.
    """
    table = read_table(path)
    if "text" not in table.column_names:
        raise InputError(
            f"{path} has no column 'text'; it has {', '.join(table.column_names)}. Expected "
            "text, and where known concept, template, category, role, pos"
        )
    prompts: list[Prompt] = []
    wordings: Counter[str] = Counter()
    concepts = Counter(str(entry.get("concept") or "") for entry in table.to_pylist())
    for row, entry in enumerate(table.to_pylist()):
        fields = {name: str(entry.get(name) or "") for name in
                 ("text", "concept", "template", "category", "role", "pos")}  # fmt: skip
        if not fields["text"]:
            raise InputError(f"{path}: row {row} has no text; fill it in or remove the row")
        if fields["concept"] and not fields["template"] and concepts[fields["concept"]] > 1:
            wordings[fields["concept"]] += 1  # several unnamed wordings: numbered
            fields["template"] = f"wording {wordings[fields['concept']]}"
        fields["concept"] = fields["concept"] or fields["text"]
        fields["role"] = fields["role"] or "word"
        if fields["role"] not in ROLES:
            raise UnknownNameError(f"role in row {row} of {path}:", fields["role"], ROLES)
        prompts.append(Prompt(**fields))
    texts = [prompt.text for prompt in prompts]
    if len(set(texts)) < len(texts):
        repeated = next(text for row, text in enumerate(texts) if text in texts[:row])
        raise InputError(f"{path}: the text {repeated!r} occurs more than once; remove one")
    return prompts
