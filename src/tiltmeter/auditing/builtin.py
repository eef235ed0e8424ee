"""The default audit: all probes that apply, on the built-in world, in a minute or two."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from tiltmeter.auditing.options import AuditOptions
from tiltmeter.io.specs import Spec
from tiltmeter.stats.resampling import Resampling

CROSS = ("shape*hue",)
#: Runs on request elsewhere, since it changes images; the world redraws its own.
ALSO = ("counterfactual",)


@dataclass(frozen=True)
class Sizes:
    """Images by role, options of probes, and resamples."""

    images: dict[str, int]
    options: dict[str, dict[str, int]]
    resampling: Resampling


#: What `tiltmeter audit` takes, and with `--thorough`.
QUICK = Sizes(
    {"faces": 2100, "captions": 500, "utility": 500, "triplets": 160, "valence": 500, "lexicon": 0},
    # 140: ten images of each figure, so 20 of each hue, the fewest that are judged
    options={"counterfactual": {"images": 28}, "forced_choice": {"images": 140}},
    resampling=Resampling(permutations=200, bootstraps=100),
)
THOROUGH = Sizes(
    {"faces": 4000, "captions": 1000, "utility": 1000, "triplets": 400, "valence": 900,
     "lexicon": 0},
    options={"counterfactual": {"images": 100}},
    resampling=Resampling(),
)  # fmt: skip


def built_in_data(world: Any, sizes: Sizes) -> dict[str, str]:
    """Specs of the world's data by role.

    >>> from tiltmeter.testbed.world import World
    >>> built_in_data(World.plant(0.0), QUICK)["captions"]
    'testbed:captions?images=500&strength=0.0'
    """
    specs = {}
    for role, images in sizes.images.items():
        size = f"images={images}&" if images else ""
        specs[role] = f"testbed:{role if role != 'faces' else ''}?{size}strength={world.strength}"
    return specs


def in_world_of(world: Any, faces: Any) -> str | None:
    """The spec of `testbed:` figures that names no strength, in the world of the model.

    The same figures are drawn in every world; what is planted for them is the model's. None for all
    other data.

    >>> from tiltmeter.testbed.world import World
    >>> in_world_of(World.plant(0.0), "testbed:?images=280")
    'testbed:?images=280&strength=0.0'
    """
    if not isinstance(faces, str) or not faces.startswith("testbed:"):
        return None
    spec = Spec.parse(faces)
    if spec.rest or "strength" in spec.options:
        return None
    return str(replace(spec, options={**spec.options, "strength": str(world.strength)}))


def with_sizes(options: AuditOptions, sizes: Sizes, cross: Sequence[str] = CROSS) -> AuditOptions:
    """Options of the default audit: what was given stays as it is.

    >>> with_sizes(AuditOptions.of(bootstraps=0), QUICK).resampling
    Resampling(permutations=200, bootstraps=0, seed=0)
    """
    own = {name: getattr(sizes.resampling, name) for name in ("permutations", "bootstraps")
           if name not in options.given}  # fmt: skip
    given = options.probes.options
    probes = {name: {**values, **given.get(name, {})} for name, values in sizes.options.items()}
    return replace(
        options,
        data=replace(options.data, cross=options.data.cross or cross),
        probes=replace(options.probes, options={**given, **probes}),
        resampling=replace(options.resampling, **own),
    )
