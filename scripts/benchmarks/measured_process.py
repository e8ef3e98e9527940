"""Child process that runs a command and prints its time and peak memory as JSON.

    python measured_process.py COMMAND…

A process's peak includes its parent's memory at the time of the start. So the parent must be small:
this one imports next to nothing.
"""

import json
import resource
import subprocess
import sys
import time


def main(command: list[str]) -> None:
    """Print seconds, peak memory in bytes and exit status of ``command``."""
    started = time.perf_counter()
    status = subprocess.run(command, stdout=subprocess.DEVNULL, check=False).returncode
    seconds = time.perf_counter() - started
    unit = 1 if sys.platform == "darwin" else 1024
    peak = unit * resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    print(json.dumps({"seconds": seconds, "peak": peak, "status": status}))


if __name__ == "__main__":
    main(sys.argv[1:])
