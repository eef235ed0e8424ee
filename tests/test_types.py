"""Groups: labels, intersections, and the errors that name what is wrong."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tiltmeter.errors import InputError, UnknownNameError
from tiltmeter.types import Faces, Groups

labels = st.lists(st.sampled_from("abc"), min_size=1, max_size=30)


@given(labels, st.data())
def test_intersections_are_finer_and_drop_empty_groups(one: list[str], data: st.DataObject) -> None:
    two = data.draw(st.lists(st.sampled_from("xy"), min_size=len(one), max_size=len(one)))
    crossed = Groups.from_labels(one).cross(Groups.from_labels(two))
    found = [crossed.names[code] for code in crossed.codes]
    assert found == [f"{a} | {b}" for a, b in zip(one, two, strict=True)]
    assert (crossed.counts > 0).all()


@given(labels, st.data())
def test_intersection_is_the_same_partition_either_way(one: list[str], data: st.DataObject) -> None:
    two = data.draw(st.lists(st.sampled_from("xy"), min_size=len(one), max_size=len(one)))
    a, b = Groups.from_labels(one), Groups.from_labels(two)
    assert sorted(a.cross(b).counts) == sorted(b.cross(a).counts)


@pytest.mark.parametrize(
    "expected",
    [
        ["0-2", "3-9", "10-19", "60-69", "more than 70"],
        ["-1.0", "0.25", "0.5", "2.0", "10.0"],
        ["01", "1", "a2", "a10", "a10b", "b1"],
        ["Black", "East Asian", "White", "black"],  # without numbers: by code point
    ],
)
def test_groups_sort_by_the_numbers_in_their_names(expected: list[str]) -> None:
    given_ = [*reversed(expected), expected[1]]
    groups = Groups.from_labels(given_)
    assert list(groups.names) == expected
    assert [groups.names[code] for code in groups.codes] == given_
    crossed = groups.cross(Groups.from_labels(["x"] * len(given_)))
    assert list(crossed.names) == [f"{name} | x" for name in expected]


def test_shares_and_rows() -> None:
    groups = Groups.from_labels(["x", "y", "x", "x"], attribute="kind")
    assert groups.shares.tolist() == [0.75, 0.25]
    assert groups[[1, 2]].counts.tolist() == [1, 1]
    assert groups.attribute == "kind"


@pytest.mark.parametrize("missing", [None, "", float("nan")])
def test_rows_without_a_label_are_refused(missing: object) -> None:
    with pytest.raises(InputError, match="1 of 3 rows have no label for 'race'"):
        Groups.from_labels(["a", missing, "b"], attribute="race")


def test_codes_are_checked() -> None:
    with pytest.raises(InputError, match=r"codes must be in 0\.\.1"):
        Groups(np.array([0, 2]), ("a", "b"))
    with pytest.raises(InputError, match="flat array of integers"):
        Groups(np.array([0.5, 1.0]), ("a", "b"))
    with pytest.raises(InputError, match=r"3 rows\) with"):
        Groups.from_labels(["a", "b", "c"]).cross(Groups.from_labels(["a", "b"]))


def test_faces_give_attributes_and_intersections_by_name() -> None:
    faces = Faces(
        ids=("1", "2", "3", "4"),
        groups={
            "race": Groups.from_labels(["r", "s", "r", "s"], attribute="race"),
            "gender": Groups.from_labels(["m", "m", "f", "f"], attribute="gender"),
        },
    )
    assert faces.attribute("race*gender").names == ("r | f", "r | m", "s | f", "s | m")
    with pytest.raises(UnknownNameError, match="did you mean 'gender'"):
        faces.attribute("race*gendre")


def test_names_must_tell_groups_apart() -> None:
    one = Groups.from_labels(["a | b", "a"], attribute="x")
    two = Groups.from_labels(["c", "b | c"], attribute="y")
    with pytest.raises(InputError, match="both named 'a \\| b \\| c'"):
        one.cross(two)


def test_labels_may_be_an_array_or_a_tensor() -> None:
    torch = pytest.importorskip("torch")
    assert Groups.from_labels(torch.tensor([1, 0])).names == ("0", "1")
    assert Groups.from_labels(np.array(["x", "y"])).names == ("x", "y")
