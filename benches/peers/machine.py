"""The machine of a run: what it is, and how busy others kept it, as Linux counts it."""

import os
import platform
import time
from typing import NamedTuple

# Above these a run is marked: others then take so much that differences between contestants are not to be believed.
OTHERS_MOST = 0.25
STEAL_MOST = 0.02
SAMPLE_S = 3
TICKS_PER_S = os.sysconf("SC_CLK_TCK")


class Times(NamedTuple):
    """What all processors have done so far, in seconds: of programs, of all they could have done, and what the host
    took; and what of the programs' was ours."""

    programs: float
    all: float
    steal: float
    ours: float

    def since(self, before):
        return Times(*(now - then for now, then in zip(self, before)))

    @property
    def others_share(self):
        """The share of the processors that other programs used. What the kernel does for the network is nobody's."""
        return max(0, self.programs - self.ours) / max(self.all, 1e-9)

    @property
    def steal_share(self):
        return self.steal / max(self.all, 1e-9)


def read(line, ours):
    """The fields of the line `cpu` of /proc/stat: user nice system idle iowait irq softirq steal, and guests, which are in user."""
    ticks = [int(word) / TICKS_PER_S for word in line.split()[1:9]]
    return Times(programs=sum(ticks[:3]), all=sum(ticks), steal=ticks[7], ours=ours)


def times():
    """`ours` has the processes that have ended: servers and contestants are counted when they were waited for."""
    own = os.times()
    with open("/proc/stat") as stat:
        return read(stat.readline(), own.user + own.system + own.children_user + own.children_system)


class Watch:
    """Begins before anything is started, with a sample of a machine on which nothing of ours runs."""

    def __init__(self):
        self.average = os.getloadavg()[0]
        before = times()
        time.sleep(SAMPLE_S)
        self.began = times()
        self.idle = self.began.since(before)

    def load(self):
        """After everything has ended."""
        during = times().since(self.began)
        return {
            "average_before": round(self.average, 1),
            "average_after": round(os.getloadavg()[0], 1),
            "others_before": round(self.idle.others_share, 3),
            "others": round(during.others_share, 3),
            "steal": round(max(during.steal_share, self.idle.steal_share), 3),
        }


def busy(load):
    """What was wrong with the machine, as parts of a sentence; nothing if it was quiet."""
    found = []
    if load["others_before"] > OTHERS_MOST:
        found.append(f"other programs used {load['others_before']:.0%} of the processors before it began")
    if load["others"] > OTHERS_MOST:
        found.append(f"other programs used {load['others']:.0%} of them while it ran" if found
                     else f"other programs used {load['others']:.0%} of the processors while it ran")  # fmt: skip
    if load["steal"] > STEAL_MOST:
        found.append(f"the host of this virtual machine took {load['steal']:.1%} of their time")
    return found


def described():
    with open("/proc/cpuinfo") as cpuinfo:
        model = next((line.partition(":")[2].strip() for line in cpuinfo if line.startswith("model name")), "")
    return {
        "processors": os.cpu_count(),
        "model": model or platform.machine(),
        "system": platform.freedesktop_os_release().get("PRETTY_NAME", platform.platform()),
        "kernel": platform.release(),
        "date": time.strftime("%Y-%m-%d %H:%M", time.gmtime()) + " UTC",
    }
