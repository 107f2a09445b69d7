#!/usr/bin/env bash
# Makes a virtual environment in which released SGLang serves without a GPU, with this project,
# its tests' tools and the CPU host installed. Does nothing when VENV is already up to date.
#
#   tools/setup_cpu.sh VENV          PYTHON=/path/to/python picks the interpreter
#
# torch comes from pip's configured index; where that offers a CPU build of 2.13.0, it is about
# 750 MB installed, the CUDA build works as well but is several GB.
set -euo pipefail

if [ $# -ne 1 ]; then
  echo "usage: $0 VENV" >&2
  exit 2
fi
venv=$1
root=$(cd "$(dirname "$0")/.." && pwd)

fail() {
  echo "setup_cpu: $*" >&2
  exit 1
}

is_usable() {
  "$1" -c 'import sys; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1
}

find_python() {
  if [ -n "${PYTHON:-}" ]; then
    is_usable "$PYTHON" || fail "PYTHON=$PYTHON does not run or is older than 3.11."
    echo "$PYTHON"
    return
  fi
  local candidate
  for candidate in python3.11 python3.12 python3.13 python3; do
    if is_usable "$candidate"; then
      echo "$candidate"
      return
    fi
  done
  fail "no Python >= 3.11 found (tried python3.11, python3.12, python3.13, python3):" \
    "install one or set PYTHON=/path/to/python."
}

# Everything that decides what is installed: requirements, both packages' metadata, the CPU host.
fingerprint() {
  cd "$root"
  {
    cat requirements/cpu-host*.txt pyproject.toml tools/setup_cpu.sh
    find patches/cpu -type f -not -path '*/__pycache__/*' | LC_ALL=C sort | xargs sha256sum
    echo "$root"
  } | sha256sum | cut -d ' ' -f 1
}

stamp=$venv/.setup-cpu-stamp
wanted=$(fingerprint)
if [ -x "$venv/bin/python" ] && [ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ]; then
  exit 0
fi

python=$(find_python)
if [ ! -x "$venv/bin/pip" ]; then
  "$python" -c 'import ensurepip, venv' 2>/dev/null ||
    fail "$python has no venv module: install it (Debian: apt install python3-venv)."
  "$python" -m venv "$venv"
fi
rm -f "$stamp"
echo "setup_cpu: installing into $venv (a few minutes the first time)" >&2
install=("$venv/bin/python" -m pip install --quiet --disable-pip-version-check)
"${install[@]}" -r "$root/requirements/cpu-host.txt"
"${install[@]}" --no-deps -r "$root/requirements/cpu-host-no-deps.txt"
"${install[@]}" "$root/patches/cpu"
"${install[@]}" -e "$root[test]"
"$venv/bin/python" -c 'import sglang, sgl_kernel, triton, torchvision' ||
  fail "the packages are installed but cannot be imported together (see above)."
echo "$wanted" >"$stamp"
echo "setup_cpu: ready: $venv" >&2
