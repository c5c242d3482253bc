#!/usr/bin/env python3
# SPDX-FileCopyrightText: The Oriel authors
# SPDX-License-Identifier: Apache-2.0
"""Captures this machine as a fixture: hwloc.xml, tree and gpus in a folder of its own.

Omits everything that identifies the machine, its owner or its parts: serial numbers, UUIDs, host
names, and the models that hwloc reports. Needs libhwloc; queries NVML and the CUDA driver if
present. Once the folder is in test/topo/fixtures, `ORIEL_UPDATE_FIXTURES=1 ctest -R test_fixtures`
in the build folder writes the expected decisions.
"""
import ctypes
import os
import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[3] / "tools" / "common"))
from command_line import make_parser  # noqa: E402

# hwloc_type_filter_e
FILTER_KEEP_ALL = 0
KEPT_INFO = ("PCIBusID", "Port")  # hwloc's infos that identify nothing

CLASSES = {"0x02", "0x03", "0x06", "0x12"}  # network, display, bridges, accelerators
PCI_FILES = ("class", "vendor", "device", "numa_node", "current_link_speed", "current_link_width",
             "max_link_speed", "max_link_width")
NVLINKS = 18
NVML_READ, NVML_ATOMICS = 0, 3


def export_hwloc(head):
    hwloc = ctypes.CDLL("libhwloc.so.15")
    topology = ctypes.c_void_p()
    assert hwloc.hwloc_topology_init(ctypes.byref(topology)) == 0
    hwloc.hwloc_topology_set_io_types_filter.argtypes = [ctypes.c_void_p, ctypes.c_int]
    hwloc.hwloc_topology_set_io_types_filter(topology, FILTER_KEEP_ALL)
    assert hwloc.hwloc_topology_load(topology) == 0
    text, size = ctypes.c_char_p(), ctypes.c_int()
    export = hwloc.hwloc_topology_export_xmlbuffer
    export.argtypes = [ctypes.c_void_p, ctypes.POINTER(ctypes.c_char_p),
                       ctypes.POINTER(ctypes.c_int), ctypes.c_ulong]
    assert export(topology, ctypes.byref(text), ctypes.byref(size), 0) == 0
    lines = []
    for line in text.value.decode().splitlines():
        info = re.match(r'\s*<info name="([^"]+)"', line)
        if info and info.group(1) not in KEPT_INFO:
            continue
        line = re.sub(r'(GPUUUID|uuid)="[^"]*"', "", line)
        lines.append(line)
        if '<object type="Machine"' in line:
            lines.append(f'    <info name="Fixture" value="{head}"/>')
    return "\n".join(lines) + "\n"


def read(path):
    try:
        return pathlib.Path(path).read_text().strip()
    except OSError:
        return None


def pack_tree(head):
    out = [f"# {head}", ""]

    def keep(path):
        text = read(path)
        if text is not None:
            out.append(f"{path} = {text}")

    nodes = "/sys/devices/system/node"
    keep(f"{nodes}/online")
    for node in sorted(pathlib.Path(nodes).glob("node[0-9]*")):
        keep(f"{node}/cpulist")
        keep(f"{node}/distance")
    bus = pathlib.Path("/sys/bus/pci/devices")
    for link in sorted(bus.iterdir()) if bus.is_dir() else []:
        if (read(link / "class") or "")[:4] not in CLASSES:
            continue
        folder = os.path.realpath(link)
        out += ["", f"{link} -> {os.readlink(link)}"]
        for name in PCI_FILES:
            keep(f"{folder}/{name}")
    rdma = pathlib.Path("/sys/class/infiniband")
    for link in sorted(rdma.iterdir()) if rdma.is_dir() else []:
        sys.exit(f"{link}: this machine has RDMA NICs; write down what to keep of their GUIDs "
                 "first")
    return "\n".join(out) + "\n"


