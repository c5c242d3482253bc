// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "topo/machine/process_machine.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <utility>

#include <fmt/format.h>
#include <unistd.h>

#include "base/log.hpp"
#include "base/try.hpp"
#include "topo/machine/described_machine.hpp"
#include "topo/machine/discover.hpp"
#include "topo/machine/machine_file.hpp"
#include "topo/model/nvlink_generation.hpp"
#include "topo/sources/add_nvml.hpp"
#include "topo/sources/cuda_facts.hpp"
#include "topo/sources/infiniband_sysfs.hpp"
#include "topo/sources/numa_sysfs.hpp"
#include "topo/sources/nvml_reader.hpp"
#include "topo/sources/pci_sysfs.hpp"

namespace oriel::topo {
namespace {

using std::chrono::steady_clock;

double milliseconds_since(steady_clock::time_point begin) {
  return std::chrono::duration<double, std::milli>(steady_clock::now() - begin).count();
}

/// Returns the GPUs that NVIDIA's kernel module lists, including those hidden from this process.
std::vector<PciAddress> gpus_of_driver(const FileTree& files) {
  std::vector<PciAddress> addresses;
  for (const std::string& name : files.list("/proc/driver/nvidia/gpus")) {
    if (const auto address = parse_pci_address(name); address.ok()) addresses.push_back(*address);
  }
  return addresses;
}

/// Adds NVML's information to CUDA's.
void add_nvml(const MachineSources& sources, CommunicatorMachine& found) {
  Machine& machine = found.machine;
  NvmlList list = read_nvml(sources.nvml(), {.from = &machine.gpus, .pcie_links = false});
  machine.sources.push_back(list.report);
  found.may_learn_more = false;
  if (list.report.outcome != SourceReport::Outcome::used) return;
  found.links_known = true;
  add_nvml_gpus(sources.files, std::move(list), machine);
}

/// Adds the GPUs to a machine whose NUMA nodes are known.
Status add_gpus(const MachineSources& sources, CommunicatorMachine& found) {
  CudaFacts facts = read_cuda_facts(found.machine);
  ORIEL_CHECK(std::move(facts.complete));
  found.machine.sources.push_back(facts.report);
  add_places_and_speeds(sources.files, found.machine);
  const bool imex_channel = !sources.files.list("/dev/nvidia-caps-imex-channels").empty();
  found.nvml_reason =
      reason_to_ask_nvml(found.machine.gpus, gpus_of_driver(sources.files), imex_channel);
  found.may_learn_more = found.nvml_reason != NvmlReason::none;
  if (found.nvml_reason == NvmlReason::fabric) add_nvml(sources, found);
  return {};
}

double fastest_port_of(const std::vector<Nic>& nics) {
  double fastest = 0;
  for (const Nic& nic : nics) fastest = std::max(fastest, nic.active ? nic.gbps : 0);
  return fastest;
}

/// Returns the speed of the fastest active port, for RDMA or not. Ignores interfaces without
/// hardware, whose speed is arbitrary.
double fastest_network_of(const FileTree& files) {
  double fastest = fastest_port_of(read_infiniband(files).nics);
  for (const NetworkInterface& one : read_network_interfaces(files)) {
    if (one.up && !one.ports.empty()) fastest = std::max(fastest, one.gbps);
  }
  return fastest;
}

std::string reports_of(const Machine& machine) {
  std::string text;
  for (const SourceReport& report : machine.sources) {
    text += fmt::format("{}{}: {}", text.empty() ? "" : "; ", report.source, report.detail);
  }
  return text;
}

std::atomic<ProcessMachine*> in_force{nullptr};

/// Returns a GPU with what the PCI tree alone says. A device that a file does not list as a GPU may
/// still be one.
Gpu of_tree(const Machine& description, const std::optional<PciAddress>& address) {
  Gpu gpu;
  gpu.node = address ? find_pci_node(description, *address) : -1;
  if (gpu.node < 0) return gpu;
  const PciNode& node = description.pci[static_cast<std::size_t>(gpu.node)];
  gpu.numa = node.numa;
  gpu.pcie_gbps = node.link_gbps;
  return gpu;
}

/// Completes the NUMA nodes of a description by found nodes with the same numbers. NCCL's format
/// has neither distances nor memory. Copies sizes and distances only if all nodes were found;
/// otherwise nodes without sizes would look empty. If several nodes claim a processor, the
/// description is wrong, and found processors replace it.
void complete_nodes(std::vector<NumaNode>& reported, const std::vector<NumaNode>& found) {
  const bool mistaken = !shared_processors(reported).empty();
  std::vector<int> places;  // index in `found` by node
  for (NumaNode& node : reported) {
    const auto same = std::find_if(found.begin(), found.end(), [&](const NumaNode& one) {
      return one.os_index == node.os_index;
    });
    places.push_back(same == found.end() ? -1 : static_cast<int>(same - found.begin()));
    if (same == found.end()) continue;
    if (mistaken || node.cpus.empty()) node.cpus = same->cpus;
    if (node.memory_gbps == 0) node.memory_gbps = same->memory_gbps;
  }
  if (std::find(places.begin(), places.end(), -1) != places.end()) return;
  for (std::size_t i = 0; i < reported.size(); ++i) {
    const NumaNode& same = found[static_cast<std::size_t>(places[i])];
    if (reported[i].memory_bytes == 0) reported[i].memory_bytes = same.memory_bytes;
    const auto& distances = same.distances;
    if (!reported[i].distances.empty() || distances.empty()) continue;
    for (const int to : places) {
      reported[i].distances.push_back(distances[static_cast<std::size_t>(to)]);
    }
  }
}

}  // namespace

std::string_view name_of(NvmlReason reason) {
  switch (reason) {
    case NvmlReason::none:
      return "not asked";
    case NvmlReason::hidden_gpus:
      return "asked about GPUs that CUDA does not show";
    case NvmlReason::mig:
      return "asked about MIG instances";
    case NvmlReason::fabric:
      return "asked about fabric cliques";
  }
  return "?";
}

NvmlReason reason_to_ask_nvml(const std::vector<Gpu>& visible,
                              const std::vector<PciAddress>& of_driver, bool imex_channel) {
  const auto is_visible = [&](const PciAddress& address) {
    return std::any_of(visible.begin(), visible.end(),
                       [&](const Gpu& gpu) { return gpu.pci == address; });
  };
  const auto is_instance = [](const Gpu& gpu) {
    return gpu.name.find(" MIG ") != std::string::npos;
  };
  const auto has_fabric_handles = [](const Gpu& gpu) { return gpu.fabric_handles; };
  if (imex_channel && std::any_of(visible.begin(), visible.end(), has_fabric_handles)) {
    return NvmlReason::fabric;
  }
  if (!std::all_of(of_driver.begin(), of_driver.end(), is_visible)) return NvmlReason::hidden_gpus;
  if (std::any_of(visible.begin(), visible.end(), is_instance)) return NvmlReason::mig;
  return NvmlReason::none;
}

void apply_description(CommunicatorMachine& found, const Machine& description) {
  Machine& machine = found.machine;
  const bool knows_numa = !description.numa.empty();
  const bool knows_links = describes_links(description);
  std::vector<int> found_numa;  // OS number by GPU
  for (const Gpu& gpu : machine.gpus) {
    const auto at = static_cast<std::size_t>(gpu.numa);
    found_numa.push_back(gpu.numa < 0 ? -1 : machine.numa[at].os_index);
  }
  if (knows_numa) {
    const std::vector<NumaNode> before = std::exchange(machine.numa, description.numa);
    complete_nodes(machine.numa, before);
  }
  machine.pci = description.pci;  // nodes of the old tree would refer to removed NUMA nodes
  std::vector<int> place;         // index in the description by GPU
  for (Gpu& gpu : machine.gpus) {
    const int other = gpu.pci ? find_gpu(description, *gpu.pci) : -1;
    const Gpu reported = other < 0 ? of_tree(description, gpu.pci)
                                   : description.gpus[static_cast<std::size_t>(other)];
    const int number = found_numa[place.size()];
    place.push_back(other);
    gpu.node = reported.node;
    if (knows_numa) gpu.numa = reported.numa >= 0 ? reported.numa : numa_index(machine, number);
    if (reported.pcie_gbps > 0) gpu.pcie_gbps = reported.pcie_gbps;
    if (other < 0 || !knows_links) continue;
    gpu.switch_links = reported.switch_links;
    if (reported.link_gbps > 0) gpu.link_gbps = reported.link_gbps;
    // NCCL's format counts links but does not state their speed.
    if (gpu.link_gbps == 0) gpu.link_gbps = nvlink_generation_of(gpu.architecture).link_gbps;
  }
  for (GpuPair& pair : machine.pairs) {
    const int from = place[static_cast<std::size_t>(pair.from)];
    const int to = place[static_cast<std::size_t>(pair.to)];
    if (from < 0 || to < 0 || !knows_links) continue;
    const GpuPair* reported = find_pair(description, from, to);
    pair.links = reported != nullptr ? reported->links : 0;
    pair.hops = reported != nullptr ? reported->hops : 0;
    pair.gbps = reported != nullptr ? reported->gbps : 0;
  }
  found.links_known = found.links_known || knows_links;
}

CommunicatorMachine discover_numa_nodes(const MachineSources& sources) {
  const auto begin = steady_clock::now();
  CommunicatorMachine found;
  found.machine.sources.push_back(add_numa_nodes(sources.files, found.machine));
  Log().info("found the NUMA nodes of the machine in {:.1f} ms: {}", milliseconds_since(begin),
             reports_of(found.machine));
  return found;
}

Result<CommunicatorMachine> with_gpus(const MachineSources& sources, CommunicatorMachine found) {
  const auto begin = steady_clock::now();
  ORIEL_CHECK(add_gpus(sources, found));
  if (log_enabled(LogLevel::info)) {
    const NvmlReason why = found.may_learn_more ? NvmlReason::none : found.nvml_reason;
    Log().info("found the GPUs of the machine in {:.1f} ms (NVML {}): {}",
               milliseconds_since(begin), name_of(why), reports_of(found.machine));
  }
  return found;
}

CommunicatorMachine with_hidden_gpus(const MachineSources& sources, CommunicatorMachine found) {
  if (!found.may_learn_more) return found;
  const auto begin = steady_clock::now();
  add_nvml(sources, found);
  const SourceReport& report = found.machine.sources.back();
  Log().info("added to the GPUs of the machine in {:.1f} ms (NVML {}): {}: {}",
             milliseconds_since(begin), name_of(found.nvml_reason), report.source, report.detail);
  return found;
}

/// Reads the file that the environment names. The other ranks of a start wait meanwhile, and must
/// learn of a failure before their timeout.
Result<Machine> read_named_file(const std::string& file, Duration timeout) {
  XmlLimits limits;
  limits.await_writer = false;
  limits.timeout =
      std::min(limits.timeout, std::chrono::duration_cast<std::chrono::milliseconds>(timeout / 4));
  auto machine = read_machine_file(file, limits);
  if (machine.ok()) return machine;
  Error cause = std::move(machine).error();
  const std::string hint = cause.hint().empty()
                               ? "name a description that can be read, or unset the variable"
                               : cause.hint();
  // The text of the cause goes without its hint, which stands at the end of the error.
  return Error(ErrorCode::invalid_usage, std::move(cause).with_hint({}).to_string())
      .with_hint(hint)
      .with_context("using what ORIEL_TOPO_FILE or NCCL_TOPO_FILE names");
}

Result<CommunicatorMachine> with_description(CommunicatorMachine found, const std::string& file,
                                             Duration timeout) {
  if (!file.empty()) {
    ORIEL_TRY(const Machine description, read_named_file(file, timeout));
    apply_description(found, description);
    found.machine.sources.push_back(
        {file, SourceReport::Outcome::used, "instead of what was found of speeds and places"});
  }
  ORIEL_CHECK(check(found.machine));
  return found;
}

int numa_number_of(const std::vector<NumaNode>& numa, const std::optional<std::vector<int>>& cpus) {
  if (!cpus || cpus->empty()) return -1;
  const auto holds_all = [&](const NumaNode& node) {
    return std::includes(node.cpus.begin(), node.cpus.end(), cpus->begin(), cpus->end());
  };
  const auto found = std::find_if(numa.begin(), numa.end(), holds_all);
  return found == numa.end() ? -1 : found->os_index;
}

template <typename Part, typename Discover>
Result<std::shared_ptr<const Part>> ProcessMachine::get(Slot<Part>& slot, const std::string& file,
                                                        const Discover& discover) {
  const std::lock_guard lock(slot.mutex);
  const pid_t self = ::getpid();
  if (slot.part != nullptr && slot.pid == self && slot.file == file) return slot.part;
  slot.part = nullptr;
  ORIEL_TRY(Part found, discover());
  slot.part = std::make_shared<const Part>(std::move(found));
  slot.file = file;
  slot.pid = self;
  return slot.part;
}

template <typename Part>
bool ProcessMachine::is_known(Slot<Part>& slot, const std::string& file) {
  const std::lock_guard lock(slot.mutex);
  return slot.part != nullptr && slot.pid == ::getpid() && slot.file == file;
}

/// Adds to the result of the previous step. A step that has succeeded runs only once per process.
Result<ProcessMachine::CommunicatorPart> ProcessMachine::discovered(std::size_t steps) {
  return get(found_[steps], "", [&]() -> Result<CommunicatorMachine> {
    if (steps == 0) return discover_numa_nodes(sources_);
    ORIEL_TRY(const CommunicatorPart before, discovered(steps - 1));
    return steps == 1 ? with_gpus(sources_, *before) : with_hidden_gpus(sources_, *before);
  });
}

Result<ProcessMachine::CommunicatorPart> ProcessMachine::for_communicators(bool gpus,
                                                                           const Settings& settings,
                                                                           HiddenGpus hidden) {
  const bool all = hidden == HiddenGpus::asked_about || is_known(found_[2], "");
  const std::size_t which = !gpus ? 0 : all ? 2 : 1;
  ORIEL_TRY(const CommunicatorPart found, discovered(which));
  return get(for_communicators_[which], settings.topo_file,
             [&] { return with_description(*found, settings.topo_file, settings.timeout); });
}

double ProcessMachine::network_gbps(const Settings& settings) {
  const auto found = get(network_gbps_, settings.topo_file, [&]() -> Result<double> {
    if (!settings.topo_file.empty()) {
      ORIEL_TRY(const Machine description, read_named_file(settings.topo_file, settings.timeout));
      if (const double reported = fastest_port_of(description.nics); reported > 0) return reported;
    }
    return fastest_network_of(sources_.files);
  });
  return found.ok() ? **found : 0;
}

Result<ProcessMachine::WholePart> ProcessMachine::whole(const Settings& settings) {
  return get(whole_, settings.topo_file, [&]() -> Result<Machine> {
    const auto begin = steady_clock::now();
    DiscoverOptions options;
    options.root = sources_.files.root();
    const bool described = !settings.topo_file.empty();
    Result<Machine> found = described ? read_named_file(settings.topo_file, settings.timeout)
                                      : discover(options, hwloc_library(), sources_.nvml());
    if (found.ok() && described) {
      complete_description(sources_.files, sources_.nvml, *found);
      // Adds ordinals, peer access and handle types of the GPUs that CUDA shows, and missing GPUs.
      found->sources.push_back(add_cuda_facts(*found));
      ORIEL_CHECK(check(*found));
      found = canonical(std::move(found).value());
    }
    Log().info("found the whole machine in {:.1f} ms", milliseconds_since(begin));
    return found;
  });
}

Result<ProcessMachine::NetworkPart> ProcessMachine::network(const Settings& settings) {
  return get(network_, settings.topo_file, [&]() -> Result<NetworkMachine> {
    NetworkMachine found;
    if (settings.topo_file.empty()) {
      ORIEL_TRY(const CommunicatorPart nodes, discovered(0));
      found.machine = nodes->machine;
      found.machine.sources.push_back(add_pci_tree(sources_.files, found.machine));
      ORIEL_CHECK(check(found.machine));
      found.machine = canonical(std::move(found.machine));
    } else {
      ORIEL_TRY(found.machine, read_named_file(settings.topo_file, settings.timeout));
    }
    found.interfaces = read_network_interfaces(sources_.files);
    return found;
  });
}

void ProcessMachine::dump_once(const Settings& settings) {
  if (settings.topo_dump_file.empty()) return;
  const std::lock_guard lock(dump_mutex_);
  const std::string mark = fmt::format("{} {}", ::getpid(), settings.topo_dump_file);
  if (dumped_ == mark) return;
  dumped_ = mark;
  const auto machine = whole(settings);
  Status written = machine.ok() ? dump_machine(**machine, settings.topo_dump_file)
                                : Status(Error(machine.error()));
  if (!written.ok()) {
    Log().warn("{}", std::move(written).error().with_context("describing the machine").to_string());
  }
}

ProcessMachine& process_machine() {
  if (ProcessMachine* scoped = in_force.load()) return *scoped;
  static auto* const machine = new ProcessMachine;  // never destroyed: communicators may outlive
                                                    // this object
  return *machine;
}

ScopedProcessMachine::ScopedProcessMachine(ProcessMachine& machine)
    : previous_(in_force.exchange(&machine)) {}

ScopedProcessMachine::~ScopedProcessMachine() {
  in_force = previous_;
}

}  // namespace oriel::topo
