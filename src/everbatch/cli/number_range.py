"""Numbers within limits, as flags take them."""

from math import isnan
from typing import Any

import click


class NumberRange(click.FloatRange):
    """A FloatRange that refuses "nan" too, which is neither below a limit nor above one."""

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        number: float = super().convert(value, param, ctx)
        if isnan(number):
            self.fail(f"{value} is not in the range {self._describe_range()}.", param, ctx)
        return number
