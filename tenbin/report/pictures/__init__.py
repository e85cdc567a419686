"""Pictures as plain SVG in HTML: a figure of plotly in, a part of a page out that needs no script."""
