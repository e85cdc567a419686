"""A quantity that rises in a straight line up to a knee and is flat from there: speed under a power cap.

``y = speed_flat - slope_per_w * max(knee_w - x, 0)`` is continuous, and the knee is fitted too. This is
eq. 4.5 of Huang et al. 2014, ``s(p) = (p - p_min) m + 1`` below the knee, there relative to the speed at the
lowest cap p_min; coefficient ``m`` is the slope in that normalisation, the others are in the unit of ``y``.

Least squares for every knee on a grid, then around the best one; outliers get Huber's weights. Intervals
are of profile likelihood (F-threshold on the residual sum of squares), which stays honest where the knee is
near an end of the range: then it is bounded on one side only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from ..records import Coefficient, Model
from ..stats import finite
from . import Prediction, t_quantile
from .constant import at_best, judged, largest_gap

Array = NDArray[np.float64]

FEWEST = 8  # observations
FEWEST_SETTINGS = 4  # different x
HUBER = 2.5  # standard deviations beyond which an observation counts less
GRID = 400
SMALL = 0.05  # of the largest y: below that a gap is not judged by its share of y itself


@dataclass(frozen=True)
class _Lines:
    """Best lines for many knees; arrays over the knees."""

    knee: Array
    slope: Array
    flat: Array
    rss: Array
    u_mean: Array  # weighted mean of max(knee - x, 0)
    u_spread: Array  # weighted sum of squares of its deviations
    weight: float


def fit(
    x: Sequence[float],
    y: Sequence[float],
    *,
    probe: str,
    quantity: str,
    x_name: str = "cap_w",
    labels: dict[str, str] | None = None,
    emulated: bool = False,
    note: str = "",
) -> Model:
    """Fit the knee model of ``y`` over ``x``.

    Raises:
        ValueError: fewer than 8 observations, or fewer than 4 different x.
    """
    caps, values = finite(x, y)
    if len(caps) < FEWEST or len(np.unique(caps)) < FEWEST_SETTINGS:
        raise ValueError(
            f"{quantity}: {len(caps)} observations at {len(np.unique(caps))} settings are too few for a knee"
        )
    weights = _robust_weights(caps, values)
    lines, best, limit = _profile(caps, values, weights)
    knee, slope, flat = (float(a[best]) for a in (lines.knee, lines.slope, lines.flat))
    freedom = len(caps) - 3
    variance = float(lines.rss[best]) / freedom
    coefficients = _coefficients(lines, best, limit, caps)
    curve = flat - slope * np.maximum(knee - caps, 0.0)
    scale = np.maximum(np.abs(curve), SMALL * np.abs(values).max())
    if gap := largest_gap(caps, (values - curve) / scale):
        coefficients = at_best(coefficients, gap.quality)
        note = "; ".join(filter(None, (note, f"the median at {gap.at:g} is {gap.percent} off the curve")))
    spread = float(np.sum(weights * (values - np.average(values, weights=weights)) ** 2))
    return Model(
        probe=probe,
        quantity=quantity,
        form="knee",
        labels=labels or {},
        x=x_name,
        x_min=float(caps.min()),
        x_max=float(caps.max()),
        method="continuous piecewise-linear least squares (Huber), profile-likelihood interval",
        coefficients=coefficients,
        covariance=_covariance(caps, weights, (knee, slope, flat), variance),
        residual_sd=float(np.sqrt(variance)),
        r2=1.0 - float(lines.rss[best]) / spread if spread > 0 else None,
        emulated=emulated,
        note=note,
    )


def predict(model: Model, x: float = 0.0) -> Prediction:
    """Predict the value at ``x`` with the interval of one new observation."""
    knee, slope, flat = (model[name].value for name in ("knee_w", "slope_per_w", "speed_flat"))
    below = max(knee - x, 0.0)
    value = flat - slope * below
    variance = (model.residual_sd or 0.0) ** 2
    if model.covariance is not None:
        gradient = np.array([-slope if below else 0.0, -below, 1.0])
        variance += float(gradient @ np.array(model.covariance)[:3, :3] @ gradient)
    half = 1.96 * float(np.sqrt(variance))
    return Prediction(value, value - half, value + half)


def _lines(x: Array, y: Array, w: Array, knees: Array) -> _Lines:
    """Fit ``y = flat - slope * max(knee - x, 0)`` for each knee by weighted least squares, slope >= 0."""
    u = np.maximum(knees[:, None] - x[None, :], 0.0)
    total = float(w.sum())
    u_mean = u @ w / total
    y_mean = float(y @ w) / total
    u_spread = ((u - u_mean[:, None]) ** 2) @ w
    slope = np.maximum(-((u - u_mean[:, None]) * (y - y_mean)) @ w / np.maximum(u_spread, 1e-300), 0.0)
    flat = y_mean + slope * u_mean
    rss = ((y - flat[:, None] + slope[:, None] * u) ** 2) @ w
    return _Lines(knee=knees, slope=slope, flat=flat, rss=rss, u_mean=u_mean, u_spread=u_spread, weight=total)


def _first_grid(x: Array) -> Array:
    low, high = float(x.min()), float(x.max())
    return np.linspace(low + (high - low) / GRID, high, GRID)


def _robust_weights(x: Array, y: Array) -> Array:
    """Compute Huber's weights about the best knee model, by iteration."""
    weights = np.ones_like(y)
    grid = _first_grid(x)
    for _ in range(10):
        lines = _lines(x, y, weights, grid)
        i = int(np.argmin(lines.rss))
        residuals = np.abs(y - lines.flat[i] + lines.slope[i] * np.maximum(grid[i] - x, 0.0))
        scale = float(np.median(residuals)) / 0.6745 * np.sqrt(len(y) / (len(y) - 3))
        if scale <= 1e-12 * float(np.abs(y).max()):
            break
        weights = np.minimum(1.0, HUBER * scale / np.maximum(residuals, 1e-300))
    return weights


