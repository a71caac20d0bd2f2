# SPDX-License-Identifier: BSD-3-Clause
"""README and docs/propagation.md say what is so: sessions give what they show, commands exist."""

import doctest
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = ["README.md", "docs/propagation.md"]


@pytest.mark.parametrize("page", PAGES)
def test_the_session_gives_what_it_shows(page):
    text = (ROOT / page).read_text("utf-8")
    session = "\n".join(re.findall(r"```python\n(>>>.*?)```", text, re.S))
    test = doctest.DocTestParser().get_doctest(session, {"__name__": page}, page, page, 0)
    assert len(test.examples) >= 4
    assert doctest.DocTestRunner().run(test).failed == 0


@pytest.mark.parametrize("page", PAGES)
def test_its_commands_and_files_exist(page):
    text = (ROOT / page).read_text("utf-8")
    for linked in re.findall(r"\]\((?!http)([^)]+)\)", text):
        assert ((ROOT / page).parent / linked).exists(), linked
    pytest.importorskip("typer")
    from initcore.cli.app import app

    known = {command.callback.__name__ for command in app.registered_commands}
    named = set(
        re.findall(r"initcore ([a-z]+)", " ".join(re.findall(r"[`$] ?(initcore [^`\n]*)", text)))
    )
    assert named
    assert named <= known
