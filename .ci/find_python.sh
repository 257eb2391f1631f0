#!/bin/sh
# Prints the path of a Python that can make our virtual environment, or says on standard error what is
# missing and what to do, and exits with 1. An argument or PYTHON names the one to use.
set -eu

wanted="${1:-${PYTHON:-}}"
candidates="${wanted:-python3 python3.14 python3.13 python3.12 python3.11}"

tried=""
without_venv=""
for candidate in $candidates; do
    # A name may be on the path and yet not run: pyenv's shims for versions that are not selected.
    version=$("$candidate" -c 'import sys; print("%d.%d" % sys.version_info[:2])' 2>/dev/null) || continue
    if ! "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
        tried="$tried $candidate is Python $version."
        continue
    fi
    if ! "$candidate" -c 'import venv, ensurepip' 2>/dev/null; then
        without_venv="$without_venv $candidate (Python $version)"
        continue
    fi
    "$candidate" -c 'import sys; print(sys.executable)'
    exit 0
done

{
    if [ -n "$without_venv" ]; then
        echo "Python is there, but without its venv module:$without_venv."
        echo "Install it (Debian, Ubuntu: apt install python3-venv; others ship it with Python) and try again."
    elif [ -n "$wanted" ]; then
        echo "PYTHON=$wanted is not a Python 3.11 or newer that runs.$tried"
        echo "Leave PYTHON= out to have one looked for, or give the path of another."
    else
        echo "No Python 3.11 or newer was found.$tried"
        echo "Install one (Debian 12, Ubuntu 24.04: apt install python3 python3-venv; macOS: brew install python;"
        echo "any system: https://www.python.org/downloads/), or say where it is: make PYTHON=/path/to/python3.12 ..."
    fi
} >&2
exit 1
