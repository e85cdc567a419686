"""One look for every figure of the report."""

from __future__ import annotations

import plotly.graph_objects as go

# Colour-blind safe (Okabe-Ito), in the order in which a figure should use them.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")


def figure(title: str, x: str, y: str) -> go.Figure:
    """An empty figure in the report's look; ``x`` and ``y`` name quantity and unit ("memory, MB")."""
    fig = go.Figure()
    fig.update_layout(
        template="plotly_white",
        title={"text": title, "x": 0.0, "xanchor": "left"},
        colorway=COLOURS,
        font={"family": "system-ui, sans-serif", "size": 14},
        margin={"l": 70, "r": 20, "t": 60, "b": 60},
        legend={"orientation": "h", "yanchor": "bottom", "y": 1.0, "xanchor": "right", "x": 1.0},
        height=420,
    )
    fig.update_xaxes(title_text=x)
    fig.update_yaxes(title_text=y)
    return fig
