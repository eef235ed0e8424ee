"""Models of the testbed by their spec."""

from __future__ import annotations

from typing import Any

from tiltmeter.errors import UnknownNameError
from tiltmeter.io.specs import Spec
from tiltmeter.testbed.answers import load as load_oracle
from tiltmeter.testbed.models import MODELS, TWINS, WRITER
from tiltmeter.testbed.networks import provenance_of, trained


def load(spec: Spec) -> Any:
    """Small models of the built-in world: dual, fusion, stream, writer; oracle, without a network.

    Parameters
    ----------
    spec : Spec
        `testbed:KIND`, with the option `twin` (`biased` or `fair`).

    Returns
    -------
    Testbed or OracleAnswers
        The model; its `world` is the one that it was trained on.

    Raises
    ------
    UnknownNameError
        The kind or the twin is unknown.
    """
    if spec.rest == "oracle":
        return load_oracle(spec)
    spec.check_options("twin")
    kind, twin = spec.rest or "fusion", spec.options.get("twin", "biased")
    if kind not in (*MODELS, WRITER):
        raise UnknownNameError("model of the testbed", kind, (*MODELS, WRITER))
    if twin not in TWINS:
        raise UnknownNameError("twin of a testbed model", twin, TWINS)
    name = kind if twin == "biased" else f"{kind}-fair"
    if kind == WRITER:
        from tiltmeter.testbed.writer import load_writer

        return load_writer(name)
    return MODELS[kind](trained(name), f"testbed:{name}", provenance_of(name))
