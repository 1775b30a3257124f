"""PlatformIO development platform of the bare-metal boards.

It downloads nothing from PlatformIO's registry if the system has a cross compiler and PlatformIO's
Python has SCons (`pip install platformio scons`).
"""

import importlib.util
import json
import re
import shutil
import tempfile
import tomllib
from pathlib import Path

from platformio.dependencies import get_core_dependencies
from platformio.package.manager.core import get_core_package_dir
from platformio.package.manager.tool import ToolPackageManager
from platformio.public import PlatformBase

FIRMWARE = Path(__file__).resolve().parents[1]


def provide_scons():
    """Copy the SCons of this Python to PlatformIO's folder of packages, if it has no SCons yet.

    It is copied, not linked, because other Pythons may use the same folder. If this Python has no
    SCons, PlatformIO downloads its own.
    """
    if get_core_package_dir("tool-scons", auto_install=False):
        return
    spec = importlib.util.find_spec("SCons")
    if spec is None or not spec.submodule_search_locations:
        return
    version = re.sub(r"^\D+", "", get_core_dependencies()["tool-scons"])
    about = {"name": "tool-scons", "version": version, "system": "*"}
    owner = {"owner": "platformio", "id": None, "name": "tool-scons"}
    origin = {
        "type": "tool",
        "name": "tool-scons",
        "version": version,
        "spec": owner | {"requirements": None, "uri": None},
    }
    manager = ToolPackageManager()
    store = Path(manager.package_dir)
    store.mkdir(parents=True, exist_ok=True)
    target = store / "tool-scons"
    if target.exists():  # of another version
        target = store / f"tool-scons@{version}"
    with tempfile.TemporaryDirectory(dir=store, prefix=".tool-scons-") as folder:
        made = Path(folder) / "tool-scons"
        shutil.copytree(
            next(iter(spec.submodule_search_locations)),
            made / "SCons",
            ignore=shutil.ignore_patterns("__pycache__", "docbook"),
        )
        (made / "scons.py").write_text("import SCons.Script\n\nSCons.Script.main()\n")
        (made / "package.json").write_text(json.dumps(about))
        (made / ".piopm").write_text(json.dumps(origin))
        try:
            made.rename(target)
        except OSError:  # another build may have made it at the same time
            if not target.exists():
                raise


class PoetPlatform(PlatformBase):
    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        provide_scons()
        build = tomllib.loads((FIRMWARE / "build.toml").read_text("utf-8"))
        if not shutil.which(build["compiler"]):
            self.packages[build["package"]] = {
                "type": "toolchain",
                "owner": "platformio",
                "version": build["package_version"],
            }

    def is_embedded(self):
        return True
