"""Child process that runs a command and prints its times and peak memory as JSON.

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
    """Print seconds, those of the processor, peak memory in bytes and exit status."""
    started = time.perf_counter()
    status = subprocess.run(command, stdout=subprocess.DEVNULL, check=False).returncode
    seconds = time.perf_counter() - started
    unit = 1 if sys.platform == "darwin" else 1024
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    figures = {"seconds": seconds, "processor": used.ru_utime + used.ru_stime}
    print(json.dumps({**figures, "peak": unit * used.ru_maxrss, "status": status}))


if __name__ == "__main__":
    main(sys.argv[1:])
