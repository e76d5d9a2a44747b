"""The real data sets in ``../shared``, for the tests that want them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[1]
SHARED = Path(os.environ.get("NF_RESNETS_SHARED_DATA", REPOSITORY.parent / "shared" / "data"))
needs_shared_data = pytest.mark.skipif(
    not (SHARED / "make_tfds.py").exists(),
    reason=f"{SHARED}/make_tfds.py is not there; NF_RESNETS_SHARED_DATA names its folder",
)


def make_shared(data_dir, name, file_format="array_record"):
    """Writes a data set as one of tensorflow-datasets; returns what ``--data-dir`` takes."""
    subprocess.run(
        [sys.executable, SHARED / "make_tfds.py", data_dir, name, "--format", file_format],
        check=True,
        capture_output=True,
    )
    return data_dir / file_format
