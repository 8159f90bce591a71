"""The only place that builds things: settings, files and the store in, rooms that know nothing of each other out."""

import os

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")  # before numpy: on few cores its threads wait for each other
