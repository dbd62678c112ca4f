"""Adds what the web page is built of to a CycloneDX file and a table, and fails if a licence is missing or refused."""

import json
import re
import sys
from pathlib import Path
from typing import Any

PAGE = Path(__file__).parents[2] / "conduit_py" / "server" / "page" / "licences.txt"
"""The packages of npm that are in the script of the page, with the texts of their licences."""
TEXTS = {"Permission is hereby granted, free of charge": "MIT", "Apache License": "Apache-2.0"}
"""What is in the text of a licence, and nowhere else."""
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


def page_components(text: str) -> list[dict[str, Any]]:
    """The packages of the page as components of CycloneDX."""
    _, *parts = re.split(r"^(\S+) (\S+)\n-{72}$", text, flags=re.MULTILINE)
    found = []
    for name, version, licence in zip(parts[::3], parts[1::3], parts[2::3], strict=True):
        known = [{"license": {"id": id}} for words, id in TEXTS.items() if words in licence]
        purl = f"pkg:npm/{name.replace('@', '%40')}@{version}"
        found.append(
            {"type": "library", "bom-ref": purl, "name": name, "version": version, "purl": purl, "licenses": known}
        )
    return found


def main(path: str, table: str) -> int:
    """Add the packages of the page to both files, print the problems, and return the exit code."""
    sbom, page = json.loads(Path(path).read_text()), page_components(PAGE.read_text())
    sbom["components"] += page
    Path(path).write_text(json.dumps(sbom, indent=2) + "\n")
    with Path(table).open("a") as file:
        file.writelines(f"| {each['name']} | {each['version']} | {licence_of(each)} |\n" for each in page)
    found = problems_in(sbom)
    for problem in found:
        print(problem)
    print(f"{len(sbom.get('components', []))} packages, {len(found)} with a licence to look at")
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
