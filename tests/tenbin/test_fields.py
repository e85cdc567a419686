"""The declarations of a job's fields, and the JobSpec that has the same fields with their bounds."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

import pytest
from pydantic import BaseModel, ValidationError

from scheduler.jobs.specs import JobSpec
from tenbin.fields import OPTIONS, TYPES

NEEDED = {"command": ("x",), "folder": "/", "retries": 1}


def plain(hint: Any) -> Any:
    """Take bounds off a type, and say by what JSON brings it."""
    arguments = get_args(hint)
    match get_origin(hint):
        case origin if origin is Annotated:
            return plain(arguments[0])
        case origin if origin in (UnionType, Union):
            return frozenset(map(plain, arguments))
        case origin if origin in (Sequence, Mapping, dict, tuple):
            kind = dict if origin in (Mapping, dict) else tuple
            return (kind, *(plain(each) for each in arguments if each is not Ellipsis))
        case origin if origin is Literal:
            return arguments
    return (dict, str, Any) if isinstance(hint, type) and issubclass(hint, BaseModel) else hint


def test_every_field_of_a_job_is_declared_with_its_type() -> None:
    fields = {name: info for name, info in JobSpec.model_fields.items() if name not in ("command", "slurm")}
    assert TYPES.keys() == fields.keys()
    for name, info in fields.items():
        assert plain(TYPES[name]) == plain(info.annotation), name


@pytest.mark.parametrize("name", OPTIONS)
def test_the_default_of_an_option_is_that_of_the_field(name: str) -> None:
    option = OPTIONS[name]
    default = option.default
    if option.otherwise and name != "chdir":
        default = option.kind(option.otherwise)
    if default is None:
        return
    spec = JobSpec.model_validate(NEEDED | option.values(default))
    for field in option.fields:
        assert getattr(spec, field) == JobSpec.model_fields[field].get_default(call_default_factory=True)


@pytest.mark.parametrize("name", [name for name, option in OPTIONS.items() if option.least is not None])
def test_the_bounds_of_an_option_are_those_of_the_field(name: str) -> None:
    option = OPTIONS[name]
    for bound, beyond in ((option.least, -1), (option.most, 1)):
        if bound is not None:
            JobSpec.model_validate(NEEDED | option.values(bound))
            with pytest.raises(ValidationError):
                JobSpec.model_validate(NEEDED | option.values(bound + beyond))


def test_a_client_knows_the_fields_whatever_is_called_scheduler_beside_the_program(tmp_path: Path) -> None:
    """A user's program may have modules of these names; and it waits for the imports."""
    for name in ("scheduler", "profiles", "agent", "probes"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('not this')")
    program = """
import sys, tenbin
try:
    tenbin.submit(["x"], core=1)
except tenbin.UnknownField as error:
    print(error)
tenbin.Executor
print(*sys.modules)
"""
    (tmp_path / "program.py").write_text(program)
    done = subprocess.run(
        [sys.executable, "program.py"], cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0 and "did you mean cores" in done.stdout, done.stderr
    assert not {"pydantic", "typer", "numpy"} & set(done.stdout.split())
