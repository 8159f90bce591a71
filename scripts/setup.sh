#!/usr/bin/env bash
# setup.sh VENV LIST: make VENV if it is missing and install requirements/LIST.txt and lamina into it.
set -euo pipefail
venv=$1 list=$2 python=${PYTHON:-python3}
if ! "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
  echo "lamina needs Python 3.11 or newer, and '$python' is $("$python" --version 2>&1 || echo missing)." >&2
  echo "Next: make PYTHON=/path/to/python3.12 …" >&2
  exit 1
fi
echo "Setting up $venv from requirements/$list.txt …" >&2
[ -x "$venv/bin/python" ] || "$python" -m venv "$venv"
export VIRTUAL_ENV=$PWD/$venv PIP_DISABLE_PIP_VERSION_CHECK=1
# Nothing is left outside the checkout, unless these name a place.
export UV_CACHE_DIR=${UV_CACHE_DIR:-$PWD/.cache/uv} PIP_CACHE_DIR=${PIP_CACHE_DIR:-$PWD/.cache/pip}
pip=("$venv/bin/python" -m pip install --quiet --no-deps)
has_uv() { [ "$("$1" --version 2>/dev/null | cut -d ' ' -f 2)" = "$(sed -n 's/^uv==\([^ ]*\).*/\1/p' requirements/uv.txt)" ]; }
if has_uv .venv/bin/uv; then
  install=(.venv/bin/uv pip install --quiet --system-certs --no-deps)
elif "${pip[@]}" --require-hashes -r requirements/uv.txt 2>"$venv/setup.log"; then
  install=("$venv/bin/uv" pip install --quiet --system-certs --no-deps)
else
  install=("${pip[@]}")
fi
# Every file is checked against its hash. lamina itself has none: it is made by the backend that was just checked.
"${install[@]}" --require-hashes -r requirements/build.txt -r "requirements/$list.txt"
"$venv/bin/python" -m pip uninstall --quiet --yes lamina 2>>"$venv/setup.log" || true  # its name before it was lamina-context
"${install[@]}" --no-build-isolation -e .
# Tests look at the page in a real browser, put nginx before several gateways and watch commands with strace. Without
# them they are skipped, and
# say so. RUNLEVEL keeps Debian from starting an nginx of its own.
missing=()
[ -x /usr/bin/chromium ] || missing+=(chromium fonts-wqy-microhei)
[ -x /usr/sbin/nginx ] || missing+=(nginx)
command -v strace >/dev/null || missing+=(strace)
if [ "$list" = dev ] && [ ${#missing[@]} -gt 0 ] && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  echo "Installing ${missing[*]} for the tests …" >&2
  { apt-get update -q && RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive apt-get install -y -q "${missing[@]}"; } \
    >"$venv/apt.log" 2>&1 || echo "${missing[*]} could not be installed; those tests are skipped. See $venv/apt.log" >&2
fi
touch "$venv/$list.stamp"
[ "$list" = run ] || touch "$venv/run.stamp"
