"""Uses OpenCL by the loader of the first argument, unloads that, prints "unloaded", and ends after a line."""

from __future__ import annotations

import ctypes
import sys
from _ctypes import dlclose  # what ctypes itself has no name for
from ctypes import byref, c_int, c_size_t, c_uint64, c_void_p

ALL_DEVICES, READ_WRITE = 0xFFFFFFFF, 1


def main() -> None:
    cl = ctypes.CDLL(sys.argv[1])
    cl.clCreateContext.restype = c_void_p
    cl.clCreateBuffer.restype = c_void_p
    platform, device, error = c_void_p(), c_void_p(), c_int()
    assert cl.clGetPlatformIDs(1, byref(platform), None) == 0
    assert cl.clGetDeviceIDs(platform, c_uint64(ALL_DEVICES), 1, byref(device), None) == 0
    context = c_void_p(cl.clCreateContext(None, 1, byref(device), None, None, byref(error)))
    assert cl.clCreateBuffer(context, c_uint64(READ_WRITE), c_size_t(64), None, byref(error))
    dlclose(cl._handle)
    print("unloaded", flush=True)
    sys.stdin.readline()


if __name__ == "__main__":
    main()
