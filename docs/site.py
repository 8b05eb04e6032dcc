"""The documentation as a site: `make site` writes it to build/site.

Its pages are docs/*.md, README and its neighbours, and what the code says of verbs and keys. A link that leads nowhere
ends the build.
"""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

from launcher.commands import VERBS, help, help_of

ROOT = Path(__file__).parent.parent
NAVIGATION = {
    "Start": {"amp-launcher": "index.md", "Coming from": "coming-from.md"},
    "Tasks": {
        "Your own script": "scripts.md",
        "Compare modes": "compare-and-report.md",
        "Slurm": "slurm.md",
        "SSH": "ssh.md",
        "Containers": "containers.md",
        "Shared machines": "shared-machines.md",
        "Python and notebooks": "python.md",
        "Hydra applications": "hydra.md",
        "Recipes": "recipes.md",
    },
    "Reference": {
        "Verbs": "verbs.md",
        "Keys": "keys.md",
        "Configuration": "configuration.md",
        "Precision": "precision.md",
        "The run folder": "run-folder.md",
        "Scripts tried": "scripts-tried.md",
    },
    "Project": {
        "Architecture": "architecture.md",
        "Security": "SECURITY.md",
        "Contributing": "CONTRIBUTING.md",
        "Changes": "CHANGELOG.md",
    },
}
_LINK = re.compile(r"(\]\()(?!https?:|#)([^)#\s]+)")


def write_pages(into: Path) -> None:
    """Write the site's pages, with links between them as they lie there."""
    pages = {path.name: path for path in (ROOT / "docs").glob("*.md")}
    pages |= {name: ROOT / name for name in ("SECURITY.md", "CONTRIBUTING.md", "CHANGELOG.md")}
    pages["index.md"] = ROOT / "README.md"
    names = {path.resolve(): name for name, path in pages.items()}
    for name, path in pages.items():
        (into / name).write_text(_relinked(path, names, into), "utf-8")
    (into / "verbs.md").write_text(verbs(), "utf-8")
    (into / "keys.md").write_text(keys(), "utf-8")


def _relinked(page: Path, names: dict[Path, str], into: Path) -> str:
    """The page's text, with links to pages by their names here, and the files that others lead to beside them."""

    def target(match: re.Match[str]) -> str:
        path = (page.parent / match[2]).resolve()
        if path not in names and path.is_file():  # a source file is shown as text
            shown = path.suffix in (".md", ".png")
            names[path] = str(path.relative_to(ROOT)).replace("/", "-") + ("" if shown else ".txt")
            shutil.copy(path, into / names[path])
        return match[1] + names.get(path, match[2])

    return _LINK.sub(target, page.read_text("utf-8"))


def verbs() -> str:
    """The page of all verbs: what each prints for --help."""
    blocks = ["# Verbs\n\nThe words of `run`, the default, are [keys](keys.md).\n"]
    for verb, about in VERBS.items():
        if verb != "run":
            text = help_of(verb, ["--help"])
            blocks.append(f"## {verb}\n\n{about[0].upper()}{about[1:]}.\n\n```text\n{text}\n```\n")
    return "\n".join(blocks)


def keys() -> str:
    """The page of all keys, with the choices of each group."""
    lines = ["# Keys\n\n| group | choices |\n| --- | --- |"]
    lines += [f"| `{group}` | {', '.join(f'`{name}`' for name in names)} |" for group, names in help.choices().items()]
    for title, found in help.sections():
        lines.append(
            f"\n## {title[0].upper()}{title[1:]}\n\n| key | values | meaning, and default |\n| --- | --- | --- |"
        )
        lines += [f"| `{key.name}` | {_cell(key.values.replace('|', ', '))} | {_cell(key.about)} |" for key in found]
    return "\n".join(lines) + "\n"


def _cell(text: str) -> str:
    return re.sub(r"([|<*_\[\]\\])", r"\\\1", text)


def build(into: Path) -> int:
    """Write pages and settings into a folder, and the site to its `site`. Returns Zensical's exit code."""
    pages = into / "pages"
    shutil.rmtree(pages, ignore_errors=True)
    pages.mkdir(parents=True)
    write_pages(pages)
    schemes = {"light": "default", "dark": "slate"}
    project = {
        "site_name": "amp-launcher",
        "docs_dir": "pages",
        "site_dir": "site",
        "use_directory_urls": False,  # it opens from a folder, without a server
        "nav": [{part: [{title: page} for title, page in inside.items()]} for part, inside in NAVIGATION.items()],
        "theme": {
            "font": False,  # nothing is fetched from elsewhere
            "palette": [
                {"media": f"(prefers-color-scheme: {name})", "scheme": scheme} for name, scheme in schemes.items()
            ],
        },
    }
    (into / "mkdocs.yml").write_text(json.dumps(project, indent=2), "utf-8")
    words = ["zensical", "build", "--strict", "--clean", "--config-file", "mkdocs.yml"]
    return subprocess.run([sys.executable, "-m", *words], cwd=into, check=False).returncode


if __name__ == "__main__":
    sys.exit(build(ROOT / "build"))
