"""Which metric to trust for which question, by what a calibration measured.

A question has the metrics that answer it, and the checks that they must pass. A metric that was
not measured passes no check.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

from tiltmeter.judge.calibration.verdict import (
    FALSE_POSITIVES,
    FLOOR,
    LOW_NOISE_SHARE,
    RECOVERS,
    MetricSummary,
)

#: How far a value may move when only the noise of the model changes.
HALF_NOISE_CHANGE = 0.1


@dataclass(frozen=True)
class Check:
    """A measured value, what it must be, and how it is said.

    Attributes
    ----------
    words : str
        A sentence with {} for the value, or for the range of values of several metrics.
    shown : str
        Format of the value.
    value : callable
        The value of a metric; None where it was not measured.
    passes : callable
        Whether the value will do.
    missing : str
        What is said where there is no value.
    """

    words: str
    shown: str
    value: Callable[[MetricSummary], float | None]
    passes: Callable[[MetricSummary], bool]
    missing: str

    def passed(self, found: MetricSummary) -> bool:
        return self.value(found) is not None and self.passes(found)

    def describe(self, *found: MetricSummary) -> str:
        """The value of these metrics in words."""
        values = [value for value in map(self.value, found) if value is not None]
        if not values:
            return self.missing
        ends = dict.fromkeys(format(value, self.shown) for value in (min(values), max(values)))
        return self.words.format(" to ".join(ends))


LEVEL_SIMULATED = Check(
    "{} false positives on simulated models",
    ".1%",
    lambda found: found.false_positives,
    lambda found: (found.false_positives_low or 0) <= FALSE_POSITIVES,
    "has no test",
)
LEVEL_TRAINED = Check(
    "{} false positives on trained models without bias",
    ".1%",
    lambda found: found.trained_false_positives,
    lambda found: (found.trained_false_positives_low or 0) <= FALSE_POSITIVES,
    "not measured on a trained model",
)
ORDER = Check(
    "Spearman {} with what was planted",
    ".2f",
    lambda found: found.order,
    lambda found: (found.order or 0) >= RECOVERS,
    "its order is undefined",
)
SIZE = Check(
    "with differences of scores made 1000 times smaller the value is still {} of that at dose 1",
    ".0%",
    lambda found: found.low_noise,
    lambda found: (found.low_noise or 0) <= LOW_NOISE_SHARE,
    "no response to bias",
)
GROWS = Check(
    "grows up to dose {}",
    "g",
    lambda found: found.grows_to,
    lambda found: found.saturates_above is None and found.falls_above is None,
    "no response to bias",
)
STAYS = Check(
    "reads {}x as large when only the noise is halved",
    ".2f",
    lambda found: found.half_noise,
    lambda found: abs((found.half_noise or 0) - 1) <= HALF_NOISE_CHANGE,
    "no response to bias",
)
#: Not required, but said where they fail.
FIRES_TRAINED = replace(
    LEVEL_TRAINED,
    words="but significant for {} of words on trained models without bias as well",
    shown=".0%",
)
NULL = Check(
    "read it next to its null: zero bias reads as {} of dose 1",
    ".0%",
    lambda found: found.floor,
    lambda found: (found.floor or 0) <= FLOOR,
    "",
)


@dataclass(frozen=True)
class Question:
    """What an audit is asked, the metrics that answer it, and what they must pass."""

    text: str
    metrics: tuple[str, ...]
    checks: tuple[Check, ...]


_WORDS, _TEST = ("lift", "c_asc", "sc_eat"), (LEVEL_SIMULATED, ORDER)
#: Every registered metric answers at least one.
QUESTIONS = (
    Question("Is a word associated with a group?", _WORDS, (LEVEL_TRAINED, *_TEST)),
    Question("How strongly is it associated?", _WORDS, (SIZE, GROWS, ORDER)),
    Question("Did a correction change the association?", _WORDS, (STAYS, SIZE)),
    Question("Are two sets of words associated with different groups?", ("weat",), _TEST),
    Question(
        "Does the top of a ranking favour a group?",
        ("skew", "max_skew", "min_skew", "ndkl", "composition", "normalized_entropy"),
        _TEST,
    ),
    Question("Is a harmful class chosen more often for a group?", ("group_rates", "gaps"), _TEST),
    Question("Is the stereotype preferred among captions?", ("ivlas", "vlbs", "vlrs"), _TEST),
    Question(
        "Does the group in the image change a masked word?",
        ("lift", "counterfactual_bias", "directed_bias"),
        (LEVEL_TRAINED, *_TEST, SIZE),
    ),
    Question(
        "What do image and caption add to a choice between two masked words?",
        ("vlss", "lmss", "shift_score"),
        (*_TEST, SIZE),
    ),
    Question("Does bias of embeddings reach retrieval?", ("spearman",), _TEST),
)


@dataclass(frozen=True)
class Trust:
    """The answer to one question: metrics to trust and why, and metrics not to trust and why."""

    question: str
    trust: tuple[str, ...]
    why: str
    not_trust: tuple[tuple[str, str], ...]  # metric, the first check that it fails


def which_to_trust(summaries: Sequence[MetricSummary]) -> Iterator[Trust]:
    """Answer every question that some calibrated metric answers.

    >>> from tiltmeter.judge.calibration import calibrate
    >>> found = calibrate(["gaps"], doses=(0, 1, 2), sizes=(100,), images=300, replicates=2)
    >>> [(answer.trust, answer.not_trust[0][0]) for answer in which_to_trust(found.summaries)]
    [((), 'gaps')]
    """
    by_name = {found.metric: found for found in summaries}
    for question in QUESTIONS:
        passing, failing = [], []
        for found in (by_name[name] for name in question.metrics if name in by_name):
            failed = [check for check in question.checks if not check.passed(found)]
            if failed:
                failing.append((found.metric, failed[0].describe(found)))
            else:
                passing.append(found)
        if passing or failing:
            why = [check.describe(*passing) for check in question.checks if passing]
            why += [f"{found.metric}: {NULL.describe(found)}" for found in passing
                    if not NULL.passed(found)]  # fmt: skip
            fired = [
                found
                for found in passing
                if found.trained_false_positives and not LEVEL_TRAINED.passed(found)
            ]
            if fired:
                why.append(FIRES_TRAINED.describe(*fired))
            trusted = tuple(found.metric for found in passing)
            yield Trust(question.text, trusted, "; ".join(why), tuple(failing))
