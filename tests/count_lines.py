"""Count the lines of product and tests: ``python tests/count_lines.py [FOLDER...]``.

A real line is neither blank nor a comment, nor of a docstring or an import; a module has one at least.
"""

from __future__ import annotations

import ast
import io
import sys
import tokenize
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parent.parent
PRODUCT = ("agent", "probes", "profiles", "scheduler", "tenbin")
NO_CODE = {"COMMENT", "NL", "NEWLINE", "INDENT", "DEDENT", "ENDMARKER"}


@dataclass(frozen=True, slots=True)
class Count:
    """Lines of some modules: as they stand (``all``), of code (``real``) and of imports."""

    modules: int = 0
    all: int = 0
    real: int = 0
    imports: int = 0

    def __add__(self, other: Count) -> Count:
        return Count(
            self.modules + other.modules,
            self.all + other.all,
            self.real + other.real,
            self.imports + other.imports,
        )


def count(text: str) -> Count:
    """Count the lines of one module."""
    tokens = tokenize.generate_tokens(io.StringIO(text).readline)
    code = {
        line
        for token in tokens
        if tokenize.tok_name[token.type] not in NO_CODE
        for line in range(token.start[0], token.end[0] + 1)
    }
    docstrings, imports = set[int](), set[int]()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import | ast.ImportFrom):
            imports |= _lines(node)
        elif (
            isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
            and node.body
            and isinstance(node.body[0], ast.Expr)
            and isinstance(node.body[0].value, ast.Constant)
            and isinstance(node.body[0].value.value, str)
        ):
            docstrings |= _lines(node.body[0])
    real = len(code - docstrings - imports)
    return Count(int(real > 0), len(text.splitlines()), real, len(imports))


def of_folders(folders: Iterable[Path]) -> Count:
    """Count the modules in folders, however deep."""
    files = (file for folder in folders for file in sorted(folder.rglob("*.py")))
    return sum((count(file.read_text()) for file in files), Count())


def _lines(node: ast.stmt) -> set[int]:
    return set(range(node.lineno, (node.end_lineno or node.lineno) + 1))


def main(names: list[str]) -> None:
    """Print a row for each folder, for all of the product, and for the tests."""
    rows = {name: of_folders([ROOT / name]) for name in names or PRODUCT}
    if not names:
        rows |= {"product": sum(rows.values(), Count()), "tests": of_folders([ROOT / "tests"])}
    print(f"{'':20}{'modules':>9}{'lines':>9}{'real':>9}{'imports':>9}{'imports/real':>14}")
    for name, row in rows.items():
        ratio = row.imports / max(row.real, 1)
        print(f"{name:20}{row.modules:9,}{row.all:9,}{row.real:9,}{row.imports:9,}{ratio:14.3f}")


if __name__ == "__main__":
    main(sys.argv[1:])
