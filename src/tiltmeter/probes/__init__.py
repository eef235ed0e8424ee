"""Probes, one file a published protocol: a model and data in, rows of results out."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tiltmeter.errors import InputError, UnknownNameError
from tiltmeter.registry import Registry

PROBES = Registry(
    "probe",
    {
        "ranking": "tiltmeter.probes.ranking:ranking",
        "retrieval": "tiltmeter.probes.retrieval:retrieval",
        "zero_shot": "tiltmeter.probes.zero_shot:zero_shot",
        "harms": "tiltmeter.probes.harms:harms",
        "eat": "tiltmeter.probes.eat:eat",
        "ieat": "tiltmeter.probes.eat:ieat",
    },
)
#: The role of the data that a probe needs; None where its words are enough.
NEEDS: dict[str, str | None] = {
    "ranking": "faces",
    "retrieval": "captions",
    "zero_shot": "utility",
    "harms": "faces",
    "eat": None,
    "ieat": "stimuli",
}


class UnknownWordsError(InputError):
    """A probe's own words are strange to the model: an audit that did not ask for it goes on."""


@contextmanager
def words_known() -> Iterator[None]:
    """What a model with a closed vocabulary says of a strange word, in short."""
    try:
        yield
    except UnknownNameError as error:
        said = str(error).partition(";")[0]
        raise UnknownWordsError(f"does not know all of its words: {said}") from error
