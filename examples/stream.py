"""A memory streamer: a[i] = b[i] + s * c[i] over arrays larger than every cache.

    tenbin submit --memory 2G -- python3 examples/stream.py --mb 500 --passes 20

Whoever runs beside it gets less of the memory's bandwidth. Prints the rate, and whether the result is right.
"""

import argparse
import statistics
import sys
import time

import numpy as np


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--mb", type=int, default=200, help="size of each of the three arrays")
    parser.add_argument("--passes", type=int, default=20)
    options = parser.parse_args()
    n = options.mb * 1_000_000 // 8
    a, b, c = np.zeros(n), np.full(n, 2.0), np.full(n, 0.5)

    rates = []
    for _ in range(options.passes):
        began = time.perf_counter()
        np.multiply(c, 3.0, out=a)  # reads 8, writes 8 bytes of each element
        np.add(a, b, out=a)  # reads 16, writes 8
        rates.append(40 * n / (time.perf_counter() - began) / 1e9)
        b, c = c, b
    wanted = 2.0 + 3.0 * 0.5 if options.passes % 2 else 0.5 + 3.0 * 2.0
    right = bool((a == wanted).all())
    rate, slowest = statistics.median(rates), min(rates)
    print(f"{rate:.1f} GB/s (slowest pass {slowest:.1f}), result {'right' if right else 'WRONG'}")
    sys.exit(0 if right else 1)


if __name__ == "__main__":
    main()
