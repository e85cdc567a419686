"""Amounts as people read them."""


def memory_text(mb: float) -> str:
    """``"20 GB"``, ``"500 MB"``: for people."""
    return f"{mb / 1e3:.4g} GB" if mb >= 1e3 else f"{mb:.4g} MB"
