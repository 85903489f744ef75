#!/bin/sh
# Installs tracekit @VERSION@ from the files beside this script: no network, no compiler, and
# every wheel is checked against its hash first.
#
#   sh install.sh [FOLDER]                              FOLDER must not exist; default ./tracekit
#   PYTHON=/opt/python3.12/bin/python3 sh install.sh    with a certain interpreter
set -eu

version='@VERSION@'
arch='@ARCH@'
pythons='@PYTHONS@'
glibc_minor='@GLIBC_MINOR@'

fail() {
    echo "error: $1" >&2
    [ -z "${2:-}" ] || echo "hint: $2" >&2
    exit 2
}

# Prints "3.12" for an interpreter that can be used, else why it can not.
inspect() {
    "$1" -I - "$pythons" "$glibc_minor" <<'PYTHON'
import sys
if sys.version_info < (3, 11):
    sys.exit("it is Python %d.%d" % sys.version_info[:2])
import platform, sysconfig
version = "%d.%d" % sys.version_info[:2]
libc, libc_version = platform.libc_ver()
if version not in sys.argv[1].split():
    sys.exit("it is Python " + version)
if platform.python_implementation() != "CPython" or sysconfig.get_config_var("Py_GIL_DISABLED"):
    sys.exit("it is not the ordinary CPython")
if sys.maxsize < 2**32:
    sys.exit("it is a 32-bit Python")
if libc != "glibc" or [int(part) for part in libc_version.split(".")[:2]] < [2, int(sys.argv[2])]:
    sys.exit("its C library is %s %s, and glibc 2.%s or newer is needed"
             % (libc or "not glibc", libc_version, sys.argv[2]))
try:
    import venv, zlib
except ImportError as error:
    sys.exit("it was built without a part of the standard library: %s" % error)
print(version)
PYTHON
}

here=$(cd "$(dirname "$0")" && pwd)
target=${1:-tracekit}
case $target in -*) fail "install.sh takes one folder and no options" "sh install.sh FOLDER" ;; esac

[ "$(uname -s)" = Linux ] || fail "this archive is for Linux, and this is $(uname -s)"
[ "$(uname -m)" = "$arch" ] ||
    fail "this archive is for $arch, and this machine is $(uname -m)" \
        "make bundle ARCH=$(uname -m)"
[ ! -e "$target" ] || fail "$target exists already" "name another folder: sh install.sh FOLDER"

python=
if [ -n "${PYTHON:-}" ]; then
    command -v "$PYTHON" >/dev/null || fail "there is no '$PYTHON'"
    found=$(inspect "$PYTHON" 2>&1) ||
        fail "'$PYTHON' cannot be used: $found" "this archive is for Python $pythons"
    python=$PYTHON
else
    refused=
    for candidate in python3 python3.14 python3.13 python3.12 python3.11; do
        command -v "$candidate" >/dev/null || continue
        if found=$(inspect "$candidate" 2>&1); then
            python=$candidate
            break
        fi
        refused="$refused; $candidate cannot be used: $found"
    done
    [ -n "$python" ] ||
        fail "no Python that this archive has wheels for ($pythons)$refused" \
            "PYTHON=/path/to/python3 sh install.sh"
fi

# A half-made folder would look installed.
trap 'rm -rf "$target"' EXIT
trap 'exit 130' INT TERM
echo "installing tracekit $version into $target for Python $found" >&2
"$python" -I -m venv --without-pip "$target" || fail "no environment could be made in $target"

# pip out of the archive, since a Python may come without its own. Neither its settings on this
# machine nor its cache may send it elsewhere.
set -- "$here"/wheels/pip-*.whl
PIP_CONFIG_FILE=/dev/null "$target/bin/python" -I "$1/pip" --isolated -qq \
    --disable-pip-version-check install --no-index --find-links "$here/wheels" --no-cache-dir \
    --only-binary=:all: --require-hashes -r "$here/requirements.txt" ||
    fail "the wheels were refused; nothing is installed" "copy the archive again and unpack it"

"$target/bin/python" -I -c 'import tracekit' || fail "tracekit is installed but does not start"
trap - EXIT
echo "tracekit $version is installed: $(cd "$target" && pwd)/bin/tracekit" >&2
