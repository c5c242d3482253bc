// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "topo/local_affinity.hpp"

#include <algorithm>
#include <atomic>
#include <utility>

#include "base/log.hpp"
#include "base/settings.hpp"
#include "topo/machine_file.hpp"
#include "topo/numa_sysfs.hpp"
#include "topo/placement.hpp"

namespace oriel::topo {
namespace {

/// The settings of this process; the defaults where it has bad ones, of which others tell.
Settings settings_in_force() {
  const auto settings = process_settings();
  return settings.ok() ? **settings : Settings{};
}

std::shared_ptr<const Machine> read_described(const std::string& path) {
  auto machine = read_machine_file(path);
  if (machine.ok()) return std::make_shared<const Machine>(std::move(machine).value());
  Log().info("no affinity of threads and memory: {}", machine.error().to_string());
  return std::make_shared<const Machine>();
}

std::shared_ptr<const Machine> read_nodes(const FileTree& files) {
  auto machine = std::make_shared<Machine>();
  machine->numa = read_numa_nodes(files);
  return machine;
}

/// Adds to what the calling thread may use from where it may have memory, if that can matter.
/// Whether a node can be preferred at all.
bool add_memory_nodes(const Machine& machine, Allowed& allowed) {
  if (machine.numa.size() < 2 || has_memory_policy()) return false;
  allowed.memory_nodes = memory_nodes_of_this_thread();
  return true;
}

}  // namespace

LocalAffinity::LocalAffinity(FileTree files) : files_(std::move(files)), follows_settings_(false) {}

LocalAffinity::LocalAffinity() : files_("/"), follows_settings_(true) {}

LocalAffinity& LocalAffinity::of_process() {
  static auto* const own = new LocalAffinity;
  return *own;
}

std::shared_ptr<const Machine> LocalAffinity::machine() {
  const std::string path = follows_settings_ ? settings_in_force().topo_file : std::string();
  const std::lock_guard lock(mutex_);
  if (machine_ == nullptr || path != described_by_) {
    machine_ = path.empty() ? read_nodes(files_) : read_described(path);
    described_by_ = path;
  }
  return machine_;
}

Affinity LocalAffinity::of_processors() {
  if (!settings_in_force().cpu_affinity) return {};
  const auto here = machine();
  Allowed allowed;
  allowed.cpus = cpus_of_this_thread();
  const bool prefers = add_memory_nodes(*here, allowed);
  Affinity affinity = affinity_of_processors(here->numa, allowed);
  if (!prefers) affinity.memory_node = -1;
  return affinity;
}

Affinity LocalAffinity::of_gpu(std::string_view pci_address) {
  const Settings settings = settings_in_force();
  const auto address = parse_pci_address(pci_address);
  if (!settings.cpu_affinity || !address.ok()) return {};
  const auto here = machine();
  const auto described = std::find_if(here->gpus.begin(), here->gpus.end(),
                                      [&](const Gpu& gpu) { return gpu.pci == *address; });
  const int place =
      described != here->gpus.end() ? described->numa : numa_of_device(files_, *here, *address);
  Allowed allowed;
  if (!settings.ignore_cpu_affinity) allowed.cpus = cpus_of_this_thread();
  const bool prefers = add_memory_nodes(*here, allowed);
  Affinity affinity = affinity_near(here->numa, place, allowed);
  if (!prefers) affinity.memory_node = -1;
  static std::atomic<bool> told{false};
  if (affinity.kept_away && log_enabled(LogLevel::info) && !told.exchange(true)) {
    Log().info(
        "this process may use no processor near GPU {}: threads for it stay where they are "
        "(ORIEL_IGNORE_CPU_AFFINITY=1 moves them there)",
        pci_address);
  }
  return affinity;
}

}  // namespace oriel::topo
