"""Bodies that attract each other, in OpenCL: few long kernels, checkpointed by tenbin.

    tenbin submit --checkpoint -- python3 examples/nbody.py --bodies 8192 --steps 100

Prints a checksum, the same however often the job was moved; and, by numpy, the energy, which hardly drifts,
and the momentum, which stays 0.
"""

import argparse
import zlib

import numpy as np
import pyopencl as cl

import tenbin

SOFTENING = 0.05
SOURCE = """
kernel void drift(global double4 *place, global const double4 *speed, const double dt) {
    const int i = get_global_id(0);
    place[i].xyz += dt * speed[i].xyz;
}
kernel void kick(global const double4 *place, global double4 *speed, const double dt, const double soft) {
    const int i = get_global_id(0), n = get_global_size(0);
    double3 pull = 0.0;
    for (int j = 0; j < n; ++j) {
        const double3 d = place[j].xyz - place[i].xyz;
        const double r = rsqrt(dot(d, d) + soft * soft);
        pull += place[j].w * r * r * r * d;
    }
    speed[i].xyz += dt * pull;
}
"""


def first(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Places, with the masses (1 in all) in their fourth column, and speeds, at rest as a whole."""
    chance = np.random.default_rng(1)
    place, speed = np.empty((n, 4)), np.zeros((n, 4))
    place[:, :3], place[:, 3] = chance.normal(size=(n, 3)), 1.0 / n
    speed[:, :3] = 0.4 * chance.normal(size=(n, 3))
    speed[:, :3] -= speed[:, :3].mean(axis=0)
    return place, speed


def energy(place: np.ndarray, speed: np.ndarray) -> tuple[float, float]:
    """Of motion, and of attraction, softened as in the kernel."""
    mass, attraction = place[:, 3], 0.0
    for i in range(len(place)):
        d = place[i + 1 :, :3] - place[i, :3]
        attraction -= mass[i] * (mass[i + 1 :] / np.sqrt((d * d).sum(axis=1) + SOFTENING**2)).sum()
    return 0.5 * float((mass * (speed**2).sum(axis=1)).sum()), float(attraction)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--bodies", type=int, default=4096)
    parser.add_argument("--steps", type=int, default=200)
    options = parser.parse_args()
    n, dt = options.bodies, 0.001

    check = tenbin.Checkpoint(f"nbody-{n}")
    program = check.build(SOURCE)
    drift, kick = cl.Kernel(program, "drift"), cl.Kernel(program, "kick")
    places, speeds = check.buffer("places", 32 * n), check.buffer("speeds", 32 * n)
    check.state["step"] = 0
    place, speed = first(n)
    before = sum(energy(place, speed))
    if not check.restore():
        cl.enqueue_copy(check.queue, places, place)
        cl.enqueue_copy(check.queue, speeds, speed)
    while check.state["step"] < options.steps:  # half a drift, a kick, half a drift: the leapfrog
        drift(check.queue, (n,), None, places, speeds, np.float64(dt / 2))
        kick(check.queue, (n,), None, places, speeds, np.float64(dt), np.float64(SOFTENING))
        drift(check.queue, (n,), None, places, speeds, np.float64(dt / 2))
        check.queue.finish()  # a kernel is long: none is queued behind it
        check.state["step"] += 1
        check.safe_point()

    cl.enqueue_copy(check.queue, place, places)
    cl.enqueue_copy(check.queue, speed, speeds)
    check.finish()
    motion, attraction = energy(place, speed)
    lost = (motion + attraction) / before - 1
    crc = zlib.crc32(place.tobytes() + speed.tobytes())
    print(
        f"{crc:08x} after {options.steps} steps, motion {motion:.9f}, attraction {attraction:.9f}, ", end=""
    )
    print(f"drift {lost:.1e}, momentum {np.abs(place[:, 3] @ speed[:, :3]).max():.1e}")


if __name__ == "__main__":
    main()
