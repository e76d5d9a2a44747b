"""The two kinds of database that hold a ledger."""

from __future__ import annotations

import pytest

from tests.sweep import postgres


@pytest.fixture(scope="session")
def postgresql():
    """The URL of a server; the test is skipped where there is none."""
    try:
        with postgres.server() as url:
            yield url
    except postgres.NoServer as reason:
        pytest.skip(str(reason))


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)])
def where(request, tmp_path):
    """A place for a ledger, where nothing is yet."""
    if request.param == "sqlite":
        return str(tmp_path / "ledger.db")
    url = request.getfixturevalue("postgresql")
    postgres.clear(url)
    return url
