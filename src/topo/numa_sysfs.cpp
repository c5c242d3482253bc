// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "topo/numa_sysfs.hpp"

#include <algorithm>
#include <charconv>
#include <string>

#include <fmt/format.h>

namespace oriel::topo {
namespace {

constexpr int kMostNumbers = 1 << 16;

/// The bytes of a node's memory: "Node 1 MemTotal:   131072 kB" among other lines.
std::size_t memory_in(std::string_view text) {
  constexpr std::string_view kKey = "MemTotal:";
  const std::size_t key = text.find(kKey);
  if (key == std::string_view::npos) return 0;
  text.remove_prefix(key + kKey.size());
  const std::size_t digits = text.find_first_not_of(' ');
  if (digits == std::string_view::npos) return 0;
  std::size_t kib = 0;
  const auto [rest, error] = std::from_chars(text.data() + digits, text.data() + text.size(), kib);
  return error == std::errc() && kib < std::size_t{1} << 48 ? kib << 10 : 0;
}

/// "10 21 21": to each node that is online, in their order.
std::vector<int> distances_in(std::string_view text, std::size_t count) {
  std::vector<int> distances;
  const char* at = text.data();
  const char* const end = at + text.size();
  for (int distance = 0; at < end;) {
    const auto [rest, error] = std::from_chars(at, end, distance);
    if (error != std::errc()) break;
    distances.push_back(distance);
    at = std::find_if(rest, end, [](char letter) { return letter != ' '; });
  }
  if (distances.size() != count) distances.clear();
  return distances;
}

}  // namespace

std::vector<int> numbers_in(std::string_view text) {
  std::vector<int> numbers;
  const char* at = text.data();
  const char* const end = at + text.size();
  while (at < end && numbers.size() <= kMostNumbers) {
    int first = 0;
    auto read = std::from_chars(at, end, first);
    int last = first;
    if (read.ec == std::errc() && read.ptr < end && *read.ptr == '-') {
      read = std::from_chars(read.ptr + 1, end, last);
    }
    if (read.ec == std::errc() && first >= 0 && last < kMostNumbers) {
      for (int number = first; number <= last; ++number) numbers.push_back(number);
    }
    at = std::find(at, end, ',');
    if (at < end) ++at;
  }
  std::sort(numbers.begin(), numbers.end());
  numbers.erase(std::unique(numbers.begin(), numbers.end()), numbers.end());
  return numbers;
}

std::vector<NumaNode> read_numa_nodes(const FileTree& tree) {
  std::vector<NumaNode> nodes;
  const std::vector<int> online =
      numbers_in(tree.read(fmt::format("{}/online", kNumaFolder)).value_or(""));
  for (const int number : online) {
    const std::string folder = fmt::format("{}/node{}", kNumaFolder, number);
    NumaNode node;
    node.os_index = number;
    node.cpus = numbers_in(tree.read(folder + "/cpulist").value_or(""));
    node.memory_bytes = memory_in(tree.read(folder + "/meminfo").value_or(""));
    node.distances = distances_in(tree.read(folder + "/distance").value_or(""), online.size());
    nodes.push_back(std::move(node));
  }
  return nodes;
}

SourceReport add_numa_nodes(const FileTree& tree, Machine& machine) {
  using Outcome = SourceReport::Outcome;
  machine.numa = read_numa_nodes(tree);
  if (machine.numa.empty()) return {kNumaFolder, Outcome::absent, "it names no NUMA node"};
  return {kNumaFolder, Outcome::used,
          fmt::format("{} NUMA node{}, but no PCI buses", machine.numa.size(),
                      machine.numa.size() == 1 ? "" : "s")};
}

int numa_index(const Machine& machine, int os_index) {
  const auto found = std::find_if(machine.numa.begin(), machine.numa.end(),
                                  [&](const NumaNode& node) { return node.os_index == os_index; });
  return found == machine.numa.end() ? -1 : static_cast<int>(found - machine.numa.begin());
}

int numa_of_device(const FileTree& tree, const Machine& machine, const PciAddress& device) {
  const auto number =
      tree.read_number(fmt::format("/sys/bus/pci/devices/{}/numa_node", device.to_string()));
  if (!number || *number < 0 || *number >= kMostNumbers) return -1;
  return numa_index(machine, static_cast<int>(*number));
}

}  // namespace oriel::topo
