"""The process that runs the embedded model: llama.cpp's own server on 127.0.0.1, without the rest of lamina.

It reads one line of settings from its standard input, answers with one line, and runs until that input ends, so it ends
with its parent, however that ends. Everything that llama.cpp prints goes to standard error.
"""

import json
import os
import sys
from importlib import import_module
from typing import Any


def main() -> None:
    output = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)
    settings: dict[str, Any] = json.loads(sys.stdin.readline())
    try:
        server = start_server(settings)
    except (ImportError, RuntimeError, ValueError, OSError) as error:
        failure = {"error": f"{type(error).__name__}: {error}", "missing": isinstance(error, ImportError)}
        print(json.dumps(failure), file=output, flush=True)
        os._exit(1)
    print(json.dumps({"url": server.listening_address}), file=output, flush=True)
    while sys.stdin.readline():
        pass
    os._exit(0)  # without waiting for llama.cpp's threads


def start_server(settings: dict[str, Any]) -> Any:
    xllamacpp: Any = import_module("xllamacpp")  # an extra, and one of 30 MB: only this process ever loads it
    params = xllamacpp.CommonParams()
    params.model.path = settings["path"]
    params.n_ctx, params.n_parallel = settings["n_ctx"], 1
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = settings["threads"]
    params.hostnames, params.port, params.api_keys = ["127.0.0.1"], 0, [settings["key"]]
    params.warmup = params.ui = params.endpoint_slots = False
    params.offline = True
    params.cache_ram_mib, params.verbosity = 64, 0
    return xllamacpp.Server(params)


if __name__ == "__main__":
    main()
