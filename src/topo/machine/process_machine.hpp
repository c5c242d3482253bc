// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <sys/types.h>

#include "oriel/error.hpp"

#include "base/deadline.hpp"
#include "base/settings.hpp"
#include "topo/model/file_tree.hpp"
#include "topo/model/machine.hpp"
#include "topo/sources/net_sysfs.hpp"
#include "topo/sources/nvml_table.hpp"

/// What the library knows of the machine it runs on: looked for once per process, in parts.
namespace oriel::topo {

/// What tells which network interface is near which GPU. Made in a few milliseconds, from /sys (or
/// the description in a file) alone: the GPUs, also hidden ones, are there by their places.
struct NetworkMachine {
  Machine machine;
  std::vector<NetworkInterface> interfaces;
};

/// Why NVML is asked for a communicator. Beginning to use it can take some ten milliseconds, so it
/// is not asked for what is known without it. Who may map hidden GPUs, and over what links, neither
/// CUDA nor a file of the kernel tells; but that is of use only where ranks are on such.
enum class NvmlReason : std::uint8_t {
  none,
  hidden_gpus,  ///< the driver lists GPUs that CUDA does not show this process
  mig,          ///< CUDA shows one instance of a GPU only, and hides the others
  fabric,       ///< there may be fabric cliques: fabric handles and a channel of the IMEX service
};
std::string_view name_of(NvmlReason reason);

/// What a communicator has to know before it can form teams. Made in a few milliseconds: of the PCI
/// tree there is no more in it than is above GPUs, and no NIC.
struct CommunicatorMachine {
  Machine machine;
  /// NVML, or a file, told of NVLinks; else what is not known of them is inferred.
  bool links_known = false;
  /// There are GPUs that CUDA hides from this process, and NVML has not been asked about them.
  bool may_learn_more = false;
  /// Why NVML has been asked, or may be.
  NvmlReason nvml_reason = NvmlReason::none;
};

/// Whether NVML is asked about GPUs that are hidden from this process: other ranks are on some.
enum class HiddenGpus : bool { left_out, asked_about };

/// The choice, a function of what CUDA shows, of the addresses that the driver lists (none where it
/// lists none) and of whether the process has a channel of the IMEX service.
NvmlReason reason_to_ask_nvml(const std::vector<Gpu>& visible,
                              const std::vector<PciAddress>& of_driver, bool imex_channel);

/// Where the process looks.
struct MachineSources {
  FileTree files{"/"};
  std::function<const NvmlLibrary&()> nvml = nvml_library;  ///< called only where NVML is asked
};

/// What a description in a file says of this machine takes the place of what was found: NUMA nodes,
/// where GPUs are, links and their bandwidth. What it is silent about stays as found: links where
/// it tells of none at all, as hwloc's format does not and many files that clouds ship for NCCL do
/// not, the NUMA node of a GPU that it lacks, and distances and memory of NUMA nodes. Processors
/// that it gives several nodes stay as found as well. It does not touch who may map whose memory,
/// fabric cliques and kinds of handles, which only the drivers know, nor add GPUs that were not
/// found. GPUs are found again by their PCI addresses, among the description's GPUs or else on its
/// buses.
void apply_description(CommunicatorMachine& found, const Machine& description);

/// Looks for what a communicator of ranks on the host needs. Reads a few small files.
CommunicatorMachine look_for_numa_nodes(const MachineSources& sources);

/// Adds what one of ranks on GPUs needs: /sys, CUDA, and NVML where there may be fabric cliques.
/// Fails if CUDA does not tell who the devices are and who maps whom. Blocking.
Result<CommunicatorMachine> with_gpus(const MachineSources& sources, CommunicatorMachine found);

/// Adds what CUDA hides, if there is any: asks NVML, and the files of /sys about what is new.
CommunicatorMachine with_hidden_gpus(const MachineSources& sources, CommunicatorMachine found);

/// Has `file` describe the machine, unless it is empty. Fails if it cannot be used, at once for a
/// pipe that nobody has open to write, else in a part of `timeout`, which is that of a start.
Result<CommunicatorMachine> with_description(CommunicatorMachine found, const std::string& file,
                                             Duration timeout);

/// The system's number of the NUMA node that all of these processors are of; -1 where they are of
/// several, or nothing is known of them.
int numa_number_of(const std::vector<NumaNode>& numa, const std::optional<std::vector<int>>& cpus);

/// Keeps what was found. A failure is not kept: it concerns the communicator that is being made,
/// and the next one looks again, for what lacked (a busy driver, memory, a file) may be there then.
/// A child that was forked since, while no other thread was looking, looks for itself. Thread-safe;
/// those who ask at the same time wait for the one who looks.
class ProcessMachine {
 public:
  using CommunicatorPart = std::shared_ptr<const CommunicatorMachine>;
  using WholePart = std::shared_ptr<const Machine>;
  using NetworkPart = std::shared_ptr<const NetworkMachine>;

