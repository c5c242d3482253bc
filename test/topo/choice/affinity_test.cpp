// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
// Tests processor and memory affinity of GPUs and of CPU ranks, on composed machines.
#include "topo/choice/affinity.hpp"

#include <algorithm>
#include <numeric>
#include <random>

#include <catch2/catch.hpp>

#include "topo/machine/fixture.hpp"
#include "topo/machine/machines.hpp"
#include "topo/sources/numa_sysfs.hpp"
#include "topo/sources/temporary_tree.hpp"

namespace oriel::topo {
namespace {

using Numbers = std::vector<int>;

Numbers range(int first, int count) {
  Numbers numbers(static_cast<std::size_t>(count));
  std::iota(numbers.begin(), numbers.end(), first);
  return numbers;
}

NumaNode node_of(int number, Numbers cpus, std::size_t memory_bytes, Numbers distances = {}) {
  NumaNode node;
  node.os_index = number;
  node.cpus = std::move(cpus);
  node.memory_bytes = memory_bytes;
  node.distances = std::move(distances);
  return node;
}

constexpr std::size_t kGiB = std::size_t{1} << 30;

}  // namespace

TEST_CASE("each GPU has the processors and the memory of its NUMA node", "[req:2.5]") {
  struct Expected {
    const char* machine;
    int gpu;
    Affinity affinity;
  };
  const Expected table[] = {
      {"hgx-8", 0, {range(0, 56), 0}},          {"hgx-8", 3, {range(0, 56), 0}},
      {"hgx-8", 4, {range(56, 56), 1}},         {"hgx-8", 7, {range(56, 56), 1}},
      {"two-cliques", 3, {range(0, 16), 0}},    {"two-cliques", 4, {range(16, 16), 1}},
      {"workstation", 1, {range(0, 32), -1}},  // one node: there is nothing to choose
      {"one-nic", 2, {range(8, 8), 1}},         {"mig", 2, {range(0, 8), -1}},
      {"amd-full-mesh", 7, {range(48, 48), 1}}, {"amd-partial-mesh", 7, {range(0, 64), -1}},
  };
  for (const Expected& row : table) {
    CAPTURE(row.machine, row.gpu);
    CHECK(affinity_of_gpu(load_fixture(row.machine), row.gpu, {}) == row.affinity);
  }
}

TEST_CASE("only what the process may use counts", "[req:2.5]") {
  const Machine machine = hgx_8();
  SECTION("some of the processors near") {
    Allowed allowed{.cpus = Numbers{0, 1, 55, 56, 57}};
    CHECK(affinity_of_gpu(machine, 0, allowed).cpus == Numbers{0, 1, 55});
    CHECK(affinity_of_gpu(machine, 4, allowed).cpus == Numbers{56, 57});
    allowed.memory_nodes = Numbers{0, 1};
    CHECK(affinity_of_gpu(machine, 4, allowed).memory_node == 1);
  }
  SECTION("none of them: the thread stays where it is, and the result says so") {
    const Affinity affinity = affinity_of_gpu(machine, 4, {.cpus = Numbers{2, 3}});
    CHECK(affinity.cpus.empty());
    CHECK(affinity.kept_away);
    CHECK(affinity.memory_node == 1);  // memory is chosen for the GPU
    CHECK_FALSE(affinity_of_gpu(machine, 0, {.cpus = Numbers{2, 3}}).kept_away);
  }
  SECTION("the memory of one node: there is nothing to choose") {
    for (int gpu = 0; gpu < 8; ++gpu) {
      CHECK(affinity_of_gpu(machine, gpu, {.memory_nodes = Numbers{1}}).memory_node == -1);
    }
  }
}

TEST_CASE("without a known NUMA node, threads and memory stay as they are", "[req:2.5]") {
  Machine machine = hgx_8();
  machine.gpus[0].numa = -1;
  CHECK(affinity_of_gpu(machine, 0, {.cpus = Numbers{0, 1}}) == Affinity{});
  machine.gpus[0].numa = 0;
  machine.numa.clear();
  CHECK(affinity_of_gpu(machine, 0, {.cpus = Numbers{0, 1}}) == Affinity{});
  CHECK(affinity_of_processors({}, {.cpus = Numbers{0, 1}}) == Affinity{{0, 1}});
  CHECK(affinity_of_processors({}, {}) == Affinity{});
}

TEST_CASE("memory without processors, and processors without memory, use the nearest",
          "[req:2.5]") {
  // Two sockets, memory beside each that has no processors, and a socket whose memory is absent.
  const std::vector<NumaNode> nodes = {
      node_of(0, {0, 1}, kGiB, {10, 21, 14, 24, 31}),
      node_of(1, {2, 3}, kGiB, {21, 10, 24, 14, 31}), node_of(2, {}, kGiB, {14, 24, 10, 26, 31}),
      node_of(3, {}, kGiB, {24, 14, 26, 10, 31}), node_of(4, {4, 5}, 0, {21, 21, 31, 31, 10})};
  CHECK(affinity_near(nodes, 2, {}) == Affinity{{0, 1}, 2});
  CHECK(affinity_near(nodes, 3, {}) == Affinity{{2, 3}, 3});
  CHECK(affinity_near(nodes, 4, {}) == Affinity{{4, 5}, 0});  // lower of two equally near
  CHECK(affinity_near(nodes, 4, {.memory_nodes = Numbers{1, 2, 3}}).memory_node == 1);
  CHECK(affinity_near(nodes, 1, {.memory_nodes = Numbers{0, 2, 3}}).memory_node == 3);
  CHECK(affinity_near(nodes, 1, {.memory_nodes = Numbers{4}}).memory_node == -1);
  CHECK(affinity_of_processors(nodes, {.cpus = Numbers{4}}) == Affinity{{4}, 0});
  SECTION("without distances there is no other near") {
    auto silent = nodes;
    for (NumaNode& node : silent) node.distances.clear();
    CHECK(affinity_near(silent, 2, {}) == Affinity{{}, 2});
    CHECK(affinity_near(silent, 4, {}) == Affinity{{4, 5}, -1});
  }
  SECTION("where no node's memory is known, each counts as having some") {
    auto silent = nodes;
    for (NumaNode& node : silent) node.memory_bytes = 0;
    CHECK(affinity_near(silent, 4, {}) == Affinity{{4, 5}, 4});
  }
}

TEST_CASE("a CPU rank's memory is near its processors if these are of one node", "[req:2.5]") {
  const Machine machine = cpu_only();  // 0-3 and 4-7
  struct Expected {
    Numbers cpus;
    int memory_node;
  };
  const Expected table[] = {
      {{0}, 0},     {{3}, 0},          {{4}, 1}, {{5, 7}, 1},
      {{3, 4}, -1}, {range(0, 8), -1}, {{}, -1}, {{6, 4096}, 1},  // 4096 is offline
      {{9}, -1},
  };
  for (const Expected& row : table) {
    CAPTURE(row.cpus);
    CHECK(affinity_of_processors(machine.numa, {.cpus = row.cpus}) ==
          Affinity{row.cpus, row.memory_node});
  }
  CHECK(affinity_of_processors(machine.numa, {}) == Affinity{});
}

TEST_CASE("memory listed beside processors of other nodes does not take them over", "[req:2.5]") {
  // hwloc lists memory that belongs to no socket, or a second memory of one socket, in this way.
  const std::vector<NumaNode> nodes = {node_of(0, range(0, 4), kGiB), node_of(1, range(4, 4), kGiB),
                                       node_of(2, range(0, 8), kGiB),
                                       node_of(3, range(0, 4), kGiB)};
  CHECK(affinity_of_processors(nodes, {.cpus = Numbers{1, 2}}).memory_node == 0);
  CHECK(affinity_of_processors(nodes, {.cpus = Numbers{5}}).memory_node == 1);
  CHECK(affinity_of_processors(nodes, {.cpus = range(0, 8)}).memory_node == -1);
}

TEST_CASE("the choice does not depend on the order of the list", "[req:2.5]") {
  const unsigned seed = std::random_device{}();
  CAPTURE(seed);
  std::mt19937 random(seed);
  for (int round = 0; round < 300; ++round) {
    std::vector<NumaNode> nodes;
    const int count = 1 + static_cast<int>(random() % 6);
    for (int i = 0; i < count; ++i) {
      Numbers distances;
      for (int j = 0; j < count; ++j) {
        distances.push_back(i == j ? 10 : 20 + static_cast<int>(random() % 2));
      }
      if (random() % 4 == 0) distances.clear();
      nodes.push_back(node_of(i * 2, range(i * 3, static_cast<int>(random() % 4)),
                              random() % 3 * kGiB, distances));
    }
    Allowed allowed;
    if (random() % 2 == 0) {
      allowed.cpus = Numbers();
      for (int cpu = 0; cpu < count * 3; ++cpu) {
        if (random() % 2 == 0) allowed.cpus->push_back(cpu);
      }
    }
    if (random() % 2 == 0) allowed.memory_nodes = Numbers{0, 2, 6};
    Machine machine;
    machine.numa = nodes;
    const std::vector<NumaNode> other = shuffled(machine, static_cast<unsigned>(random())).numa;
    for (int i = 0; i < count; ++i) {
      const Affinity affinity = affinity_near(nodes, i, allowed);
      const auto place = std::find_if(other.begin(), other.end(),
                                      [&](const NumaNode& node) { return node.os_index == i * 2; });
      CHECK(affinity == affinity_near(other, static_cast<int>(place - other.begin()), allowed));
      CHECK(std::is_sorted(affinity.cpus.begin(), affinity.cpus.end()));
      if (allowed.cpus) {
        CHECK(std::includes(allowed.cpus->begin(), allowed.cpus->end(), affinity.cpus.begin(),
                            affinity.cpus.end()));
      }
    }
    CHECK(affinity_of_processors(nodes, allowed) == affinity_of_processors(other, allowed));
  }
}

TEST_CASE("the processors near several GPUs are those near any of them", "[req:2.5]") {
  CHECK(united({0, 1, 5}, {1, 2}) == Numbers{0, 1, 2, 5});
  CHECK(united({}, {3}) == Numbers{3});
  CHECK(united({}, {}).empty());
}

TEST_CASE("the text of an affinity has its processors and NUMA node, or that any will do",
          "[req:2.5]") {
  CHECK(describe({{0, 1, 2, 5, 7, 8}, 1}) == "processors 0-2,5,7-8, host memory of NUMA node 1");
  CHECK(describe({}) == "any processors, host memory as it comes");
  CHECK(ranges_of({}).empty());
  CHECK(ranges_of({4095}) == "4095");
}

TEST_CASE("NUMA nodes are read as the kernel lists them", "[req:2.1][req:2.5]") {
  const TemporaryTree files;
  const FileTree tree(files.root());
  CHECK(read_numa_nodes(tree).empty());
  files.file("/sys/devices/system/node/online", "0,2-3\n");
  const auto add = [&](int number, const char* cpus, const char* memory, const char* distances) {
    const std::string folder = "/sys/devices/system/node/node" + std::to_string(number);
    files.file(folder + "/cpulist", cpus);
    files.file(folder + "/meminfo", memory);
    files.file(folder + "/distance", distances);
  };
  add(0, "0-1,1500-1501\n", "Node 0 MemTotal:       16777216 kB\nNode 0 MemFree:        1 kB\n",
      "10 21 31\n");
  add(2, "\n", "Node 2 MemTotal:       0 kB\n", "21 10\n");  // one distance is missing
  add(3, "5,x,4-2,99999999", "Node 3 MemTotal: much", "a b c");
  const std::vector<NumaNode> nodes = read_numa_nodes(tree);
  REQUIRE(nodes.size() == 3);
  CHECK(nodes[0] == node_of(0, {0, 1, 1500, 1501}, 16 * kGiB, {10, 21, 31}));
  CHECK(nodes[1] == node_of(2, {}, 0));
  CHECK(nodes[2] == node_of(3, {5}, 0));
  add(0, "0", "", "10 0 31\n");  // another node would be nearer than the node itself
  CHECK(read_numa_nodes(tree)[0].distances.empty());
}

}  // namespace oriel::topo
