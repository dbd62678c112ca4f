"""The face of the testing kit: every public name is there, and stays what it is."""

import subprocess
import sys

import conduit_py.testing


def test_every_public_name_is_what_its_module_defines() -> None:
    # Asked for twice: importing a submodule must not put the module in the place of a name.
    for _ in range(2):
        for name in conduit_py.testing.__all__:
            assert getattr(conduit_py.testing, name).__module__.startswith("conduit_py.testing."), name


def test_the_list_of_names_is_complete() -> None:
    homes = [name for names in conduit_py.testing._HOME.values() for name in names]

    assert sorted(homes) == sorted(conduit_py.testing.__all__)


def test_importing_the_package_imports_nothing_heavy() -> None:
    code = "import conduit_py.testing, sys; print({'trio', 'pydantic', 'msgspec', 'hypothesis'} & set(sys.modules))"

    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "set()\n"
