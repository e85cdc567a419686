"""Hosts in the small: network namespaces on one machine, joined by a bridge, with shaped links.

A launcher script stands in for ssh: it drops ssh's options and enters the namespace of the host, under a host
name of its own. Needs root, ``ip`` and ``tc``.

``python -P -m tests.support.labs.network_lab MBIT -- COMMAND...`` runs a command with two such hosts,
named in TENBIN_HOSTS.
"""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from tests.support.labs.components import require

LAUNCHER = """#!/bin/sh
# ssh [-x] [-o option]... host command: enter the namespace that stands for the host.
while :; do
    case "$1" in
        -o|-p|-l) shift 2 ;;
        -*) shift ;;
        *) break ;;
    esac
done
host=$1 number=${1##*.}
shift
case "$host" in
    %(net)s.*) [ -e "/run/netns/%(prefix)sn$number" ] ;;
    *) false ;;
esac || { echo "ssh: Could not resolve hostname $host: Name or service not known" >&2; exit 255; }
exec ip netns exec "%(prefix)sn$number" unshare --uts sh -c "hostname %(prefix)s-$number; $*"
"""

_numbers = itertools.count()


@dataclass(frozen=True)
class NetLab:
    """Hosts that can be used now."""

    hosts: tuple[str, ...]
    launcher: Path
    interface: str  # of the machine, towards the hosts
    prefix: str

    @property
    def env(self) -> dict[str, str]:
        """Return the variables that lead mpiexec to the hosts; UCX would else use shared memory."""
        return {
            "TENBIN_MPI_LAUNCHER": str(self.launcher),
            "TENBIN_MPI_IFACE": self.interface,
            "UCX_TLS": "tcp,self",
        }

    def shape(self, mbit: int, kind: str = "tbf") -> None:
        """Limit what every host sends to ``mbit`` Mbit/s, by tc's ``tbf`` or ``htb``."""
        for number in range(1, len(self.hosts) + 1):
            tc = ["ip", "netns", "exec", f"{self.prefix}n{number}", "tc"]
            dev = ["dev", "eth0"]
            subprocess.run([*tc, "qdisc", "del", *dev, "root"], capture_output=True, check=False)
            if kind == "tbf":
                shape = ["tbf", "rate", f"{mbit}mbit", "burst", "256k", "latency", "100ms"]
                _run(*tc, "qdisc", "add", *dev, "root", *shape)
            else:
                _run(*tc, "qdisc", "add", *dev, "root", "handle", "1:", "htb", "default", "1")
                shape = ["htb", "rate", f"{mbit}mbit", "burst", "256k"]
                _run(*tc, "class", "add", *dev, "parent", "1:", "classid", "1:1", *shape)


def require_netlab() -> None:
    """Skip (on CI: fail) where namespaces cannot be made."""
    require(os.geteuid() == 0, "root, to make network namespaces")
    require(shutil.which("ip") and shutil.which("tc"), "ip and tc (Debian: iproute2)")
    require(shutil.which("unshare"), "unshare (Debian: util-linux)")
    probe = subprocess.run(
        ["unshare", "--mount", "--net", "true"], capture_output=True, text=True, check=False
    )
    require(probe.returncode == 0, f"mount and network namespaces ({probe.stderr.strip()})")


@contextmanager
def netlab(folder: Path, count: int = 2) -> Iterator[NetLab]:
    """``count`` hosts; everything is taken away afterwards, also when making them fails half-way."""
    # Several labs, also of several test runs, must not meet. Names of interfaces: at most 15 characters.
    process, lab = os.getpid() % 4096, next(_numbers) % 4
    prefix = f"tb{process}{'abcd'[lab]}"
    net = f"10.{64 + process // 64}.{process % 64 * 4 + lab}"
    launcher = folder / "launcher"
    launcher.write_text(LAUNCHER % {"prefix": prefix, "net": net})
    launcher.chmod(0o755)
    bridge = f"{prefix}br"
    try:
        _run("ip", "link", "add", bridge, "type", "bridge")
        _run("ip", "addr", "add", f"{net}.254/24", "dev", bridge)
        _run("ip", "link", "set", bridge, "up")
        for i in range(1, count + 1):
            name, link = f"{prefix}n{i}", f"{prefix}v{i}"
            _run("ip", "netns", "add", name)
            _run("ip", "link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", name)
            _run("ip", "link", "set", link, "master", bridge, "up")
            _run("ip", "-n", name, "addr", "add", f"{net}.{i}/24", "dev", "eth0")
            _run("ip", "-n", name, "link", "set", "eth0", "up")
            _run("ip", "-n", name, "link", "set", "lo", "up")
        yield NetLab(tuple(f"{net}.{i}" for i in range(1, count + 1)), launcher, bridge, prefix)
    finally:
        for i in range(1, count + 1):
            subprocess.run(["ip", "link", "del", f"{prefix}v{i}"], capture_output=True, check=False)
            subprocess.run(["ip", "netns", "del", f"{prefix}n{i}"], capture_output=True, check=False)
        subprocess.run(["ip", "link", "del", bridge], capture_output=True, check=False)


def _run(*command: str) -> None:
    subprocess.run(command, check=True, capture_output=True, text=True)


def main(arguments: list[str]) -> int:
    """Run a command with two hosts over links of so many Mbit/s."""
    if len(arguments) < 3 or arguments[1] != "--" or not arguments[0].isdigit():
        print("usage: python -P -m tests.support.labs.network_lab MBIT -- COMMAND...", file=sys.stderr)
        return 2
    with tempfile.TemporaryDirectory() as folder, netlab(Path(folder)) as lab:
        lab.shape(int(arguments[0]), "htb")
        more = lab.env | {"TENBIN_HOSTS": ",".join(lab.hosts)}
        return subprocess.run(arguments[2:], env=os.environ | more, check=False).returncode


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
