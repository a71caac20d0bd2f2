# SPDX-License-Identifier: BSD-3-Clause
"""The README says what is so: its session gives what it shows, its commands exist."""

import doctest
import re
from pathlib import Path

import pytest

README = Path(__file__).parent.parent / "README.md"


def test_the_session_gives_what_it_shows():
    text = "\n".join(re.findall(r"```python\n(>>>.*?)```", README.read_text("utf-8"), re.S))
    test = doctest.DocTestParser().get_doctest(text, {}, "README", str(README), 0)
    assert len(test.examples) >= 4
    assert doctest.DocTestRunner().run(test).failed == 0


def test_its_commands_and_files_exist():
    text = README.read_text("utf-8")
    for picture in re.findall(r"\]\((?!http)([^)]+)\)", text):
        assert (README.parent / picture).exists(), picture
    pytest.importorskip("typer")
    from initcore.cli.app import app

    known = {command.callback.__name__ for command in app.registered_commands}
    named = set(
        re.findall(r"initcore ([a-z]+)", " ".join(re.findall(r"[`$] ?(initcore [^`\n]*)", text)))
    )
    assert named
    assert named <= known
