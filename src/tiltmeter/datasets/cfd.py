"""`cfd:DIR`: the Chicago Face Database; labels are codes in file names: CFD-WF-001-003-N.jpg.

Race and gender are those that the dataset assigns to the person. The norming table is read as CSV,
exported from the sheet that comes with the images.
"""

from __future__ import annotations

import csv
import re
from pathlib import Path

from tiltmeter.datasets.found_images import OPTIONS, find_images, list_images
from tiltmeter.datasets.labelled import labelled_faces
from tiltmeter.datasets.options import choices
from tiltmeter.errors import InputError
from tiltmeter.io.specs import Spec
from tiltmeter.io.tables import Columns
from tiltmeter.types import Faces

RACES = {"A": "Asian", "B": "Black", "L": "Latino", "W": "White", "I": "Indian", "M": "Multiracial"}
GENDERS = {"F": "Female", "M": "Male"}
EXPRESSIONS = {
    "N": "neutral", "A": "angry", "F": "fearful", "HC": "happy, mouth closed",
    "HO": "happy, mouth open",
}  # fmt: skip
NAME = re.compile(r"CFD-(([A-Z])([FM])-\d+)-\d+-(N|A|F|HC|HO)\.jpe?g", re.IGNORECASE)
USUAL = ("gender", "race")


def load(spec: Spec, columns: Columns) -> Faces:
    """Faces: Chicago Face Database (chicagofaces.org; non-commercial research, on request).

    `?expression=N&race=A,B,W&gender=F` select images. `?norms=FILE.csv` adds the columns of the
    norming table (exported from its sheet as CSV) to the label columns.
    """
    spec.check_options("attributes", "expression", "race", "gender", "norms", *OPTIONS)
    wanted = {
        "race": choices(spec, "race", RACES),
        "gender": choices(spec, "gender", GENDERS),
        "expression": choices(spec, "expression", EXPRESSIONS),
    }
    directory = spec.directory()
    names, models, malformed = [], [], []
    labels: dict[str, list[str | None]] = {name: [] for name in wanted}
    for name in list_images(directory):
        parsed = NAME.fullmatch(name.rpartition("/")[2])
        if parsed is None or parsed[2].upper() not in RACES:
            malformed.append(name)
            continue
        race, gender, expression = (parsed[part].upper() for part in (2, 3, 4))
        codes = {"race": race, "gender": gender, "expression": expression}
        if all(code in wanted[attribute] for attribute, code in codes.items()):
            names.append(name)
            models.append(parsed[1].upper())
            labels["race"].append(RACES[race])
            labels["gender"].append(GENDERS[gender])
            labels["expression"].append(EXPRESSIONS[expression])
    present = find_images(spec, directory, names, malformed=malformed)
    if "norms" in spec.options:
        norms = _norms(Path(spec.options["norms"]))
        for column in dict.fromkeys(column for row in norms.values() for column in row):
            rated = [norms.get(model, {}).get(column) for model in models]
            labels.setdefault(column, rated)
    kept = {name: ",".join(codes) for name, codes in wanted.items()}
    return labelled_faces(present, names, labels, columns, name="cfd", usual=USUAL, provenance=kept)


def _norms(path: Path) -> dict[str, dict[str, str]]:
    """The norming table by person; lines above its header are skipped."""
    if path.suffix.lower() != ".csv" or not path.is_file():
        raise InputError(
            f"cfd: norms={path} is not a CSV file: export the norming sheet as CSV",
            code="not-found",
            value=str(path),
        )
    with path.open(encoding="utf-8-sig", errors="replace", newline="") as file:
        rows = list(csv.reader(file))
    for at, row in enumerate(rows):
        header = [cell.strip() for cell in row]
        key = next((name for name in ("Model", "Target") if name in header), None)
        if key is not None:
            table = [dict(zip(header, line, strict=False)) for line in rows[at + 1 :]]
            return {
                line[key].strip().upper().removeprefix("CFD-"): {
                    name: value.strip() for name, value in line.items() if name not in ("", key)
                }
                for line in table
                if line.get(key, "").strip()
            }
    raise InputError(
        f"cfd: {path} has no column `Model` (or `Target`) with the persons",
        code="bad-file",
        value=str(path),
    )
