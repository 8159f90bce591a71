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
touch "$venv/$list.stamp"
[ "$list" = run ] || touch "$venv/run.stamp"
