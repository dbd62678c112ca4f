"""The folder that every test of bad input has for itself."""

from pathlib import Path

import pytest
from command_folder import Folder


@pytest.fixture
def folder(tmp_path: Path) -> Folder:
    return Folder(tmp_path)


# Lines that cannot be read.
