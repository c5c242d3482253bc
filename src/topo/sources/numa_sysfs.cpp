// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "topo/sources/numa_sysfs.hpp"

#include <algorithm>
#include <charconv>
#include <optional>
#include <string>

#include <fmt/format.h>

namespace oriel::topo {
namespace {

constexpr int kNumbersEnd = 1 << 16;

/// Parsed "8", "8-11", or "8-31:2/4" (of each 4 the first 2).
struct Stretch {
  int first = 0;
  int last = 0;
  int used = 1;
  int group = 1;
};

std::optional<Stretch> stretch_in(std::string_view text) {
  const auto blank = [](char letter) { return letter == ' ' || letter == '\n'; };
  while (!text.empty() && blank(text.front())) text.remove_prefix(1);
  while (!text.empty() && blank(text.back())) text.remove_suffix(1);
  const char* at = text.data();
  const char* const end = at + text.size();
  const auto number = [&](char before, int& value) {
    if (before != 0 && (at == end || *at++ != before)) return false;
    const auto [rest, error] = std::from_chars(at, end, value);
    at = rest;
    return error == std::errc() && value >= 0 && value < kNumbersEnd;
  };
  Stretch stretch;
  if (!number(0, stretch.first)) return std::nullopt;
  stretch.last = stretch.first;
  if (at < end && !number('-', stretch.last)) return std::nullopt;
  if (at < end && !(number(':', stretch.used) && number('/', stretch.group))) return std::nullopt;
  const bool sound = at == end && stretch.used > 0 && stretch.used <= stretch.group;
  return sound ? std::optional(stretch) : std::nullopt;
}

/// Returns the bytes of a node's memory: "Node 1 MemTotal:   131072 kB" among other lines.
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

/// Parses "10 21 21": the distances to each online node, in order. Returns none if one is
/// malformed, since a missing distance would count as the nearest.
std::vector<int> distances_in(std::string_view text, std::size_t count) {
  std::vector<int> distances;
  const char* at = text.data();
  const char* const end = at + text.size();
  for (int distance = 0; at < end;) {
    const auto [rest, error] = std::from_chars(at, end, distance);
    if (error != std::errc() || distance < 1) return {};
    distances.push_back(distance);
    at = std::find_if(rest, end, [](char letter) { return letter != ' '; });
  }
  return distances.size() == count ? distances : std::vector<int>();
}

}  // namespace

std::vector<int> numbers_in(std::string_view text) {
  std::vector<int> numbers;
  while (!text.empty() && numbers.size() <= kNumbersEnd) {
    const std::size_t end = std::min(text.find(','), text.size());
    const std::optional<Stretch> stretch = stretch_in(text.substr(0, end));
    for (int number = stretch ? stretch->first : 0; stretch && number <= stretch->last; ++number) {
      if ((number - stretch->first) % stretch->group < stretch->used) numbers.push_back(number);
    }
    text.remove_prefix(std::min(end + 1, text.size()));
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
    node.memory_gbps = memory_gbps_of(tree, number);
    nodes.push_back(std::move(node));
  }
  return nodes;
}

double memory_gbps_of(const FileTree& tree, int os_index) {
  constexpr std::int64_t kMost = 100'000'000;
  const auto megabytes = tree.read_number(
      fmt::format("{}/node{}/access0/initiators/read_bandwidth", kNumaFolder, os_index));
  if (!megabytes || *megabytes <= 0 || *megabytes > kMost) return 0;
  return static_cast<double>(*megabytes) * 8 / 1000;
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
  if (number && *number >= 0 && *number < kNumbersEnd) {
    return numa_index(machine, static_cast<int>(*number));
  }
  return machine.numa.size() == 1 ? 0 : -1;
}

}  // namespace oriel::topo
