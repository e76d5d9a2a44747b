"""What is said of the machine."""

from __future__ import annotations

import pytest

from nf_resnets.machine import small_pages


@pytest.mark.parametrize(
    ("setting", "tunables", "is_said"),
    [
        ("always [madvise] never", "", True),
        ("[always] madvise never", "", False),
        ("always [madvise] never", "glibc.malloc.hugetlb=1", False),
        (None, "", False),
    ],
)
def test_huge_pages_are_advised_where_they_must_be_asked_for(
    monkeypatch, tmp_path, setting, tunables, is_said
):
    monkeypatch.setenv("GLIBC_TUNABLES", tunables)
    monkeypatch.setattr("platform.libc_ver", lambda: ("glibc", "2.36"))
    path = tmp_path / "enabled"
    if setting:
        path.write_text(setting)
    assert bool(small_pages(str(path))) == is_said
