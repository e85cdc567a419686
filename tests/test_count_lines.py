"""What counts as a real line, on a module counted by hand."""

from tests.count_lines import Count, count

MODULE = '''"""Head
of two lines."""

import os
from a import (
    b,
)


# A remark.
def f() -> str:
    """A docstring."""
    text = """one

    two"""  # real, also the blank line in it
    return text
'''


def test_a_module_counted_by_hand() -> None:
    assert count(MODULE) == Count(modules=1, all=16, real=5, imports=4)
