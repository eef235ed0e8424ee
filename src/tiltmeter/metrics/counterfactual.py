"""CounterBias (Zhang et al. 2022): what the target's probability owes to the bias concept."""

from __future__ import annotations

from tiltmeter.errors import InputError
from tiltmeter.metrics.arrays import flat, namespace
from tiltmeter.types import Array

#: Below this change of the bias concept's probability the ratio says nothing.
LEAST_CHANGE = 0.05


def counterfactual_bias(
    target_factual: Array,
    target_counterfactual: Array,
    bias_factual: Array,
    bias_counterfactual: Array,
    *,
    least_change: float = LEAST_CHANGE,
) -> Array:
    """(P(T|cf) - P(T|f)) / (P(B|cf) - P(B|f)), one an instance; ideal 0 (equations 6, 9, 11).

    Positive where the target leans towards the bias concept B that the instance has. Undefined,
    NaN, where |P(B|cf) - P(B|f)| < `least_change`: count these, never average over them.

    >>> counterfactual_bias([0.6, 0.6], [0.4, 0.1], [0.9, 0.5], [0.1, 0.49]).round(2)
    array([0.25,  nan])
    """
    t_f, t_cf, b_f, b_cf = _same_length(
        target_factual=target_factual,
        target_counterfactual=target_counterfactual,
        bias_factual=bias_factual,
        bias_counterfactual=bias_counterfactual,
    )
    xp = namespace(t_f)
    moved = b_cf - b_f
    # a change of just the threshold counts as defined, also after rounding
    defined = abs(moved) >= least_change - 1e-12
    return xp.where(defined, (t_cf - t_f) / xp.where(defined, moved, 1.0), float("nan"))


def directed_bias(bias: Array, has_first: Array) -> Array:
    """Mean over the defined instances, signed towards the first bias word (equation 7); ideal 0.

    `has_first` marks the instances whose factual bias word is the first (male, in the paper).

    >>> directed_bias([0.25, 0.5, float("nan")], [True, False, True])
    np.float64(-0.125)
    """
    bias, first = _same_length(bias=bias, has_first=has_first)
    signed = (bias * (2 * first - 1))[~namespace(bias).isnan(bias)]
    return signed.mean() if len(signed) else bias.sum() * float("nan")


def _same_length(**arrays: Array) -> list[Array]:
    found = {name: flat(values, name) for name, values in arrays.items()}
    if len({len(values) for values in found.values()}) > 1:
        raise InputError(
            "one value an instance is needed in each: "
            + ", ".join(f"{name} has {len(values)}" for name, values in found.items())
        )
    return list(found.values())
