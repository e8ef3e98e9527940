"""A child process that runs a command and prints, as JSON, what it took.

    python measured_process.py COMMAND…

The system counts what a process's parent had in memory when it started among the process's own
peak. So the parent has to be small: this one imports next to nothing.
"""

import json
import resource
import subprocess
import sys
import time


def main(command: list[str]) -> None:
    """Print seconds, bytes of memory at the peak, and the exit status of ``command``."""
    started = time.perf_counter()
    status = subprocess.run(command, stdout=subprocess.DEVNULL, check=False).returncode
    seconds = time.perf_counter() - started
    unit = 1 if sys.platform == "darwin" else 1024
    peak = unit * resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss
    print(json.dumps({"seconds": seconds, "peak": peak, "status": status}))


if __name__ == "__main__":
    main(sys.argv[1:])
