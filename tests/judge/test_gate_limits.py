"""Limits that a run must keep: read strictly, explained plainly."""

from __future__ import annotations

import pytest

from tests.refusing import refused
from tiltmeter.errors import InputError, UnknownNameError
from tiltmeter.judge.gate import Limit
from tiltmeter.results import Run, combined, rows


@pytest.fixture
def run() -> Run:
    """MaxSkew of two words and their mean at two k, C-ASC by group, recall both ways."""
    base = {"probe": "ranking", "attribute": "gender", "ideal": 0.0}
    skew = rows(4, **base, metric="max_skew", k=[100, 1000, 1000, 1000],
                concept=[None, None, "nurse", "boss"], category=[None, None, "work", "work"],
                value=[0.5, 0.2, 0.1, 0.3])  # fmt: skip
    near = rows(2, **base, metric="c_asc", concept="nurse", category="work",
                group=["man", "woman"], value=[-0.4, 0.4])  # fmt: skip
    placebo = rows(1, **base, metric="max_skew", k=1000, concept="lamp", category="placebo",
                   value=[9.0])  # fmt: skip
    recall = rows(2, probe="retrieval", metric="recall", k=5, ideal=1.0, value=[0.6, 0.8],
                  experiment=["text to image", "image to text"])  # fmt: skip
    undefined = rows(1, probe="ranking", metric="ndkl", attribute="gender", value=[float("nan")],
                     note="one group")  # fmt: skip
    lift = rows(3, probe="lift", attribute="gender", metric=["lift_size", "lift", "lift"],
                concept=[None, "nurse", "nurse"], group=[None, "man", "woman"], experiment="noun",
                value=[0.3, -0.5, 0.5], ideal=0.0)  # fmt: skip
    return Run(combined([skew, near, placebo, recall, undefined, lift]))


@pytest.mark.parametrize(
    ("text", "broken"),
    [
        ("max_skew@1000[gender] < 0.25", 0),
        ("max_skew@1000[gender]<0.2", 1),  # .2 is not below .2
        ("max_skew@1000[gender] <= 0.2", 0),
        (" max_skew @ 100 [ gender ] < .25 ", 1),
        ("max_skew@1000[gender, nurse] < 0.15", 0),
        ("max_skew@1000[gender, boss] < 0.15", 1),
        ("max_skew@1000[gender, *] < 0.05", 2),  # both words; no placebo
        ("max_skew@1000 < 1e-1", 1),
        ("c_asc[gender, nurse] < 0.3", 2),  # its size, for both groups
        ("recall@5 >= 0.7", 1),
        ("recall@5 > 0.5", 0),
        ("ndkl[gender] < 1", 1),
        ("lift[gender] < 1.3", 1),  # exp(.3) is 1.35
        ("lift[gender] < 1.4", 0),
        ("lift_size[gender] < 1.3", 1),
        ("lift[gender, nurse] < 1.6", 2),  # .61x with man, 1.65x with woman
        ("lift[gender, *] <= 1.7", 0),
    ],
)
def test_limits(run: Run, text: str, broken: int) -> None:
    limit = Limit.parse(text)
    assert len(limit.violations(run)) == broken
    assert Limit.parse(str(limit)) == limit


def test_what_is_told(run: Run) -> None:
    [line] = Limit.parse("max_skew@1000[gender] < 0.15").violations(run)
    assert line == "max_skew@1000[gender] < 0.15: it is 0.200 for gender"
    [line] = Limit.parse("recall@5 >= 0.7").violations(run)
    assert line == "recall@5 >= 0.7: it is 0.600 for text to image"
    [line] = Limit.parse("ndkl[gender] < 1").violations(run)
    assert line == "ndkl[gender] < 1: undefined for gender (one group)"
    [line] = Limit.parse("lift[gender] < 1.25").violations(run)
    assert line == "lift[gender] < 1.25: it is 1.35x for gender, noun"
    lines = Limit.parse("lift[gender, nurse] < 1.25").violations(run)
    assert lines[0] == "lift[gender, nurse] < 1.25: it is 0.61x for gender, man, nurse, noun"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("max_skew@1000[gender]", "expected <, <=, > or >= and a number"),
        ("max_skew@1000[gender] == 0.1", "expected <, <=, > or >= and a number"),
        ("max_skew@1000[gender] =< 0.1", "expected one of <, <=, >, >="),
        ("0.1 < max_skew@1000[gender] < 0.2", "expected one of <, <=, >, >="),
        ("max_skew@1000[gender < 0.1", "expected a closing ]"),
        ("max_skew@1000[gender] < a little", "expected a number at its end"),
        ("max_skew@1000[gender] < 0.1.2", "expected METRIC@K"),
        ("max_skew@k[gender] < 0.1", "expected METRIC@K"),
        ("MaxSkew@1000[gender] < 0.1", "expected METRIC@K"),
        ("", "expected <, <=, > or >= and a number"),
    ],
)
def test_what_cannot_be_read(text: str, said: str) -> None:
    with pytest.raises(InputError) as error:
        Limit.parse(text)
    assert said in str(error.value)
    assert "as in 'max_skew@1000[gender] < 0.15'" in str(error.value)


def test_a_ratio_is_above_1() -> None:
    with refused("bad-option", "lift[gender] < 0.25"):
        Limit.parse("lift[gender] < 0.25")


def test_what_the_run_does_not_have(run: Run) -> None:
    def broken(text: str) -> None:
        Limit.parse(text).violations(run)

    with pytest.raises(UnknownNameError, match="did you mean 'max_skew'"):
        broken("max_skw@1000[gender] < 1")
    with pytest.raises(UnknownNameError, match="did you mean 'gender'"):
        broken("max_skew@1000[gendr] < 1")
    with pytest.raises(UnknownNameError, match="did you mean 'nurse'"):
        broken("max_skew@1000[gender, nurs] < 1")
    with pytest.raises(InputError, match="not measured at k = 10 .* expected one of 100, 1000"):
        broken("max_skew@10[gender] < 1")
    with pytest.raises(InputError, match="expected one of max_skew@100, max_skew@1000"):
        broken("max_skew[gender] < 1")
