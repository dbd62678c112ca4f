"""Reads a CycloneDX file, and fails if a package has no licence or one that may not be shipped with ours."""

import json
import re
import sys
from pathlib import Path
from typing import Any

REFUSED = re.compile(r"\b(?:A?GPL|SSPL|BUSL|Commons Clause)", re.IGNORECASE)
"""Licences whose terms would reach what is distributed together with them. The LGPL does not."""
STATED = {"protobuf": "BSD-3-Clause"}
"""Packages that name their licence where CycloneDX does not look: in the old field `License`, in words of their own."""
LESSER = re.compile(r"\bLGPL|Lesser General Public", re.IGNORECASE)


def licence_of(component: dict[str, Any]) -> str:
    """The licence of a component as text, or "" if it has none."""
    found = []
    for each in component.get("licenses", []):
        licence = each.get("license", {})
        found.append(each.get("expression") or licence.get("id") or licence.get("name") or "")
    return " AND ".join(filter(None, found))


def problems_in(sbom: dict[str, Any]) -> list[str]:
    """Every component whose licence is missing or refused."""
    found = []
    for component in sbom.get("components", []):
        licence = licence_of(component) or STATED.get(component["name"], "")
        if not licence:
            found.append(f"{component['name']} {component.get('version', '')}: no licence is stated")
        elif REFUSED.search(licence) and not LESSER.search(licence):
            found.append(f"{component['name']} {component.get('version', '')}: {licence}")
    return found


def main(path: str) -> int:
    """Print the problems of a file, and return the exit code."""
    sbom = json.loads(Path(path).read_text())
    found = problems_in(sbom)
    for problem in found:
        print(problem)
    print(f"{len(sbom.get('components', []))} packages, {len(found)} with a licence to look at")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
