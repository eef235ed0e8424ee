"""Bias metrics: pure functions of arrays, NumPy in and NumPy out, torch in and torch out.

`scores` is queries x items, `groups` are labels, integer codes or a `Groups`. Where the literature
disagrees there is no default: the caller chooses, one by one or by a named convention.

>>> from tiltmeter import metrics
>>> metrics.max_skew([[4, 3, 2, 1]], [0, 1, 0, 1],
...                  k=2, target="uniform", empty="bounded", ties="stable")
array([0.])
"""

from __future__ import annotations

from typing import Any

from tiltmeter.registry import Registry

_HERE = "tiltmeter.metrics"
METRICS = Registry(
    "metric",
    {
        "c_asc": f"{_HERE}.association:c_asc",
        "composition": f"{_HERE}.ranking:composition",
        "counterfactual_bias": f"{_HERE}.counterfactual:counterfactual_bias",
        "directed_bias": f"{_HERE}.counterfactual:directed_bias",
        "gaps": f"{_HERE}.disparity:gaps",
        "group_rates": f"{_HERE}.disparity:group_rates",
        "ivlas": f"{_HERE}.stereotype:ivlas",
        "lift": f"{_HERE}.group_lift:lift",
        "lmss": f"{_HERE}.stereotype:lmss",
        "max_skew": f"{_HERE}.ranking:max_skew",
        "min_skew": f"{_HERE}.ranking:min_skew",
        "ndkl": f"{_HERE}.ranking:ndkl",
        "normalized_entropy": f"{_HERE}.ranking:normalized_entropy",
        "sc_eat": f"{_HERE}.association:sc_eat",
        "shift_score": f"{_HERE}.stereotype:shift_score",
        "skew": f"{_HERE}.ranking:skew",
        "spearman": f"{_HERE}.propagation:spearman",
        "vlbs": f"{_HERE}.stereotype:vlbs",
        "vlrs": f"{_HERE}.stereotype:vlrs",
        "vlss": f"{_HERE}.stereotype:vlss",
        "weat": f"{_HERE}.association:weat",
    },
)

#: Public functions that are not metrics themselves.
_ALSO = {
    "by_group": "disparity",
    "c_asc_bound": "association",
    "get_convention": "convention",
    "found_in_top_k": "utility",
    "tied_share": "ranking",
    "top_counts": "ranking",
    "top_k": "retrieval",
    "mean_value_of_top_k": "retrieval",
    "zero_shot_correct": "utility",
}

__all__ = sorted([*METRICS, *_ALSO, "METRICS"])


def __getattr__(name: str) -> Any:
    # functions are imported on first use, so that `import tiltmeter` stays fast
    if name in METRICS.paths:
        return METRICS[name]
    if name in _ALSO:
        return Registry("function", {name: f"{_HERE}.{_ALSO[name]}:{name}"})[name]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return __all__