class Nvml:
    def __init__(self):
        self.library = ctypes.CDLL("libnvidia-ml.so.1")
        assert self.library.nvmlInit_v2() == 0

    def number(self, name, device, *more):
        value = ctypes.c_uint()
        status = getattr(self.library, name)(device, *more, ctypes.byref(value))
        return value.value if status == 0 else None

    def devices(self):
        count = ctypes.c_uint()
        self.library.nvmlDeviceGetCount_v2(ctypes.byref(count))
        for i in range(count.value):
            device = ctypes.c_void_p()
            assert self.library.nvmlDeviceGetHandleByIndex_v2(i, ctypes.byref(device)) == 0
            yield device

    def text(self, name, device):
        buffer = ctypes.create_string_buffer(128)
        assert getattr(self.library, name)(device, buffer, 128) == 0
        return buffer.value.decode()

    def address(self, device):
        pci = ctypes.create_string_buffer(256)
        assert self.library.nvmlDeviceGetPciInfo_v3(device, pci) == 0
        # busIdLegacy[16], domain, bus, device: 32 bits each
        domain, bus, slot = (int.from_bytes(pci.raw[16 + 4 * i:20 + 4 * i], "little")
                             for i in range(3))
        return f"{domain:04x}:{bus:02x}:{slot:02x}.0"

    def switch_links(self, device):
        """Returns the numbers of links to switches and of all links; the caller compares them."""
        kinds = []
        for link in range(NVLINKS):
            active = self.number("nvmlDeviceGetNvLinkState", device, link)
            if active:
                kinds.append(self.number("nvmlDeviceGetNvLinkRemoteDeviceType", device, link))
        return kinds.count(2), len(kinds)

    def status(self, a, b, what):
        value = ctypes.c_int()
        done = self.library.nvmlDeviceGetP2PStatus(a, b, what, ctypes.byref(value))
        return value.value if done == 0 else -1


def cuda_facts():
    """Returns {UUID: (ordinal, architecture, support for POSIX file descriptor handles)}."""
    cuda = ctypes.CDLL("libcuda.so.1")
    assert cuda.cuInit(0) == 0
    count = ctypes.c_int()
    cuda.cuDeviceGetCount(ctypes.byref(count))
    facts = {}
    for ordinal in range(count.value):
        uuid = (ctypes.c_ubyte * 16)()
        assert cuda.cuDeviceGetUuid_v2(uuid, ordinal) == 0

        def attribute(number):
            value = ctypes.c_int()
            cuda.cuDeviceGetAttribute(ctypes.byref(value), number, ordinal)
            return value.value
        facts[bytes(uuid).hex()] = (ordinal, 10 * attribute(75) + attribute(76), attribute(103))
    return facts


def gpu_lines(head):
    nvml, cuda = Nvml(), cuda_facts()
    lines = [f"# {head}",
             "# What NVML and CUDA say; PCIe as generation and lanes, a link in Mbyte/s."]
    devices = list(nvml.devices())
    for i, device in enumerate(devices):
        uuid = nvml.text("nvmlDeviceGetUUID", device).removeprefix("GPU-").replace("-", "")
        ordinal, architecture, fds = cuda.get(uuid, (-1, 0, 0))
        switches, links = nvml.switch_links(device)
        if links != switches:
            sys.exit("links to other than switches: write down their ends by hand")
        lines.append(
            f"gpu {nvml.address(device)} uuid=GPU-c0de{i:04x} "
            f"pcie={nvml.number('nvmlDeviceGetMaxPcieLinkGeneration', device)}x"
            f"{nvml.number('nvmlDeviceGetMaxPcieLinkWidth', device)} switches={switches} "
            f"link_mbytes={link_mbytes(nvml, device)} cuda={ordinal} sm={architecture} fds={fds} "
            f"name={nvml.text('nvmlDeviceGetName', device)}")
    for i, a in enumerate(devices):
        for j, b in enumerate(devices):
            if i != j and nvml.status(a, b, NVML_READ) != 0:
                lines.append(f"refused {i} {j}")
            if i != j and nvml.status(a, b, NVML_ATOMICS) == 0:
                lines.append(f"atomics {i} {j}")
    return "\n".join(lines) + "\n"


def link_mbytes(nvml, device):
    """Returns NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON (90), from an nvmlFieldValue_t; 0 on error."""
    field = ctypes.create_string_buffer(40)
    field.raw = (90).to_bytes(4, "little") + bytes(36)
    if nvml.library.nvmlDeviceGetFieldValues(device, 1, field) != 0:
        return 0
    if int.from_bytes(field.raw[28:32], "little") != 0:  # nvmlReturn
        return 0
    return int.from_bytes(field.raw[32:36], "little")


def main():
    parser = make_parser(__doc__)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("machine", help="what machine it is")
    arguments = parser.parse_args()
    folder = arguments.folder
    head = f"captured, {arguments.machine}; names and models left out"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "hwloc.xml").write_text(export_hwloc(head))
    (folder / "tree").write_text(pack_tree(head))
    if os.path.exists("/dev/nvidiactl"):
        (folder / "gpus").write_text(gpu_lines(head))


main()
