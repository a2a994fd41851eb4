# SPDX-License-Identifier: Apache-2.0
"""Where the command `gradus` is, and the script of that name in a wheel."""
import os
import pathlib
import shutil
import sys

from .errors import NotFoundError

_HERE = pathlib.Path(__file__).resolve().parent


def program() -> str:
    """The command's path: in the wheel, beside the library that LIBGRADUS names, or on PATH."""
    places = [_HERE / "bin" / "gradus"]
    if os.environ.get("LIBGRADUS"):
        places.append(pathlib.Path(os.environ["LIBGRADUS"]).resolve().parent / "gradus")
    for place in places:
        if os.access(place, os.X_OK):
            return str(place)
    found = shutil.which("gradus")
    if found is None:
        raise NotFoundError(f"the command gradus is neither {' nor '.join(map(str, places))}, nor "
                            "on PATH; install the wheel, or add the folder of the command to PATH")
    return found


def main() -> None:
    """Becomes the command of the wheel."""
    path = _HERE / "bin" / "gradus"
    os.execv(path, ["gradus", *sys.argv[1:]])
