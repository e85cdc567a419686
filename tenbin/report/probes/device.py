"""Pictures of OpenCL devices: memory, arithmetic, copies from and to the host, launches."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from profiles.fits.device import speeds
from profiles.records import Model
from tenbin.report.pictures import COLOURS, Figure, beside, draw_dots, draw_fitted, figure

EXPLANATION = (
    "Each device runs kernels of tenbin, and the host checks every result. Memory: arrays far larger than "
    "the caches are read, written, and copied (a copy counts what it reads and what it writes). Arithmetic: "
    "multiply-adds in registers, eight of them at a time that do not wait for each other, in vectors of the "
    "width that is fastest on the device. Both are by the device's own clock, where the driver tells it. "
    "Copies: 64 MiB between host and device, from pinned memory (the driver's own, which the device reads "
    "by itself) and from pageable memory (any other), by the host's clock. A device that is the processor "
    "itself has its memory in common with the host: there a copy is one within memory. Launch: a kernel "
    "with next to no work; a program that waits for each kernel waits for the whole time, one that queues "
    "many waits less. Every dot is a batch; diamond and bar are the median and its 95 % interval."
)

Subject = tuple[str, dict[str, str], str]  # a quantity, its labels, and their word on the x axis
Tables = dict[str, pd.DataFrame]  # of each quantity

MEMORY: list[Subject] = [
    ("device_bandwidth_gbs", {"kernel": kind}, kind) for kind in ("read", "write", "copy")
]
ARITHMETIC: list[Subject] = [
    ("device_gflops", {"precision": kind}, kind) for kind in ("half", "single", "double")
]
COPIES: list[Subject] = [
    ("device_copy_gbs", {"direction": f"{way}_device", "memory": memory}, f"{way} device,<br>{memory}")
    for memory in ("pinned", "pageable")
    for way in ("to", "from")
]
LAUNCHES: list[Subject] = [
    ("device_queue_s", {}, "until it begins"),
    ("device_launch_s", {}, "until its end is known"),
]
WIDTH = 0.8  # of the place of a word on the x axis


def figures(samples: pd.DataFrame, models: list[Model]) -> list[Figure]:
    """Draw what the samples have of each device, side by side."""
    suffix = " (emulated)" if samples["emulated"].any() else ""
    pictures = (
        ("Memory of the devices", "GB/s", MEMORY),
        ("Arithmetic of the devices", "GFLOP/s", ARITHMETIC),
        ("Copies between host and device", "GB/s", COPIES),
        ("Launch of a kernel", "time, s", LAUNCHES),
    )
    devices = [str(device) for device in samples["device"].unique()]
    quantities = {quantity for _, _, subjects in pictures for quantity, _, _ in subjects}
    tables = {quantity: speeds(samples, quantity) for quantity in quantities}
    drawn = []
    for title, y, subjects in pictures:
        shown = [subject for subject in subjects if len(_observed(tables, subject))]
        if shown:
            drawn.append(fig := figure(f"{title}{suffix}", "", y))
            _draw(fig, tables, models, shown, devices=devices)
    return drawn


def _observed(tables: Tables, subject: Subject, device: str = "") -> pd.Series[float]:
    """Select the observations of a quantity and its labels, of one device or of all."""
    quantity, labels, _ = subject
    rows = tables[quantity]
    for name, value in (labels | ({"device": device} if device else {})).items():
        rows = rows[rows[name] == value]
    return rows["value"]


def _draw(
    fig: Figure, tables: Tables, models: list[Model], shown: Sequence[Subject], *, devices: Sequence[str]
) -> None:
    """Draw a cloud for each word and device, and over it the fitted median."""
    step = WIDTH / len(devices)
    for i, device in enumerate(devices):
        colour = COLOURS[i % len(COLOURS)]
        at, fitted = [], []
        for place, subject in enumerate(shown):
            centre = place - WIDTH / 2 + step * (i + 0.5)
            values = _observed(tables, subject, device)
            x = beside(centre, 0.3 * step, len(values))
            draw_dots(fig, x, values, name=device, colour=colour)
            labels = subject[1] | {"device": device}
            for model in (m for m in models if (m.quantity, m.labels) == (subject[0], labels)):
                at.append(centre)
                fitted.append(model)
        draw_fitted(fig, at, fitted, name=device, colour=colour)
    words = [word for _, _, word in shown]
    fig.update_xaxes(tickvals=list(range(len(shown))), ticktext=words, range=[-0.6, len(shown) - 0.4])
    fig.update_yaxes(rangemode="tozero")
