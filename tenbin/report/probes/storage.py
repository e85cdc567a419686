"""Pictures of storage: MB/s of large blocks, and latencies of small ones, for each folder."""

from __future__ import annotations

import pandas as pd

from profiles.fits.storage import SEQUENTIAL, SMALL, completed
from profiles.records import Model
from tenbin.report.pictures import COLOURS, Figure, beside, draw_dots, draw_fitted, figure

EXPLANATION = (
    "Files are written and read past the page cache (direct I/O), one operation at a time, in a file that "
    "was written before with data that cannot be compressed. The first picture shows large blocks of 4 MiB "
    "in a row: the speed of one program that writes or reads a large file. The second shows small blocks "
    "of 4 KiB, on a logarithmic scale: the time of one operation at a random place, and of a write that "
    "ends with fsync, as databases and journals do. Left, the median operation (p50); right, the time that "
    "one in a hundred exceeds (p99). Every dot is one batch; diamond and bar are the median over the "
    "batches and its 95 % interval."
)

_WORDS = {
    "write": "sequential write",
    "read": "sequential read",
    "random_read": "random read",
    "random_write": "random write",
    "fsync": "write with fsync",
}
_WIDTH = 0.8  # of the place of one kind on the axis


def figures(samples: pd.DataFrame, models: list[Model]) -> list[Figure]:
    """Draw speeds and latencies, as far as there are samples."""
    rows = completed(samples)
    if rows.empty:
        return []
    suffix = " (emulated)" if rows["emulated"].any() else ""
    drawn = [
        _figure(rows, models, SEQUENTIAL, title=f"Large blocks{suffix}", y="MB/s", columns=("mbs",)),
        _figure(
            rows,
            models,
            SMALL,
            title=f"Small blocks: time of one operation{suffix}",
            y="time, s",
            columns=("p50_s", "p99_s"),
        ),
    ]
    return [fig for fig in drawn if fig is not None]


def _figure(
    rows: pd.DataFrame,
    models: list[Model],
    kinds: tuple[str, ...],
    *,
    title: str,
    y: str,
    columns: tuple[str, ...],
) -> Figure | None:
    """Draw a cloud for each kind, folder and column, side by side, in order of time."""
    rows = rows[rows["kind"].isin(kinds)]
    if rows.empty:
        return None
    fig = figure(title, "", y)
    folders = list(rows["storage"].unique())
    step = _WIDTH / (len(folders) * len(columns))
    for i, folder in enumerate(folders):
        colour = COLOURS[i % len(COLOURS)]
        at, fitted = [], []
        for j, column in enumerate(columns):
            for place, kind in enumerate(kinds):
                centre = place - _WIDTH / 2 + step * (i * len(columns) + j + 0.5)
                group = rows[(rows["storage"] == folder) & (rows["kind"] == kind)].dropna(subset=[column])
                x = beside(centre, 0.3 * step, len(group))
                draw_dots(fig, x, group[column], name=str(folder), colour=colour)
                model = _model(models, f"storage_{kind}_{column}", str(folder))
                if model is not None:
                    at.append(centre)
                    fitted.append(model)
        draw_fitted(fig, at, fitted, name=str(folder), colour=colour)
    fig.update_xaxes(
        tickvals=list(range(len(kinds))),
        ticktext=[_WORDS[kind] + ("<br>p50, p99" if len(columns) > 1 else "") for kind in kinds],
        range=[-0.6, len(kinds) - 0.4],
    )
    fig.update_yaxes(type="log") if len(columns) > 1 else fig.update_yaxes(rangemode="tozero")
    return fig


def _model(models: list[Model], quantity: str, folder: str) -> Model | None:
    """Find the model of a quantity and a folder."""
    return next((m for m in models if m.quantity == quantity and m.labels.get("storage") == folder), None)
