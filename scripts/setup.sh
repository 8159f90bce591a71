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
if [ -x "$venv/bin/uv" ] || "$venv/bin/python" -m pip install --quiet uv 2>"$venv/setup.log"; then
  install=("$venv/bin/uv" pip install --quiet --system-certs)
else
  install=("$venv/bin/python" -m pip install --quiet)
fi
"${install[@]}" --no-deps -r "requirements/$list.txt" -e .
# Tests look at the page in a real browser, and put nginx before several gateways. Without them they are skipped, and
# say so. RUNLEVEL keeps Debian from starting an nginx of its own.
missing=()
[ -x /usr/bin/chromium ] || missing+=(chromium fonts-wqy-microhei)
[ -x /usr/sbin/nginx ] || missing+=(nginx)
if [ "$list" = dev ] && [ ${#missing[@]} -gt 0 ] && [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null; then
  echo "Installing ${missing[*]} for the tests …" >&2
  { apt-get update -q && RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive apt-get install -y -q "${missing[@]}"; } \
    >"$venv/apt.log" 2>&1 || echo "${missing[*]} could not be installed; those tests are skipped. See $venv/apt.log" >&2
fi
touch "$venv/$list.stamp"
[ "$list" = run ] || touch "$venv/run.stamp"
