"""NumPy or torch: the only module that knows the difference.

A metric uses `namespace(x)` (numpy or torch: the functions used here have the same names in both)
for its arithmetic, and `kernels(x)` for the few loops that need to be fast.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any

import numpy as np

from tiltmeter.errors import InputError
from tiltmeter.types import Array, Floats, Groups


def is_torch(x: Array) -> bool:
    """Whether `x` is a torch tensor; does not import torch to find out."""
    return type(x).__module__.partition(".")[0] == "torch"


def namespace(x: Array) -> Any:
    """The module, numpy or torch, whose functions take `x`."""
    if is_torch(x):
        import torch

        return torch
    return np


def kernels(x: Array) -> ModuleType:
    """The module of loops for the kind of `x`: numba for NumPy, tensor code for torch."""
    if is_torch(x):
        from tiltmeter.metrics import torch_kernels

        return torch_kernels
    from tiltmeter.metrics import numpy_kernels

    return numpy_kernels


def like(x: Array, values: Any, dtype: str | None = "float64") -> Array:
    """`values` as an array of the same kind, and on the same device, as `x`."""
    if is_torch(x):
        import torch

        kind = getattr(torch, dtype) if dtype else None
        return torch.as_tensor(values, dtype=kind, device=x.device)
    return np.asarray(values, dtype=dtype)


def to_numpy(x: Array) -> Floats:
    """`x` as a NumPy array; bfloat16, which NumPy does not have, as float32."""
    if not is_torch(x):
        return np.asarray(x)
    x = x.detach().cpu()
    return np.asarray((x.float() if str(x.dtype) == "torch.bfloat16" else x).numpy())


def matrix(x: Array, name: str, rows: str, columns: str, first: int = 0) -> Array:
    """Check that `x` is a finite matrix; half becomes single precision, integers double.

    Parameters
    ----------
    x : array
        What the caller passed.
    name, rows, columns : str
        What `x`, its rows and its columns are called in error messages.
    first : int
        Number of its first row, where `x` is a part of something larger.

    Returns
    -------
    array of float32 or float64
        `x`, not copied if it already was.

    Raises
    ------
    InputError
        Not a matrix, empty, not numeric, or not finite.

    Examples
    --------
    >>> matrix([[1, 2]], "scores", "queries", "items")
    array([[1., 2.]])
    """
    if not is_torch(x):
        x = np.asarray(x)
    if x.ndim != 2:
        raise InputError(
            f"{name} must be a matrix of {rows} x {columns}; got shape {tuple(x.shape)}"
            + (f". For one row pass {name}[None, :]" if x.ndim == 1 else "")
        )
    if x.shape[0] == 0 or x.shape[1] == 0:
        raise InputError(f"{name} is empty: shape {tuple(x.shape)} ({rows} x {columns})")
    kind = str(x.dtype).rpartition(".")[2]
    if kind not in ("float32", "float64"):
        half = kind in ("float16", "bfloat16")
        try:
            if is_torch(x):
                x = x.float() if half else x.double()
            else:
                x = x.astype(np.float32 if half else np.float64)
        except (TypeError, ValueError):
            raise InputError(f"{name} must contain numbers; got dtype {x.dtype}") from None
    xp = namespace(x)
    # the sum is finite unless a value is not: one pass, without a mask of the matrix
    if not xp.isfinite(x.sum()) and not (finite := xp.isfinite(x)).all():
        row, column = (int(i[0]) for i in xp.where(~finite))
        raise InputError(
            f"{name} contains {int((~finite).sum())} values that are NaN or infinite, the first at "
            f"row {first + row}, column {column}; remove or repair those {rows}"
        )
    return x


def flat(x: Array, name: str) -> Array:
    """`x` as a flat array of float64; InputError for any other shape."""
    x = like(x, x) if is_torch(x) else np.asarray(x, dtype=np.float64)
    if x.ndim != 1:
        raise InputError(f"{name} must be a flat array; got shape {tuple(x.shape)}")
    return x


def as_groups(groups: Groups | Array, items: int) -> Groups:
    """`groups` as Groups: codes from 0, or labels; InputError unless they label every item."""
    if not isinstance(groups, Groups):
        codes = to_numpy(groups)
        if codes.dtype.kind in "bUSTO" and codes.ndim == 1:
            return as_groups(Groups.from_labels(codes.tolist()), items)
        count = int(codes.max()) + 1 if codes.size and codes.dtype.kind in "iu" else 1
        groups = Groups(codes, tuple(str(code) for code in range(count)))
    if len(groups) != items:
        raise InputError(
            f"{groups.attribute!r} labels {len(groups)} rows, but there are {items} items: "
            "they must be the same rows in the same order"
        )
    return groups


def unit(x: Array, name: str = "vectors", first: int = 0) -> Array:
    """Scale rows to length 1.

    Parameters
    ----------
    x : array of shape (rows, dimensions) or (rows, vectors, dimensions)
        Embeddings: one vector per row, or several.
    name : str
        What they are called in error messages.
    first : int
        Number of the first row, where `x` is a part of something larger.

    Returns
    -------
    array of the same shape
        Unit vectors: `x` itself, not a copy, if its rows have length 1 already.

    Raises
    ------
    InputError
        A row is zero, NaN or infinite.

    Examples
    --------
    >>> unit([[3.0, 4.0]])
    array([[0.6, 0.8]])
    """
    if getattr(x, "ndim", 2) == 3:
        return unit(x.reshape(-1, x.shape[-1]), name, first).reshape(x.shape)
    x = matrix(x, name, "rows", "dimensions", first)
    xp = namespace(x)
    length = xp.sqrt(xp.einsum("nd,nd->n", x, x))
    if not (xp.isfinite(length) & (length > 0)).all():
        # squares may overflow or underflow where the values themselves do not
        largest = xp.amax(abs(x), 1)
        if not (largest > 0).all():
            row = first + int(xp.argmin(largest))
            raise InputError(
                f"{name} contains {int((largest == 0).sum())} zero vectors, the first at row "
                f"{row}: a zero vector has no direction; remove those rows"
            )
        x = x / largest[:, None]
        length = xp.sqrt(xp.einsum("nd,nd->n", x, x))
    # unit vectors already: a copy would double the memory that an audit needs for its images
    if not is_torch(x) and (abs(length - 1) <= 8 * np.finfo(x.dtype).eps).all():
        return x
    return x / length[:, None]


def similarities(queries: Array, items: Array) -> Array:
    """Cosines of unit vectors; of a side with several vectors per row, the closest one counts.

    Parameters
    ----------
    queries, items : array of shape (rows, dimensions) or (rows, vectors, dimensions)
        Unit vectors; only one of the two may have several per row.

    Returns
    -------
    array of shape (queries, items)
        Cosines, or the largest of several.

    Raises
    ------
    InputError
        Both have several vectors per row: no similarity of theirs is defined.

    Examples
    --------
    >>> similarities(np.array([[1.0, 0.0]]), np.array([[[0.6, 0.8], [0.8, 0.6]]]))
    array([[0.8]])
    """
    if queries.ndim == items.ndim == 3:
        raise InputError("both sides have several vectors per row: no similarity is defined")
    if items.ndim == 3:
        flat_items = items.reshape(-1, items.shape[-1])
        cosines = (queries @ flat_items.T).reshape(len(queries), *items.shape[:2])
        return namespace(cosines).amax(cosines, -1)
    if queries.ndim == 3:
        return similarities(items, queries).T
    return queries @ items.T
