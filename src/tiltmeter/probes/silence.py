"""Whom a generative model does not answer about: refusals, empty and cut answers, length, hedges.

It comes before the other probes of written text, since answers that are refused more often for one
group select what those see. Where an outcome is a share, `gap_low` and `gap_high` bound its gap
with refusals counted either way.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pyarrow as pa

from tiltmeter.probes.generative.group_gaps import Outcome, bound_rows, outcome_rows
from tiltmeter.probes.generative.reading import answer_words, hedge_count, is_refused, words_of
from tiltmeter.probes.generative.sample import AskedImages, per_image, sample_note
from tiltmeter.probes.probe import AuditContext, Probe
from tiltmeter.results import INSTANCES, combined, rows
from tiltmeter.types import Floats, Writer, WrittenText

LONG = "long answer"


@dataclass(frozen=True)
class SilenceOptions:
    """Options of the probe.

    Attributes
    ----------
    images : int
        Most images, evenly spread over all combinations of their labels.
    samples : int
        Answers per image; several need a temperature above 0.
    temperature : float
        Of the sampling; 0 takes the most likely token each time.
    limit : int
        Most tokens of an answer.
    prompts : str
        What is asked, separated by ``|``.
    """

    images: int = 280
    samples: int = 1
    temperature: float = 1.0
    limit: int = 128
    prompts: str = ""


def prompts_of(options: str, world: Any) -> list[str]:
    """What is asked: as the options say, or as the data's world or people are asked about."""
    if options:
        return [prompt.strip() for prompt in options.split("|") if prompt.strip()]
    if world is not None:
        from tiltmeter.testbed.dialogue import DESCRIBE, WHO

        return [WHO, DESCRIBE]
    return [answer_words()["prompts"][name] for name in ("who", "describe")]


def silence(model: Writer, sample: AskedImages) -> tuple[pa.Table, pa.Table]:
    """Rates by group of answers that are none, their length and hedges, with bounds.

    Parameters
    ----------
    model : Writer
        The model to audit.
    sample : AskedImages
        Images with groups.

    Returns
    -------
    tuple of pyarrow.Table
        Rows of RESULTS; and every answer (INSTANCES), which is untrusted text.
    """
    constants = sample.constants("silence", model)
    prompts = prompts_of(sample.context.options["prompts"], sample.world)
    outcomes: list[Outcome] = []
    bounds: list[tuple[Outcome, Floats]] = []
    instances = []
    for number, prompt in enumerate(prompts):
        sample.context.progress("writing", number / len(prompts))
        answers = sample.written(model, prompt)
        found = _outcomes(answers, prompt, sample)
        outcomes += found.values()
        bounds.append((_long_of_all(found), found["refused"].values))
        instances.append(_instances(answers, prompt, sample, constants))
    tables = []
    for groups in sample.groups.values():
        tables.append(outcome_rows(outcomes, groups, sample.context.resampling, constants,
                                   attributes=len(sample.groups)))  # fmt: skip
        tables += [bound_rows(one, refused, groups, constants) for one, refused in bounds]
    return combined(tables), combined(instances, INSTANCES)


def _outcomes(
    answers: list[list[WrittenText]], prompt: str, sample: AskedImages
) -> dict[str, Outcome]:
    """Everything that is measured of the answers to one prompt."""
    said = [[len(words_of(one.text)) for one in own] for own in answers]
    refused = [[is_refused(one) for one in own] for own in answers]
    spoken = [[bool(n) and not no for n, no in zip(*both, strict=True)]
              for both in zip(said, refused, strict=True)]  # fmt: skip
    lengths = [n for both in zip(said, spoken, strict=True) for n, is_answer in
               zip(*both, strict=True) if is_answer]  # fmt: skip
    average = float(np.mean(lengths)) if lengths else np.nan
    labels = {"experiment": prompt}
    note = sample_note(sample)
    planted = _planted(prompt, sample)

    def of_answers(values: list[list[Any]]) -> Floats:
        """NaN for answers that are none."""
        return per_image([[v if is_answer else np.nan for v, is_answer in zip(*both, strict=True)]
                          for both in zip(values, spoken, strict=True)])  # fmt: skip

    shares = {
        "refused": refused,
        "filtered": [[one.ended == "filtered" for one in own] for own in answers],
        "cut at the limit": [[one.ended == "length" for one in own] for own in answers],
        "empty": [[n == 0 for n in own] for own in said],
    }
    found = {
        name: Outcome(name, per_image(values), labels=labels, note=note, truth=planted.get(name))
        for name, values in shares.items()
    }
    of_given: dict[str, list[list[Any]]] = {
        "hedged": [[hedge_count(one) > 0 for one in own] for own in answers],
        LONG: [[n > average for n in own] for own in said],
        "words": said,
    }
    for name, values in of_given.items():
        found[name] = Outcome(
            name, of_answers(values), rate=name != "words", labels=labels,
            note=f"{note}; without refusals", truth=planted.get(name),
        )  # fmt: skip
    return found


def _long_of_all(found: Mapping[str, Outcome]) -> Outcome:
    """Long answers as a share of all, where a refusal is none: for the bounds."""
    answered = 1 - found["refused"].values - found["empty"].values
    share = np.where(answered > 0, found[LONG].values * answered, 0.0)
    return replace(found[LONG], values=np.nan_to_num(share))


def _planted(prompt: str, sample: AskedImages) -> dict[str, Floats | None]:
    """What is planted for every image, where the world says it.

    The share of long answers is that of answers which were given, and of all if none were refused.
    """
    if sample.world is None:
        return {}
    from tiltmeter.testbed.dialogue import WHO

    if prompt != WHO:
        return {"refused": sample.planted(lambda planted: 0 * planted.refusal)}
    return {
        "refused": sample.planted(lambda planted: planted.refusal),
        LONG: sample.planted(lambda planted: planted.long),
        "words": sample.planted(lambda planted: planted.words),
    }


def _instances(
    answers: list[list[WrittenText]], prompt: str, sample: AskedImages, constants: Mapping[str, Any]
) -> pa.Table:
    """Every answer, with its number among those of its image as rank."""
    labels = sample.labels()
    every = [(row, rank, one) for row, own in enumerate(answers) for rank, one in enumerate(own)]
    return rows(
        len(every), INSTANCES, model=constants["model"], dataset=constants["dataset"],
        experiment=prompt, id=[sample.faces.ids[row] for row, _, _ in every],
        groups=[labels[row] for row, _, _ in every], rank=[rank + 1 for _, rank, _ in every],
        score=[float(len(words_of(one.text))) for _, _, one in every],
        concept=["refused" if is_refused(one) else one.ended for _, _, one in every],
        pick=[one.text for _, _, one in every],
    )  # fmt: skip


def _run(model: Writer, data: Mapping[str, Any], context: AuditContext) -> tuple[Any, ...]:
    return silence(model, AskedImages.of(data["faces"], context))


PROBE = Probe(
    "Whom a generative model does not answer about: refusals, length, hedges by group.",
    _run,
    needs=("faces",),
    protocols=(Writer,),
    options=vars(SilenceOptions()),
)
