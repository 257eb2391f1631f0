#!/bin/sh
# Says why installing the test tools may have failed. Argument: the Python of the virtual environment.
# python-qpid-proton comes as C source: it needs a C compiler and Python's own headers. OpenSSL (with
# pkg-config) is used if it is there and not needed: the tests speak plain TCP.
set -eu

python="$1"
echo
echo "The test tools could not be installed (pip's own words are above)."

compiler="${CC:-$("$python" -c 'import sysconfig; print((sysconfig.get_config_var("CC") or "cc").split()[0])')}"
# shellcheck disable=SC2086  # CC may hold options
set -- $compiler
if ! command -v "$1" >/dev/null 2>&1; then
    echo "A C compiler is missing: '$1' is not there. python-qpid-proton is compiled from its source."
    echo "Install one (Debian, Ubuntu: apt install build-essential; Fedora: dnf install gcc;"
    echo "macOS: xcode-select --install), or name yours: make test CC=clang"
    exit 0
fi

headers=$("$python" -c 'import sysconfig; print(sysconfig.get_path("include"))')
if [ ! -f "$headers/Python.h" ]; then
    echo "Python's C headers are missing: there is no $headers/Python.h."
    echo "Install them (Debian, Ubuntu: apt install python3-dev; Fedora: dnf install python3-devel)."
    exit 0
fi

echo "A C compiler and Python's headers are there. If pip could not reach a package index, check the"
echo "network and pip's settings ('pip config list'). The broker itself needs none of this: make run-broker"
