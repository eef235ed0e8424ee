"""`stereoset:JSON`: StereoSet, triplets of sentences without images."""

from __future__ import annotations

from typing import Any

from tiltmeter.datasets.found_images import count_rows, group_counts
from tiltmeter.datasets.options import choice, file
from tiltmeter.datasets.reading import read_json
from tiltmeter.datasets.roles import Triplets
from tiltmeter.errors import InputError
from tiltmeter.io.specs import Spec
from tiltmeter.io.tables import Columns
from tiltmeter.results import file_hash
from tiltmeter.types import Groups

LABELS = ("stereotype", "anti-stereotype", "unrelated")


def load(spec: Spec, columns: Columns) -> Triplets:
    """Triplets: StereoSet, without images (github.com/moinnadeem/StereoSet; CC BY-SA 4.0).

    `?part=intrasentence` (or intersentence, whose sentences follow a context).
    """
    del columns  # the groups are those of the file
    spec.check_options("part", "strict")
    part = choice(spec, "part", ("intrasentence", "intersentence"))
    path = file(spec)
    content = read_json(path)
    try:
        entries = content["data"][part]
    except (KeyError, TypeError):
        raise InputError(
            f"{path} does not have StereoSet's layout: no data.{part}",
            code="bad-file",
            value=str(path),
        ) from None
    good, malformed = [], []
    for at, entry in enumerate(entries):
        sentences = _sentences(entry)
        if sentences is None:
            malformed.append(str(entry.get("id", at)) if isinstance(entry, dict) else str(at))
        else:
            good.append((entry, sentences))
    found = count_rows(spec, len(good), malformed=malformed)
    if not good:
        raise InputError(
            f"stereoset: {path} has no complete triplet", code="bad-file", value=str(path)
        )
    categories = Groups.from_labels([e["bias_type"] for e, _ in good], attribute="category")
    return Triplets(
        ids=tuple(str(entry["id"]) for entry, _ in good),
        stereotypical=tuple(sentences["stereotype"] for _, sentences in good),
        anti=tuple(sentences["anti-stereotype"] for _, sentences in good),
        irrelevant=tuple(sentences["unrelated"] for _, sentences in good),
        targets=tuple(str(entry.get("target", "")) for entry, _ in good),
        categories=categories,
        contexts=tuple(str(entry.get("context", "")) for entry, _ in good),
        name=f"stereoset-{part}",
        provenance={
            "captions": file_hash(path),
            "found": {**found, "groups": group_counts([categories])},
        },
    )


def _sentences(entry: Any) -> dict[str, str] | None:
    """The three sentences by label; None if the entry does not have each of them once."""
    try:
        by_label = {item["gold_label"]: str(item["sentence"]) for item in entry["sentences"]}
        whole = len(entry["sentences"]) == 3 and entry["id"] and entry["bias_type"]
    except (KeyError, TypeError):
        return None
    return by_label if whole and set(by_label) == set(LABELS) else None
