"""What stands beside a value: each column against its own function, and what is undefined."""

from __future__ import annotations

import numpy as np
import pytest

from tiltmeter.errors import UnknownNameError
from tiltmeter.results import RESULTS, rows
from tiltmeter.stats.bootstrap import interval, standard_error_interval
from tiltmeter.stats.intervals import wilson
from tiltmeter.stats.multiplicity import benjamini_hochberg, holm, standardised_max_t
from tiltmeter.stats.null import NullBand, null_band, p_from_null_draws
from tiltmeter.stats.significance import Interval, columns

RNG = np.random.default_rng(3)
VALUE = np.array([[0.1, 2.5, -1.0], [0.4, np.nan, 3.1]])
NULL = RNG.normal(size=(199, *VALUE.shape))
BOOT = VALUE + RNG.normal(size=(100, *VALUE.shape))


def same(found: object, expected: object) -> None:
    np.testing.assert_array_equal(np.asarray(found), np.asarray(expected).ravel())


@pytest.mark.parametrize("side", ["two", "greater", "less"])
def test_columns_are_those_of_the_functions(side: str) -> None:
    found = columns(
        VALUE, side=side, null=NULL, family="holm", interval=Interval(boot=BOOT, method="bootstrap")
    )
    p = p_from_null_draws(VALUE, NULL, side)
    for name, edge in zip(("null_mean", "null_low", "null_high"), null_band(NULL), strict=True):
        same(found[name], edge)
    for name, edge in zip(("ci_low", "ci_high"), interval(BOOT, VALUE), strict=True):
        same(found[name], edge)
    same(found["p"], p)
    same(found["p_fwer"], holm(p))
    same(found["p_bh"], benjamini_hochberg(p))
    assert found["p_side"] == side
    assert set(found) <= set(RESULTS.names)


def test_max_t_shares_its_draws_and_is_never_below_p() -> None:
    found = columns(VALUE, side="two", null=NULL, family="maxT")
    same(
        found["p_fwer"],
        np.fmax(standardised_max_t(VALUE, NULL, "two"), p_from_null_draws(VALUE, NULL)),
    )
    defined = ~np.isnan(found["p"])
    assert (found["p_fwer"][defined] >= found["p"][defined]).all()
    assert (found["p_fwer"][defined] > found["p"][defined]).any()


def test_one_sample_of_draws_serves_all_values() -> None:
    sample = NULL[:, 0, 0]
    found = columns(VALUE, side="greater", null=sample, family="bh")
    each = [np.nan if np.isnan(one) else p_from_null_draws(one, sample, "greater")
            for one in VALUE.ravel()]  # fmt: skip
    same(found["p"], each)
    same(found["null_high"], np.full(VALUE.shape, null_band(sample).high))
    assert "p_fwer" not in found


def test_an_undefined_value_has_neither_p_nor_interval() -> None:
    found = columns(
        [0.5, np.nan],
        side="two",
        p=[0.01, 0.02],
        null=NullBand(*np.array([0.5, 0.2, 0.8])),
        family="holm",
        interval=Interval(edges=wilson(np.array([5, 5]), np.array([10, 10])), method="Wilson"),
    )
    for name in ("p", "p_fwer", "p_bh", "ci_low", "ci_high"):
        assert np.isnan(found[name]).tolist() == [False, True], name
    assert found["p_fwer"][0] == 0.01  # a family of one
    assert found["ci_method"].tolist() == ["Wilson", None]
    assert found["null_high"].tolist() == [0.8, 0.8]


def test_noise_that_pushes_up_gives_a_standard_error_within_bounds() -> None:
    found = columns(VALUE, interval=Interval(boot=BOOT, regular=False, stretch=1.5, bounds=(0, 1)))
    for name, edge in zip(("ci_low", "ci_high"), standard_error_interval(BOOT, VALUE, 1.5),
                          strict=True):  # fmt: skip
        same(found[name], np.clip(edge, 0, 1))


def test_without_draws_nothing_is_known() -> None:
    found = columns(
        VALUE, side="two", null=NULL[:0], family="maxT", interval=Interval(boot=BOOT[:0])
    )
    table = rows(VALUE.size, **found, note="no draws")
    for name in ("null_mean", "null_low", "null_high", "ci_low", "ci_high", "p", "p_fwer", "p_bh"):
        assert table[name].null_count == VALUE.size, name
    assert "p" not in columns(VALUE, null=NULL, p=0.5)  # no side: not tested


def test_an_unknown_family_is_refused() -> None:
    with pytest.raises(UnknownNameError, match="family 'holmes'.*holm"):
        columns(VALUE, side="two", null=NULL, family="holmes")