  explicit ProcessMachine(MachineSources sources = {}) : sources_(std::move(sources)) {}
  ProcessMachine(const ProcessMachine&) = delete;
  ProcessMachine& operator=(const ProcessMachine&) = delete;

  const MachineSources& sources() const { return sources_; }

  /// The first part, see with_gpus(). Hidden GPUs are added to what was found before,
  /// which is not looked for again; from then on it has them for all who ask.
  Result<CommunicatorPart> for_communicators(bool gpus, const Settings& settings,
                                             HiddenGpus hidden = HiddenGpus::left_out);
  /// Of the fastest network port that is up, for RDMA or not, in Gbit/s; 0: not known. Reads a few
  /// files for each port and interface, so it is not looked for unless ranks are joined by one.
  double network_gbps(const Settings& settings);
  /// The second part: everything, with the PCI tree and the NICs, or what topo_file says, with the
  /// ordinals of this process. Takes some hundred milliseconds the first time.
  Result<WholePart> whole(const Settings& settings);
  /// What is needed to choose network interfaces; looked for when it is first asked for.
  Result<NetworkPart> network(const Settings& settings);
  /// Writes the second part to topo_dump_file if there is one, once for each such file. What goes
  /// wrong is logged as a warning, no more.
  void dump_once(const Settings& settings);

 private:
  template <typename Part>
  struct Slot {
    std::mutex mutex;
    pid_t looked = 0;  // the process that has looked
    std::string file;
    std::shared_ptr<const Part> part;
  };
  template <typename Part>
  static bool is_known(Slot<Part>& slot, const std::string& file);
  template <typename Part, typename Look>
  Result<std::shared_ptr<const Part>> get(Slot<Part>& slot, const std::string& file,
                                          const Look& look);

  Result<CommunicatorPart> found_by_looking(std::size_t steps);

  MachineSources sources_;
  // Each in steps: NUMA nodes; GPUs; hidden ones too. As found, and as a file describes it.
  std::array<Slot<CommunicatorMachine>, 3> found_;
  std::array<Slot<CommunicatorMachine>, 3> for_communicators_;
  Slot<double> network_gbps_;
  Slot<Machine> whole_;
  Slot<NetworkMachine> network_;
  std::mutex dump_mutex_;
  std::string dumped_;
};

/// The one of this process.
ProcessMachine& process_machine();

/// Puts `machine` in the place of that one until destroyed. For tests; it must outlive this.
class ScopedProcessMachine {
 public:
  explicit ScopedProcessMachine(ProcessMachine& machine);
  ~ScopedProcessMachine();
  ScopedProcessMachine(const ScopedProcessMachine&) = delete;
  ScopedProcessMachine& operator=(const ScopedProcessMachine&) = delete;

 private:
  ProcessMachine* previous_;
};

}  // namespace oriel::topo
