// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <random>

#include <catch2/catch.hpp>
#include <fmt/format.h>
#include <sys/stat.h>

#include "support/words.hpp"
#include "topo/choice/nic_choice.hpp"
#include "topo/choice/paths.hpp"
#include "topo/model/file_tree.hpp"
#include "topo/sources/infiniband_sysfs.hpp"
#include "topo/sources/kfd_sysfs.hpp"
#include "topo/sources/numa_sysfs.hpp"
#include "topo/sources/temporary_tree.hpp"

namespace oriel::topo {
namespace {

using test::has;

using Outcome = SourceReport::Outcome;

/// Adds a device with one port in the layout of mlx5's driver.
void add_nic(const TemporaryTree& tree, const std::string& name, const std::string& pci,
             const std::string& guid, const std::string& card) {
  const std::string device = "/sys/devices/pci0000:00/" + pci;
  const std::string folder = "/sys/class/infiniband/" + name;
  tree.file(device + "/numa_node", "1\n");
  tree.file(device + "/net/ib" + name + "/dev_port", "0\n");
  tree.file(folder + "/node_guid", guid + "\n");
  tree.file(folder + "/sys_image_guid", card + "\n");
  tree.link(folder + "/device", "../../../devices/pci0000:00/" + pci);
  tree.file(folder + "/ports/1/state", "4: ACTIVE\n");
  tree.file(folder + "/ports/1/rate", "400 Gb/sec (4X NDR)\n");
  tree.file(folder + "/ports/1/link_layer", "InfiniBand\n");
}

constexpr const char* kNodes = "/sys/class/kfd/kfd/topology/nodes/";

void add_processor(const TemporaryTree& tree, int node) {
  const std::string folder = kNodes + std::to_string(node);
  tree.file(folder + "/gpu_id", "0\n");
  tree.file(folder + "/properties", "cpu_cores_count 48\nsimd_count 0\n");
}

void add_gpu(const TemporaryTree& tree, int node, int bus) {
  const std::string folder = kNodes + std::to_string(node);
  tree.file(folder + "/gpu_id", std::to_string(1000 + node) + "\n");
  tree.file(folder + "/name", "gfx942\n");
  tree.file(folder + "/properties", "simd_count 1216\nvendor_id 4098\ndomain 0\nlocation_id " +
                                        std::to_string(bus << 8) + "\nunique_id " +
                                        std::to_string(0xabc000 + node) + "\n");
}

void add_link(const TemporaryTree& tree, const char* kind, int from, int to, int number, int type,
              int flags = 0) {
  tree.file(fmt::format("{}{}/{}/{}/properties", kNodes, from, kind, number),
            fmt::format("type {}\nnode_from {}\nnode_to {}\nweight 15\nmin_bandwidth 64000\n"
                        "max_bandwidth 64000\nflags {}\n",
                        type, from, to, flags));
}

}  // namespace

TEST_CASE("small files are read from any root, and what is none is absent", "[req:2.1]") {
  const TemporaryTree files;
  files.file("/a/text", "  two words \n");
  files.file("/a/number", "-1\n");
  files.file("/a/empty", "");
  files.file("/a/long", std::string(FileTree::kMostBytes + 100, 'x'));
  files.link("/a/link", "../somewhere/else");
  ::mkfifo((files.root() + "/a/fifo").c_str(), 0600);
  const FileTree tree(files.root() + "/");
  CHECK(tree.read("/a/text") == "two words");
  CHECK(tree.read("a/text") == "two words");
  CHECK(tree.read("/a/empty") == "");
  CHECK(tree.read("/a/long")->size() == FileTree::kMostBytes);
  CHECK_FALSE(tree.read("/a/absent"));
  CHECK_FALSE(tree.read("/a"));
  CHECK(tree.read("/a/fifo") == "");  // has no writer, and the read does not block
  CHECK(tree.read_number("/a/number") == -1);
  CHECK_FALSE(tree.read_number("/a/text"));
  CHECK(tree.link_name("/a/link") == "else");
  CHECK_FALSE(tree.link_name("/a/text"));
  CHECK(tree.list("/a").size() == 6);
  CHECK(tree.list("/b").empty());
}

TEST_CASE("the kernel's lists of numbers are read in all their forms", "[req:2.1]") {
  using Numbers = std::vector<int>;
  CHECK(numbers_in("") == Numbers());
  CHECK(numbers_in("0") == Numbers{0});
  CHECK(numbers_in("0-2,8\n") == Numbers{0, 1, 2, 8});
  CHECK(numbers_in("0-3,8-11:2/4") == Numbers{0, 1, 2, 3, 8, 9});
  CHECK(numbers_in("0-9:1/3") == Numbers{0, 3, 6, 9});
  CHECK(numbers_in("5, 1-2 ,2-3,1") == Numbers{1, 2, 3, 5});
  CHECK(numbers_in("65535") == Numbers{65535});
  // Invalid parts are skipped, and only those.
  for (const char* odd :
       {"x", "-1", "3-", "-3", "4-2", "1-2-3", "1:2", "8-11:2", "8-11:0/4", "8-11:5/4", "8-11:2/0",
        "8-11:2/4x", "65536", "0-99999999", "0x1", "99999999999999999999", ":", "/"}) {
    INFO(odd);
    CHECK(numbers_in(odd) == Numbers());
    CHECK(numbers_in("7," + std::string(odd) + ",9") == Numbers{7, 9});
  }
}

TEST_CASE("RDMA NICs are read from sysfs", "[req:2.1]") {
  const TemporaryTree files;
  add_nic(files, "mlx5_0", "0000:1b:00.0", "b8ce:f603:00e1:2d34", "b8ce:f603:00e1:2d34");
  add_nic(files, "mlx5_1", "0000:1b:00.1", "b8ce:f603:00e1:2d35", "b8ce:f603:00e1:2d34");
  files.file("/sys/class/infiniband/mlx5_1/ports/1/state", "1: DOWN\n");
  files.file("/sys/class/infiniband/mlx5_1/ports/1/link_layer", "Ethernet\n");
  files.file("/sys/class/infiniband/mlx5_1/ports/1/rate", "2.5 Gb/sec (1X SDR)\n");
  const InfinibandList list = read_infiniband(FileTree(files.root()));
  REQUIRE(list.nics.size() == 2);
  CHECK(list.nics[0] == Nic{.name = "mlx5_0",
                            .interface = "ibmlx5_0",
                            .pci = PciAddress{0, 0x1b, 0, 0},
                            .numa = 1,
                            .gbps = 400,
                            .guid = 0xb8cef60300e12d34,
                            .card = 0xb8cef60300e12d34});
  CHECK(list.nics[1].card == 0xb8cef60300e12d34);
  CHECK(list.nics[1].guid == 0xb8cef60300e12d35);
  CHECK(list.nics[1].layer == Nic::Layer::ethernet);
  CHECK_FALSE(list.nics[1].active);
  CHECK(list.nics[1].gbps == 2.5);
  CHECK(list.report ==
        SourceReport{"/sys/class/infiniband", Outcome::used, "2 ports, 1 of them not active"});
}

TEST_CASE("without an RDMA driver, or with odd files, nothing is made up", "[req:2.2]") {
  const TemporaryTree files;
  CHECK(read_infiniband(FileTree(files.root())).report.outcome == Outcome::absent);
  CHECK(read_kfd(FileTree(files.root())).report.outcome == Outcome::absent);

  files.folder("/sys/class/infiniband/no_ports");
  files.file("/sys/class/infiniband/odd/ports/0/state", "4: ACTIVE");
  files.file("/sys/class/infiniband/odd/ports/x/state", "4: ACTIVE");
  files.file("/sys/class/infiniband/odd/ports/01/state", "4: ACTIVE");
  files.folder("/sys/class/infiniband/bare/ports/2");
  files.file("/sys/class/infiniband/bare/node_guid", "not a guid");
  files.file("/sys/class/infiniband/bare/ports/2/rate", "fast");
  const InfinibandList list = read_infiniband(FileTree(files.root()));
  REQUIRE(list.nics.size() == 1);
  CHECK(list.nics[0] ==
        Nic{.name = "bare", .port = 2, .layer = Nic::Layer::other, .active = false});
}

TEST_CASE("links of AMD's GPUs say who maps whose memory", "[H1]") {
  const TemporaryTree files;
  add_processor(files, 0);
  for (int node = 1; node <= 3; ++node) add_gpu(files, node, 0x10 * node);
  add_link(files, "io_links", 1, 0, 0, 2);
  add_link(files, "io_links", 1, 2, 1, 11);
  add_link(files, "io_links", 2, 1, 0, 11);
  add_link(files, "p2p_links", 1, 3, 0, 2, 1 << 3);  // one way, without 64-bit atomics
  add_link(files, "io_links", 2, 3, 1, 2, 1 << 4);   // forbids peer access
  const KfdList list = read_kfd(FileTree(files.root()));
  REQUIRE(list.gpus.size() == 3);
  CHECK(list.gpus[0].name == "gfx942");
  CHECK(list.gpus[0].pci == PciAddress{0, 0x10, 0, 0});
  CHECK(list.gpus[0].uuid == "GPU-0000000000abc001");
  CHECK(list.gpus[0].vendor == GpuVendor::amd);
  CHECK(list.gpus[0].link_gbps == 512);
  CHECK(list.gpus[2].link_gbps == 0);
  const auto maps = [&](int from, int to) {
    for (const GpuPair& pair : list.pairs) {
      if (pair.from == from && pair.to == to) return pair.maps == true;
    }
    return false;
  };
  CHECK(list.pairs.size() == 6);
  CHECK(maps(0, 1));
  CHECK(maps(1, 0));
  CHECK(maps(0, 2));
  CHECK_FALSE(maps(2, 0));
  CHECK_FALSE(maps(1, 2));
  CHECK(list.pairs[0].links == 1);
  CHECK(list.pairs[0].atomics);
  CHECK_FALSE(list.pairs[1].atomics);
  CHECK(list.report.detail == "3 GPUs");
}

TEST_CASE("weight and bandwidth of an xGMI link give hops and links", "[H1]") {
  const TemporaryTree files;
  for (int node = 1; node <= 4; ++node) add_gpu(files, node, 0x10 * node);
  const auto link = [&](int from, int number, int to, const std::string& facts) {
    files.file(fmt::format("{}{}/io_links/{}/properties", kNodes, from, number),
               fmt::format("type 11\nnode_from {}\nnode_to {}\n{}", from, to, facts));
  };
  link(1, 0, 2, "weight 15\nmin_bandwidth 50000\nmax_bandwidth 200000\nflags 0\n");
  link(1, 1, 3, "weight 30\nmin_bandwidth 50000\nmax_bandwidth 50000\nflags 0\n");
  link(1, 2, 4, "weight 15\nmin_bandwidth 0\nmax_bandwidth 64000\nflags 0\n");
  const KfdList list = read_kfd(FileTree(files.root()));
  const auto pair = [&](int to) { return list.pairs[static_cast<std::size_t>(to - 1)]; };
  CHECK(pair(1).links == 4);
  CHECK(pair(1).hops == 1);
  CHECK(pair(2).maps == true);
  CHECK(pair(2).links == 0);
  CHECK(pair(2).hops == 2);
  CHECK(pair(3).links == 1);
  CHECK(list.gpus[0].link_gbps == 400);
  // Each pair has its own bandwidth, independent of the GPU's slowest link.
  CHECK(pair(1).gbps == 1600);
  CHECK(pair(3).gbps == 512);
  Machine machine;
  machine.gpus = list.gpus;
  machine.pairs = list.pairs;
  CHECK(path_between(machine, 0, 1).gbps == 1600);
  CHECK(path_between(machine, 0, 3).gbps == 512);
  CHECK(path_between(machine, 0, 2).gbps == 400);
}

TEST_CASE("GPUs that the driver has no name for get their instruction set's, partitions a number",
          "[H1]") {
  const TemporaryTree files;
  for (int node = 1; node <= 3; ++node) {
    const std::string folder = kNodes + std::to_string(node);
    files.file(folder + "/gpu_id", std::to_string(node));
    files.file(folder + "/name", node == 1 ? "aldebaran\n" : "ip discovery\n");
    files.file(folder + "/properties", "gfx_target_version 90402\nunique_id 7\nlocation_id " +
                                           std::to_string(0x500 + node) + "\n");
  }
  const KfdList list = read_kfd(FileTree(files.root()));
  REQUIRE(list.gpus.size() == 3);
  CHECK(list.gpus[0].name == "aldebaran");
  CHECK(list.gpus[1].name == "AMD gfx942");
  CHECK(list.gpus[0].uuid == "GPU-0000000000000007");
  CHECK(list.gpus[1].uuid == "GPU-0000000000000007-1");
  CHECK(list.gpus[2].uuid == "GPU-0000000000000007-2");
  for (int i = 0; i < 3; ++i) {
    // Some drivers put the partition number in the place of the PCI function.
    CHECK(list.gpus[static_cast<std::size_t>(i)].pci == PciAddress{0, 5, 0, 0});
    CHECK(list.gpus[static_cast<std::size_t>(i)].partition == i + 1);
  }
}

TEST_CASE("a virtual function names its physical function", "[req:2.5]") {
  const TemporaryTree files;
  add_nic(files, "mlx5_0", "0000:14:00.0", "0000:0000:0000:0001", "0000:0000:0000:0009");
  add_nic(files, "mlx5_1", "0000:14:00.2", "0000:0000:0000:0002", "0000:0000:0000:0009");
  files.link("/sys/devices/pci0000:00/0000:14:00.2/physfn", "../0000:14:00.0");
  const InfinibandList list = read_infiniband(FileTree(files.root()));
  REQUIRE(list.nics.size() == 2);
  CHECK_FALSE(list.nics[0].physical);
  CHECK(list.nics[1].physical == PciAddress{0, 0x14, 0, 0});
  Machine machine;
  machine.nics = list.nics;
  CHECK(partners_by_place(machine) == std::vector<int>{-1, -1});  // both are one port
  // A subfunction, a device on another bus behind the function, is the same port as well.
  files.folder("/sys/devices/pci0000:00/0000:14:00.0/mlx5_core.sf.2");
  files.file("/sys/class/infiniband/mlx5_2/ports/1/state", "4: ACTIVE\n");
  files.link("/sys/class/infiniband/mlx5_2/device",
             "../../../devices/pci0000:00/0000:14:00.0/mlx5_core.sf.2");
  machine.nics = read_infiniband(FileTree(files.root())).nics;
  REQUIRE(machine.nics.size() == 3);
  CHECK(machine.nics[2].physical == PciAddress{0, 0x14, 0, 0});
  CHECK(partners_by_place(machine) == std::vector<int>{-1, -1, -1});
}

TEST_CASE("missing and odd files of AMD's driver are left out and counted", "[H1]") {
  const TemporaryTree files;
  add_gpu(files, 1, 0x10);
  add_gpu(files, 2, 0x20);
  files.file(std::string(kNodes) + "3/gpu_id", "1003");          // no properties
  files.file(std::string(kNodes) + "4/properties", "domain 0");  // no id
  files.file(std::string(kNodes) + "5/gpu_id", "many");
  add_link(files, "io_links", 1, 2, 0, 11);
  add_link(files, "io_links", 2, 1, 0, 11);
  files.file(std::string(kNodes) + "1/io_links/1/properties", "type 11\nnode_from 2\nnode_to 1");
  files.folder(std::string(kNodes) + "2/io_links/7");
  files.file(std::string(kNodes) + "2/io_links/8/properties",
             "type 11\nnode_from 2\nnode_to 99999999999999999999999");
  const KfdList list = read_kfd(FileTree(files.root()));
  CHECK(list.gpus.size() == 2);
  CHECK(list.pairs.size() == 2);
  CHECK(list.pairs[0].maps == true);
  CHECK(list.report.detail == "2 GPUs; 5 malformed entries");
}

}  // namespace oriel::topo
