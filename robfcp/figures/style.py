"""One style for all figures: colours, axes of their own, files that are the same every time."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import wraps
from io import BytesIO
from itertools import cycle
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

import numpy as np
from numpy.typing import NDArray

from robfcp._util.files import write_atomically
from robfcp.errors import RobfcpError

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

P = ParamSpec("P")
T = TypeVar("T")

# Okabe and Ito's colours, told apart with any kind of colour vision.
BLUE, VERMILION, GREEN, ORANGE = "#0072B2", "#D55E00", "#009E73", "#E69F00"
PURPLE, SKY, GREY = "#CC79A7", "#56B4E9", "#5B6673"
CYCLE = (BLUE, VERMILION, GREEN, ORANGE, PURPLE, SKY, GREY)
MARKERS = ("o", "^", "s", "D", "v", "P", "X")
DEFENCES = {
    "none": (VERMILION, "^"),
    "rob-fcp": (ORANGE, "s"),
    "band": (GREY, "D"),
    "consensus": (BLUE, "o"),
}
STYLE: dict[Any, Any] = {
    "font.family": "DejaVu Sans",
    "font.size": 10,
    "axes.titlesize": 11,
    "axes.titleweight": "bold",
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": GREY,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": "#E3E5E8",
    "lines.linewidth": 1.8,
    "legend.frameon": False,
    "svg.hashsalt": "robfcp",
}
FORMATS = ("png", "svg", "pdf")


@contextmanager
def style() -> Iterator[None]:
    """The one style of all figures, for the length of a `with` block."""
    try:
        import matplotlib
        from cycler import cycler
    except ImportError:
        raise RobfcpError(
            "figures: matplotlib is not installed; pip install 'robfcp[figures]'"
        ) from None

    with matplotlib.rc_context({**STYLE, "axes.prop_cycle": cycler(color=CYCLE)}):
        yield


def styled(function: Callable[P, T]) -> Callable[P, T]:
    """The same drawing function, drawing in the one style."""

    @wraps(function)
    def drawing(*args: P.args, **kwargs: P.kwargs) -> T:
        with style():
            return function(*args, **kwargs)

    return drawing


@styled
def new_axes(columns: int = 1, height: float = 3.6) -> NDArray[Any]:
    """(columns,) axes side by side on a new figure, apart from pyplot's."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.2 * columns, height), layout="constrained")
    FigureCanvasAgg(figure)
    return np.asarray(figure.subplots(1, columns, squeeze=False)[0])


@styled
def save(drawn: Axes | Figure | NDArray[Any], path: str | os.PathLike[str]) -> None:
    """Write the figure whole or not at all, the same bytes for the same figure.

    Parameters
    ----------
    drawn
        A figure, its axes, or an array of them.
    path
        A .png, .svg or .pdf file.

    Examples
    --------
    >>> from robfcp.figures import plot_lines, save
    >>> save(plot_lines([0, 1], {"band": [0.9, 0.9]}), "lines.svg")
    """
    suffix = Path(path).suffix.lower().lstrip(".")
    if suffix not in FORMATS:
        raise RobfcpError(f"{path}: cannot draw .{suffix}; use .png, .svg or .pdf")
    first = drawn.flat[0] if isinstance(drawn, np.ndarray) else drawn
    figure: Any = first if hasattr(first, "savefig") else first.figure
    undated = {"png": {"Software": None}, "svg": {"Date": None}, "pdf": {"CreationDate": None}}
    buffer = BytesIO()
    figure.savefig(buffer, format=suffix, dpi=150, metadata=undated[suffix])
    write_atomically(path, buffer.getvalue())


def looks(names: Iterable[str]) -> list[tuple[str, tuple[str, str]]]:
    """Colour and mark for each name: defences keep theirs, others take the next free ones."""
    wanted = list(names)
    taken = {DEFENCES[name][0] for name in wanted if name in DEFENCES}
    free = cycle([look for look in zip(CYCLE, MARKERS, strict=True) if look[0] not in taken])
    return [(name, DEFENCES[name] if name in DEFENCES else next(free)) for name in wanted]
