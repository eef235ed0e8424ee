"""CounterBias (Zhang et al. 2022): how the bias concept changes the probability of the target."""

from __future__ import annotations

from tiltmeter.errors import InputError
from tiltmeter.metrics.arrays import flat, namespace
from tiltmeter.types import Array

#: Below this change of the bias concept's probability the ratio is undefined.
LEAST_CHANGE = 0.05


def counterfactual_bias(
    target_factual: Array,
    target_counterfactual: Array,
    bias_factual: Array,
    bias_counterfactual: Array,
    *,
    least_change: float = LEAST_CHANGE,
) -> Array:
    """Change of the target's probability per change of the bias concept's (equations 6, 9, 11).

    (P(T|cf) - P(T|f)) / (P(B|cf) - P(B|f)) for factual (f) and counterfactual (cf) inputs.

    Parameters
    ----------
    target_factual, target_counterfactual : array of shape (instances,)
        P(T|f) and P(T|cf), of the target word.
    bias_factual, bias_counterfactual : array of shape (instances,)
        P(B|f) and P(B|cf), of the instance's own bias word.
    least_change : float
        Below this |P(B|cf) - P(B|f)| the ratio is undefined.

    Returns
    -------
    array of shape (instances,)
        Positive where the target is associated with the bias concept; ideal 0. NaN where undefined:
        count these, do not average over them.

    Raises
    ------
    InputError
        The arrays differ in length.

    Examples
    --------
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
    change = b_cf - b_f
    # a change equal to the threshold is defined, also after rounding
    defined = abs(change) >= least_change - 1e-12
    return xp.where(defined, (t_cf - t_f) / xp.where(defined, change, 1.0), float("nan"))


def directed_bias(bias: Array, has_first: Array) -> Array:
    """Mean bias over the defined instances, signed towards the first bias word (equation 7).

    Parameters
    ----------
    bias : array of shape (instances,)
        As `counterfactual_bias` returns it; NaN is left out.
    has_first : array of bool of shape (instances,)
        Whether the factual bias word is the first one (male, in the paper).

    Returns
    -------
    float
        Ideal 0; NaN if no instance is defined.

    Raises
    ------
    InputError
        The arrays differ in length.

    Examples
    --------
    >>> directed_bias([0.25, 0.5, float("nan")], [True, False, True])
    np.float64(-0.125)
    """
    bias, first = _same_length(bias=bias, has_first=has_first)
    signed = (bias * (2 * first - 1))[~namespace(bias).isnan(bias)]
    return signed.mean() if len(signed) else bias.sum() * float("nan")


def _same_length(**arrays: Array) -> list[Array]:
    checked = {name: flat(values, name) for name, values in arrays.items()}
    if len({len(values) for values in checked.values()}) > 1:
        raise InputError(
            "arrays must have one value per instance: "
            + ", ".join(f"{name} has {len(values)}" for name, values in checked.items())
        )
    return list(checked.values())