def _profile(x: Array, y: Array, w: Array) -> tuple[_Lines, int, float]:
    """Fit lines on a grid around the best knee; also its index, and the residual sum that bounds 95 %."""
    grid = _first_grid(x)
    low, high = float(grid[0]), float(grid[-1])
    limit = 0.0
    for _ in range(3):
        lines = _lines(x, y, w, grid)
        best = int(np.argmin(lines.rss))
        freedom = len(x) - 3
        limit = float(lines.rss[best]) * (1.0 + t_quantile(0.975, freedom) ** 2 / freedom) + 1e-18
        accepted = np.flatnonzero(lines.rss <= limit)
        step = float(grid[1] - grid[0])
        grid = np.linspace(
            max(low, float(grid[accepted[0]]) - step), min(high, float(grid[accepted[-1]]) + step), GRID
        )
    return lines, best, limit


def _coefficients(lines: _Lines, best: int, limit: float, caps: Array) -> tuple[Coefficient, ...]:
    """Make the best values with their intervals, and notes on what the samples cannot tell."""
    lowest, highest = float(caps.min()), float(caps.max())
    knee, slope, flat = (float(a[best]) for a in (lines.knee, lines.slope, lines.flat))
    ranges = _ranges(lines, limit, lowest)
    first, last = ranges["knee_w"]
    low = None if first <= lowest + (highest - lowest) / GRID * 1.001 else first
    high = None if last >= highest * (1 - 1e-9) else last
    notes: dict[str, str] = {}
    if ranges["slope_per_w"][0] == 0.0:
        low, high = None, None
        notes = {"knee_w": "no x in the range changes the speed", "slope_per_w": "not different from 0"}
    elif high is None:
        notes = {
            "knee_w": f"no knee seen: knee >= {first:.1f}",
            "speed_flat": f"still rises at {highest:.1f}",
        }
    flat_high = None if "speed_flat" in notes else ranges["speed_flat"][1]
    at_lowest = max(flat - slope * (knee - lowest), 1e-300)
    m_high = ranges["m"][1] if np.isfinite(ranges["m"][1]) else None  # the speed at the lowest x may be 0

    def make(name: str, value: float, unit: str, bounds: tuple[float | None, float | None]) -> Coefficient:
        return judged(name, value, unit, bounds, n=len(caps), note=notes.get(name, ""))

    return (
        make("knee_w", knee, "W", (low, high)),
        make("slope_per_w", slope, "1/W", ranges["slope_per_w"]),
        make("speed_flat", flat, "1", (ranges["speed_flat"][0], flat_high)),
        make("m", slope / at_lowest, "1/W", (ranges["m"][0], m_high)),
    )


def _ranges(lines: _Lines, limit: float, lowest: float) -> dict[str, tuple[float, float]]:
    """Find the smallest and largest value of each coefficient over all parameters that the samples admit.

    For each knee the parameters are an ellipse in (slope, mean level), here followed round its edge.
    """
    ok = lines.rss <= limit
    knees, u_mean = lines.knee[ok, None], lines.u_mean[ok, None]
    u_spread = np.maximum(lines.u_spread[ok, None], 1e-300)
    angle = np.linspace(0.0, 2 * np.pi, 73)[None, :]
    radius = np.sqrt(limit - lines.rss[ok])[:, None]
    slopes = np.maximum(lines.slope[ok, None] + radius * np.cos(angle) / np.sqrt(u_spread), 0.0)
    levels = lines.flat[ok, None] - lines.slope[ok, None] * u_mean
    flats = levels + radius * np.sin(angle) / np.sqrt(lines.weight) + slopes * u_mean
    at_lowest = flats - slopes * (knees - lowest)
    paper = np.where(at_lowest > 0, slopes / np.where(at_lowest > 0, at_lowest, 1.0), np.inf)
    return {
        name: (float(np.min(values)), float(np.max(values)))
        for name, values in {"knee_w": knees, "slope_per_w": slopes, "speed_flat": flats, "m": paper}.items()
    }


def _covariance(
    x: Array, w: Array, best: tuple[float, float, float], variance: float
) -> tuple[tuple[float, ...], ...] | None:
    """Compute the covariance of (knee, slope, flat, m), linearised at the best values; None if singular."""
    knee, slope, flat = best
    below = np.maximum(knee - x, 0.0)
    jacobian = np.stack([np.where(below > 0, -slope, 0.0), -below, np.ones_like(x)], axis=1)
    information = jacobian.T @ (w[:, None] * jacobian)
    if np.linalg.cond(information) > 1e15:
        return None
    at_lowest = flat - slope * (knee - float(x.min()))
    to_all = np.vstack([np.eye(3), np.array([slope**2, flat, -slope]) / max(at_lowest, 1e-300) ** 2])
    full = to_all @ (np.linalg.inv(information) * variance) @ to_all.T
    return tuple(tuple(float(v) for v in row) for row in full)
