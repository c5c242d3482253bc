// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "topo/kfd_sysfs.hpp"

#include <charconv>
#include <map>
#include <optional>
#include <sstream>

#include <fmt/format.h>

namespace oriel::topo {
namespace {

constexpr const char* kFolder = "/sys/class/kfd/kfd/topology/nodes";
// The driver's numbers of kinds of links, and its flags of a link (HsaLinkProperty of libhsakmt).
constexpr std::uint64_t kXgmi = 11;
constexpr std::uint64_t kNoAtomics = 1U << 2 | 1U << 3;
constexpr std::uint64_t kNoPeerAccess = 1U << 4;

using Properties = std::map<std::string, std::uint64_t>;

/// Lines of "name number"; others are left out. Nothing where there is no such file.
std::optional<Properties> read_properties(const FileTree& tree, const std::string& path) {
  const auto text = tree.read(path);
  if (!text) return std::nullopt;
  Properties properties;
  std::istringstream lines(*text);
  for (std::string line; std::getline(lines, line);) {
    const std::size_t space = line.find(' ');
    if (space == std::string::npos) continue;
    std::uint64_t number = 0;
    const char* const end = line.data() + line.size();
    const auto [rest, error] = std::from_chars(line.data() + space + 1, end, number);
    if (error == std::errc() && rest == end) properties[line.substr(0, space)] = number;
  }
  return properties;
}

std::uint64_t value_of(const Properties& properties, const char* name) {
  const auto found = properties.find(name);
  return found == properties.end() ? 0 : found->second;
}

Gpu gpu_of(const FileTree& tree, const std::string& folder, const Properties& properties) {
  Gpu gpu;
  gpu.vendor = GpuVendor::amd;
  gpu.name = tree.read(folder + "/name").value_or("");
  const std::uint64_t location = value_of(properties, "location_id");
  gpu.pci = PciAddress{static_cast<std::uint32_t>(value_of(properties, "domain")),
                       static_cast<std::uint8_t>(location >> 8 & 0xff),
                       static_cast<std::uint8_t>(location >> 3 & 0x1f),
                       static_cast<std::uint8_t>(location & 7)};
  if (const std::uint64_t unique = value_of(properties, "unique_id"); unique != 0) {
    gpu.uuid = fmt::format("GPU-{:016x}", unique);
  }
  return gpu;
}

class Reader {
 public:
  explicit Reader(const FileTree& tree) : tree_(tree) {}

  KfdList read() {
    for (const std::string& node : tree_.list(kFolder)) add_node(node);
    add_pairs();
    for (const auto& [node, place] : places_) {
      add_links(node, place, "io_links");
      add_links(node, place, "p2p_links");
    }
    list_.report.detail =
        fmt::format("{} GPU{}", list_.gpus.size(), list_.gpus.size() == 1 ? "" : "s");
    if (odd_ > 0) list_.report.detail += fmt::format("; {} entries made no sense", odd_);
    return std::move(list_);
  }

 private:
  void add_node(const std::string& node) {
    const std::string folder = fmt::format("{}/{}", kFolder, node);
    const auto id = tree_.read_number(folder + "/gpu_id");
    const auto properties = read_properties(tree_, folder + "/properties");
    if (id == 0) return;  // a processor
    if (!id || !properties) {
      ++odd_;
      return;
    }
    places_[node] = static_cast<int>(list_.gpus.size());
    list_.gpus.push_back(gpu_of(tree_, folder, *properties));
  }

  void add_pairs() {
    const auto count = static_cast<int>(list_.gpus.size());
    for (int from = 0; from < count; ++from) {
      for (int to = 0; to < count; ++to) {
        if (from == to) continue;
        GpuPair pair;
        pair.from = from;
        pair.to = to;
        pair.maps = false;
        list_.pairs.push_back(pair);
      }
    }
  }

  GpuPair& pair_at(int from, int to) {
    const auto count = static_cast<int>(list_.gpus.size());
    const int index = from * (count - 1) + (to < from ? to : to - 1);
    return list_.pairs[static_cast<std::size_t>(index)];
  }

  void add_links(const std::string& node, int from, const char* kind) {
    const std::string folder = fmt::format("{}/{}/{}", kFolder, node, kind);
    for (const std::string& link : tree_.list(folder)) {
      const auto properties = read_properties(tree_, fmt::format("{}/{}/properties", folder, link));
      if (!properties || std::to_string(value_of(*properties, "node_from")) != node) {
        ++odd_;
        continue;
      }
      const auto to = places_.find(std::to_string(value_of(*properties, "node_to")));
      if (to == places_.end() || to->second == from) continue;  // a processor's memory
      add_link(*properties, from, to->second);
    }
  }

  void add_link(const Properties& properties, int from, int to) {
    GpuPair& pair = pair_at(from, to);
    const std::uint64_t flags = value_of(properties, "flags");
    if ((flags & kNoPeerAccess) != 0) return;
    pair.maps = true;
    pair.atomics = (flags & kNoAtomics) == 0;
    if (value_of(properties, "type") != kXgmi) return;
    pair.links = 1;
    pair.hops = 1;
    const double gbps = static_cast<double>(value_of(properties, "max_bandwidth")) * 8 / 1000;
    double& known = list_.gpus[static_cast<std::size_t>(from)].link_gbps;
    if (gbps > 0 && (known == 0 || gbps < known)) known = gbps;
  }

  const FileTree& tree_;
  KfdList list_;
  std::map<std::string, int> places_;  // of GPUs, by the name of their node
  int odd_ = 0;
};

}  // namespace

KfdList read_kfd(const FileTree& tree) {
  if (tree.exists(kFolder)) {
    KfdList list = Reader(tree).read();
    list.report.source = kFolder;
    return list;
  }
  KfdList list;
  list.report.source = kFolder;
  list.report.outcome = SourceReport::Outcome::absent;
  list.report.detail = "there is no such folder: AMD's compute driver is not loaded, or hidden";
  return list;
}

}  // namespace oriel::topo
