"""Pages: one self-contained HTML file each, from the templates beside this file."""

from __future__ import annotations

from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from profiles.quantities import duration, number
from tenbin import text


def write(template: str, *, interactive: bool = False, **values: Any) -> str:
    """Write a page; ``interactive``: with what enlarges its pictures on demand, 2 MB."""
    environment = Environment(
        loader=PackageLoader("tenbin.report", "."),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(
        number=number,
        limits=text.limits,
        bounded=text.bounded,
        readable=text.readable,
        value=text.value_with_unit,
        interval=text.interval,
        duration=duration,
    )
    return environment.get_template(template).render(
        css=_beside("picture.css") + _beside("look.css"),
        library=_packed_library() if interactive else "",
        zoom=_beside("zoom.js") if interactive else "",
        **values,
    )


def _beside(name: str) -> Markup:
    return Markup(files("tenbin.report").joinpath(name).read_text(encoding="utf-8"))


def _packed_library() -> str:
    import gzip
    from base64 import b64encode

    from plotly.offline import get_plotlyjs

    return b64encode(gzip.compress(get_plotlyjs().encode(), mtime=0)).decode()
