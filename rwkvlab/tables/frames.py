"""Two things pandas does and its type annotations do not say."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, cast

import pandas as pd


def rows_of(frame: pd.DataFrame) -> Iterator[Any]:
    """The rows as named tuples; columns are attributes."""
    return iter(frame.itertuples())


def where(frame: pd.DataFrame, mask: Any) -> pd.DataFrame:
    """The rows of `frame` for which `mask` holds."""
    return cast(pd.DataFrame, frame.loc[mask])
