"""A call that must raise, in one line."""

from collections.abc import Callable
from typing import Any

import pytest


def fails(error: type[BaseException], message: str, call: Callable[..., Any], *arguments: Any, **options: Any) -> None:
    """Assert that the call raises that error, with a message in which the pattern is found."""
    with pytest.raises(error, match=message):
        call(*arguments, **options)
