"""Build a board's image as in firmware/build.toml, and print its memory ledger.

It is poet's own firmware if src_dir is its folder. Otherwise the sources are an application of the
user on the same port: start-up, clocks, interrupts, flash (firmware/port/common/chip.h). It gets
the C library from a package in lib_deps.
"""

import os
import subprocess
import sys
from pathlib import Path

from SCons.Script import COMMAND_LINE_TARGETS, AlwaysBuild, Builder, Default, DefaultEnvironment

env = DefaultEnvironment()
FIRMWARE = Path(env.PioPlatform().get_dir()).parent
sys.path.insert(0, str(FIRMWARE.parent / "host"))

from poet_host.firmware_build.ledger import ledger_text, memory_ledger  # noqa: E402
from poet_host.firmware_build.recipe import recipe  # noqa: E402

is_own = Path(env.subst("$PROJECT_SRC_DIR")).resolve() == FIRMWARE
# A package states its kernels itself.
made = recipe(env["BOARD"], None if is_own else ())
prefix = made.compiler.removesuffix("gcc")

env.Replace(
    AR=prefix + "gcc-ar",
    AS=prefix + "as",
    CC=made.compiler,
    CXX=prefix + "g++",
    GDB=prefix + "gdb",
    OBJCOPY=prefix + "objcopy",
    RANLIB=prefix + "gcc-ranlib",
    PROGNAME="firmware",
    PROGSUFFIX=".elf",
)
env.Append(
    CPPPATH=[str(folder) for folder in made.include if is_own or folder.name != "include"],
    LINKFLAGS=[*made.core, *made.link],
    LIBPATH=[str(folder) for folder in made.script_folders],
    LIBS=list(made.libraries),
    BUILDERS={
        "ElfToBin": Builder(
            action=env.VerboseAction("$OBJCOPY -O binary $SOURCES $TARGET", "Building $TARGET"),
            suffix=".bin",
        )
    },
)
env.Replace(LDSCRIPT_PATH=str(made.script))


def with_port(configure):
    """Return PlatformIO's function that finds libraries, changed so that the port is built too.

    The port includes headers of the library, so it is built with the folders of its headers.
    """

    def configured(env):
        libraries = configure()
        build = libraries.build

        def built():
            found = build()
            for folder in ("common", made.chip):
                source = str(FIRMWARE / "port" / folder)
                libraries.env.BuildSources(f"$BUILD_DIR/port/{folder}", source, "+<*> -<main.c>")
            return found

        libraries.build = built
        return libraries

    return configured


if is_own:
    # PlatformIO would link in the order of paths; the recipe's order gives the same image
    # everywhere.
    env.AddMethod(
        lambda env, *_: [source.relative_to(FIRMWARE).as_posix() for source in made.sources],
        "MatchSourceFiles",
    )
    env.AddBuildMiddleware(
        lambda env, node: env.Object(
            node, CCFLAGS=list(made.flags(Path(node.srcnode().get_abspath())))
        )
    )
else:
    others = ("-std=c11", "-Werror", "-DPOET_LIBRARY=0")
    flags = [flag for flag in made.compile if flag not in others]
    env.Append(CCFLAGS=[*made.core, *flags, "-Os"], CFLAGS=["-std=gnu11"])
    env.AddMethod(with_port(env.ConfigureProjectLibBuilder), "ConfigureProjectLibBuilder")


def print_ledger(target, source, env):
    os.environ["PATH"] = env["ENV"]["PATH"]  # which has the compiler's folder, and so objdump
    print(ledger_text([memory_ledger(env["BOARD"], Path(str(source[0])))]))


def upload(target, source, env):
    """Upload with `poet-host flash`. The firmware will answer on `monitor_port`."""
    command = ["poet-host", "flash", "--board", env["BOARD"], "--image", str(source[0])]
    if port := env.GetProjectOption("monitor_port", ""):
        command += ["--port", port]
    if port := env.subst("$UPLOAD_PORT"):
        command += ["--upload-port", port]
    try:
        return subprocess.run(command, env=env["ENV"], check=False).returncode
    except FileNotFoundError:
        print("The upload needs poet-host, which is not on the PATH. Run `pip install .`.")
        return 1


if "nobuild" in COMMAND_LINE_TARGETS:
    elf = [env.File("$BUILD_DIR/${PROGNAME}.elf")]
    binary = []
else:
    elf = env.BuildProgram()
    env.Depends(elf, [str(path) for path in made.headers if path.suffix == ".ld"])
    binary = env.ElfToBin("$BUILD_DIR/${PROGNAME}", elf)

ledger = env.Alias("ledger", elf, env.VerboseAction(print_ledger, "Where the memory goes"))
AlwaysBuild(ledger)
env.AddPlatformTarget("upload", elf, [env.VerboseAction(upload, "Uploading $SOURCE")], "Upload")
AlwaysBuild(env.Alias("nobuild", elf))
Default([env.Alias("buildprog", [elf, binary]), ledger])
