"""Candidate: any command as a whole, from start to exit; its figures as one JSON line.

    python benchmarks/timed.py COMMAND …

`runs_per_s` is 1 / `seconds`, so that more is better, as the harness has it; `rss_mb` is the most
memory that the command held. What it prints is thrown away.
"""

import json
import resource
import subprocess
import sys
import time


def main() -> int:
    if len(sys.argv) < 2:
        print(__doc__, file=sys.stderr)
        return 2
    start_ns = time.perf_counter_ns()
    status = subprocess.run(sys.argv[1:], stdout=subprocess.DEVNULL, check=False).returncode
    seconds = (time.perf_counter_ns() - start_ns) / 1e9
    rss_mb = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    print(json.dumps({"runs_per_s": 1 / seconds, "seconds": seconds, "rss_mb": round(rss_mb, 1)}))
    return status


if __name__ == "__main__":
    sys.exit(main())
