"""Pictures on disk."""

from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, cast

from indexes.files import atomic_file

if TYPE_CHECKING:
    from io import TextIOWrapper

    from matplotlib.figure import Figure


def save(figure: "Figure", path: Path) -> None:
    """Write a figure as PNG, whole or not at all."""
    content = BytesIO()
    figure.savefig(content, dpi=150, bbox_inches="tight", format="png")
    with atomic_file(path) as stream:
        cast("TextIOWrapper", stream).buffer.write(content.getvalue())
