"""Calls that pyopencl does not make, by the system's loader: print what their objects tell of themselves."""

from __future__ import annotations

import ctypes
import time
from ctypes import byref, c_int, c_size_t, c_uint64, c_void_p

NORMALIZED_COORDS, ADDRESSING_MODE, FILTER_MODE = 0x1152, 0x1153, 0x1154
CLAMP_TO_EDGE, LINEAR = 0x1131, 0x1141
SAMPLER_PROPERTIES, MEM_PROPERTIES = 0x1158, 0x110A
ALL_DEVICES, READ_WRITE = 0xFFFFFFFF, 1

cl = ctypes.CDLL("libOpenCL.so.1")
for name in ("Context", "SamplerWithProperties", "Sampler", "BufferWithProperties"):
    getattr(cl, f"clCreate{name}").restype = c_void_p
Destroyed = ctypes.CFUNCTYPE(None, c_void_p, c_void_p)


def properties(ask: str, of: c_void_p, what: int) -> list[int]:
    """Ask for the properties with which an object was made."""
    size = c_size_t()
    assert getattr(cl, ask)(of, what, c_size_t(0), None, byref(size)) == 0
    place = (c_uint64 * (size.value // 8))()
    assert not size.value or getattr(cl, ask)(of, what, size, place, None) == 0
    return list(place)


def main() -> None:
    platform, device, error = c_void_p(), c_void_p(), c_int()
    assert cl.clGetPlatformIDs(1, byref(platform), None) == 0
    assert cl.clGetDeviceIDs(platform, c_uint64(ALL_DEVICES), 1, byref(device), None) == 0
    context = c_void_p(cl.clCreateContext(None, 1, byref(device), None, None, byref(error)))
    given = (c_uint64 * 7)(FILTER_MODE, LINEAR, NORMALIZED_COORDS, 0, ADDRESSING_MODE, CLAMP_TO_EDGE, 0)
    made = (
        cl.clCreateSamplerWithProperties(context, given, byref(error)),
        cl.clCreateSampler(context, 0, CLAMP_TO_EDGE, LINEAR, byref(error)),
    )
    for sampler in map(c_void_p, made):
        print("sampler", error.value, properties("clGetSamplerInfo", sampler, SAMPLER_PROPERTIES))
        cl.clReleaseSampler(sampler)
    for some in ((c_uint64 * 1)(0), None):
        making = (context, some, c_uint64(READ_WRITE), c_size_t(64), None, byref(error))
        memory = c_void_p(cl.clCreateBufferWithProperties(*making))
        print("buffer", error.value, properties("clGetMemObjectInfo", memory, MEM_PROPERTIES))
        cl.clReleaseMemObject(memory)
    print("default queue", cl.clSetDefaultDeviceCommandQueue(context, device, None))
    called: list[int] = []
    callbacks = [Destroyed(lambda _context, _data, n=n: called.append(n)) for n in range(3)]
    for one in callbacks:
        assert cl.clSetContextDestructorCallback(context, one, None) == 0
    cl.clReleaseContext(context)
    end = time.monotonic() + 10
    while len(called) < len(callbacks) and time.monotonic() < end:
        time.sleep(0.01)
    print("destructor callbacks", called)


if __name__ == "__main__":
    main()
