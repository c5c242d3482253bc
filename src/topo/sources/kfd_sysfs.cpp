// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "topo/sources/kfd_sysfs.hpp"

#include <algorithm>
#include <charconv>
#include <map>
#include <optional>
#include <set>
#include <sstream>

#include <fmt/format.h>

namespace oriel::topo {
namespace {

constexpr const char* kKfdFolder = "/sys/class/kfd/kfd/topology/nodes";
// Link types and link flags of the driver (HsaLinkProperty of libhsakmt).
constexpr std::uint64_t kXgmi = 11;
constexpr std::uint64_t kNoAtomics = 1U << 2 | 1U << 3;
constexpr std::uint64_t kNoPeerAccess = 1U << 4;
// Weight of an xGMI link per hop. The driver lists a link between all GPUs of a hive, even if the
// path leads through others.
constexpr std::uint64_t kXgmiHop = 15;
// Weight of a link between partitions of one GPU. Between partitions of two GPUs, the weight is
// always the link's plus this value for both GPUs (kfd_crat.c).
constexpr std::uint64_t kInsideGpu = 13;
constexpr std::uint64_t kBetweenPartitions = 2 * kInsideGpu + kXgmiHop;
constexpr std::uint64_t kMostLinks = 64;

using Properties = std::map<std::string, std::uint64_t>;

/// Reads lines of "name number" and ignores others. Returns nothing if there is no such file.
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

/// Returns the driver's name of the GPU. Newer GPUs have no name, but the number of their
/// instruction set: 90402 for gfx942.
std::string name_of(const FileTree& tree, const std::string& folder, const Properties& properties) {
  std::string name = tree.read(folder + "/name").value_or("");
  const std::uint64_t version = value_of(properties, "gfx_target_version");
  if (version == 0 || (!name.empty() && name != "ip discovery")) return name;
  return fmt::format("AMD gfx{}{:x}{:x}", version / 10000, version / 100 % 100, version % 100);
}

Gpu gpu_of(const FileTree& tree, const std::string& folder, const Properties& properties) {
  Gpu gpu;
  gpu.vendor = GpuVendor::amd;
  gpu.name = name_of(tree, folder, properties);
  // The lower half holds bus, device and function. The partition number is in the highest four bits
  // in some kernel versions, in the function in others (kfd_topology.c).
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

/// Returns the number shared by all partitions of a GPU: the beginning of its UUID.
std::string_view unique_of(const Gpu& gpu) {
  constexpr std::size_t kLetters = 20;  // "GPU-" and 16 digits
  return std::string_view(gpu.uuid).substr(0, kLetters);
}

class KfdReader {
 public:
  explicit KfdReader(const FileTree& tree) : tree_(tree) {}

  KfdList read() {
    for (const std::string& node : tree_.list(kKfdFolder)) add_node(node);
    undo_functions();
    number_partitions();
    add_pairs();
    for (const auto& [node, place] : places_) {
      add_links(node, place, "io_links");
      add_links(node, place, "p2p_links");
    }
    list_.report.detail =
        fmt::format("{} GPU{}", list_.gpus.size(), list_.gpus.size() == 1 ? "" : "s");
    if (odd_ > 0) list_.report.detail += fmt::format("; {} malformed entries", odd_);
    return std::move(list_);
  }

 private:
  void add_node(const std::string& node) {
    const std::string folder = fmt::format("{}/{}", kKfdFolder, node);
    const auto id = tree_.read_number(folder + "/gpu_id");
    const auto properties = read_properties(tree_, folder + "/properties");
    if (id == 0) return;  // a processor
    // Lists one GPU more than allowed, so that check() refuses the machine, but not so many that
    // pairs fill the memory.
    if (list_.gpus.size() > kMachineLimits.gpus) return;
    if (!id || !properties) {
      ++odd_;
      return;
    }
    Gpu gpu = gpu_of(tree_, folder, *properties);
    // Partitions of one GPU share its unique_id.
    const auto twins = std::count_if(list_.gpus.begin(), list_.gpus.end(), [&](const Gpu& other) {
      return !gpu.uuid.empty() && other.uuid.starts_with(gpu.uuid);
    });
    if (twins > 0) gpu.uuid += fmt::format("-{}", twins);
    places_[node] = static_cast<int>(list_.gpus.size());
    numbers_.push_back(static_cast<int>(value_of(*properties, "location_id") >> 28 & 0xf));
    list_.gpus.push_back(std::move(gpu));
  }

  /// Merges functions that some drivers use to distinguish partitions of a GPU: all partitions get
  /// function 0.
  void undo_functions() {
    for (const Gpu& gpu : list_.gpus) {
      const auto is_same_gpu = [&](const Gpu& other) {
        return !unique_of(other).empty() && unique_of(other) == unique_of(gpu) &&
               other.pci->domain == gpu.pci->domain && other.pci->bus == gpu.pci->bus &&
               other.pci->device == gpu.pci->device;
      };
      if (std::count_if(list_.gpus.begin(), list_.gpus.end(), is_same_gpu) < 2) continue;
      for (std::size_t i = 0; i < list_.gpus.size(); ++i) {
        if (!is_same_gpu(list_.gpus[i]) || list_.gpus[i].pci->function == 0) continue;
        if (numbers_[i] == 0) numbers_[i] = list_.gpus[i].pci->function;
        list_.gpus[i].pci->function = 0;
      }
    }
  }

  /// Numbers GPUs with one PCI function as partitions of one GPU. Generates numbers if the driver's
  /// are not distinct.
  void number_partitions() {
    std::map<PciAddress, std::vector<std::size_t>> functions;
    for (std::size_t i = 0; i < list_.gpus.size(); ++i) {
      functions[*list_.gpus[i].pci].push_back(i);
    }
    for (const auto& [function, members] : functions) {
      if (members.size() < 2) continue;
      std::set<int> numbers;
      for (const std::size_t member : members) numbers.insert(numbers_[member]);
      const bool reported = numbers.size() == members.size();
      for (std::size_t i = 0; i < members.size(); ++i) {
        list_.gpus[members[i]].partition = reported ? numbers_[members[i]] : static_cast<int>(i);
      }
    }
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
    const std::string folder = fmt::format("{}/{}/{}", kKfdFolder, node, kind);
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
    const std::uint64_t weight = value_of(properties, "weight");
    const std::uint64_t hops = weight == kBetweenPartitions ? 1 : weight / kXgmiHop;
    if (hops > 1 && hops <= kMostLinks) {
      pair.hops = static_cast<int>(hops);
      return;
    }
    pair.hops = 1;
    // Bandwidths in Mbyte/s: of all links between the two, and of one link. Older drivers report
    // only the former. For partitions of two GPUs, no driver reports either.
    const std::uint64_t all = value_of(properties, "max_bandwidth");
    const std::uint64_t one = value_of(properties, "min_bandwidth");
    const std::uint64_t links = one > 0 && all > one ? std::min(all / one, kMostLinks) : 1;
    pair.links = static_cast<int>(links);
    pair.gbps = static_cast<double>(all) * 8 / 1000;
    if (weight == kInsideGpu)
      return;  // memory bandwidth; gives no information about the GPU's links
    const double gbps = pair.gbps / static_cast<double>(links);
    double& known = list_.gpus[static_cast<std::size_t>(from)].link_gbps;
    if (gbps > 0 && (known == 0 || gbps < known)) known = gbps;
  }

  const FileTree& tree_;
  KfdList list_;
  std::map<std::string, int> places_;  // index of the GPU by node name
  std::vector<int> numbers_;           // partition number from the driver, by GPU
  int odd_ = 0;
};

}  // namespace

KfdList read_kfd(const FileTree& tree) {
  if (tree.exists(kKfdFolder)) {
    KfdList list = KfdReader(tree).read();
    list.report.source = kKfdFolder;
    return list;
  }
  KfdList list;
  list.report.source = kKfdFolder;
  list.report.outcome = SourceReport::Outcome::absent;
  list.report.detail = "there is no such folder: AMD's compute driver is not loaded, or hidden";
  return list;
}

}  // namespace oriel::topo
