#!/bin/sh
# install.sh FOLDER: lamina with its gateway, its worker and the PostgreSQL driver, in an environment of its own. Run it
# in the root of the repository. Every file from the registry is checked against the hash in requirements/.
set -eu
python3 -m venv "$1"
python3 -m venv "$1.build"
"$1.build/bin/pip" install --quiet --no-cache-dir --no-deps --require-hashes -r requirements/build.txt
"$1.build/bin/python" -m hatchling build -t wheel -d "$1.build/wheel"
"$1/bin/pip" install --quiet --no-cache-dir --no-deps --require-hashes -r requirements/deploy.txt
"$1/bin/pip" install --quiet --no-cache-dir --no-deps --no-index "$1.build/wheel/"*.whl
rm -rf "$1.build"
