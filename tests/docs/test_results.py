"""Committed results are read only as they were committed."""

import pytest

from docs.machinery import results


@pytest.fixture
def rows(tmp_path, monkeypatch):
    path = tmp_path / "results" / "fig-laptop" / "rows.csv"
    path.parent.mkdir(parents=True)
    path.write_text("scheme,test_accuracy\nfixup,0.94\n")
    monkeypatch.setattr(results, "SUMS", tmp_path / "results" / "SHA256SUMS")
    results.write_sums()
    results._sums.cache_clear()
    yield path
    results._sums.cache_clear()


def test_a_flipped_bit_of_a_committed_file_is_refused(rows):
    assert results.read_committed(rows).endswith("0.94\n")
    whole = rows.read_bytes()
    for place in range(len(whole)):
        rows.write_bytes(whole[:place] + bytes([whole[place] ^ 4]) + whole[place + 1 :])
        with pytest.raises(ValueError, match=r"results/fig-laptop/rows\.csv is not what"):
            results.read_committed(rows)


def test_a_file_without_a_sum_is_refused(rows):
    other = rows.with_name("curves.csv")
    other.write_text("")
    with pytest.raises(ValueError, match=r"curves\.csv is not what"):
        results.read_committed(other)
