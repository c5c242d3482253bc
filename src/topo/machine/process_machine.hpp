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

/// Describes the machine on which the process runs. Each part is discovered when first used,
/// and cached for the process.
namespace oriel::topo {

/// Data for choosing the network interface near a GPU. Takes a few milliseconds, from /sys (or the
/// description in a file) alone. Includes all GPUs, even hidden ones, with their places.
struct NetworkMachine {
  Machine machine;
  std::vector<NetworkInterface> interfaces;
};

/// Reason to query NVML for a communicator. Initialising NVML can take some ten milliseconds, so it
/// is queried only if necessary. Neither CUDA nor a kernel file says who may map hidden GPUs, and
/// over what links. This matters only if ranks are on such GPUs.
enum class NvmlReason : std::uint8_t {
  none,
  hidden_gpus,  ///< the driver lists GPUs that CUDA does not show this process
  mig,          ///< CUDA shows only one instance of a GPU and hides the others
  fabric,       ///< fabric cliques are possible: fabric handles and an IMEX channel exist
};
std::string_view name_of(NvmlReason reason);

/// Data that a communicator needs before it can form teams. Takes a few milliseconds unless NVML is
/// queried. Its PCI tree has only GPUs and the nodes above them, or is the tree of a description.
/// Has no NICs.
struct CommunicatorMachine {
  Machine machine;
  /// NVML has answered, or a file reported links; otherwise unknown links are inferred.
  bool links_known = false;
  /// CUDA hides GPUs from this process, and NVML has not been queried about them.
  bool may_learn_more = false;
  /// Reason for which NVML has been queried, or may be.
  NvmlReason nvml_reason = NvmlReason::none;
};

/// Says whether NVML is queried about GPUs hidden from this process, because other ranks are on
/// them.
enum class HiddenGpus : bool { left_out, asked_about };

/// Chooses the reason from the GPUs that CUDA shows and the addresses that the driver lists. These
/// are empty if the driver lists none. `imex_channel` says whether the process has an IMEX channel.
NvmlReason reason_to_ask_nvml(const std::vector<Gpu>& visible,
                              const std::vector<PciAddress>& of_driver, bool imex_channel);

/// Sources of a process's knowledge.
struct MachineSources {
  FileTree files{"/"};
  std::function<const NvmlLibrary&()> nvml = nvml_library;  ///< called only if NVML is queried
};

/// Replaces facts in `found` by those of a description: NUMA nodes, places of GPUs, links and their
/// bandwidth. Facts missing in the description stay as found: distances and memory of NUMA nodes,
/// and the NUMA node of a GPU that it lacks. If it has no links at all, the found links stay.
/// hwloc's format and many files that clouds ship for NCCL have no links. Processors that the
/// description assigns to several nodes stay as found as well. Mappability, fabric cliques and
/// handle types, which only drivers know, stay unchanged. No GPUs are added. GPUs are matched by
/// PCI address, among the description's GPUs or else on its buses.
void apply_description(CommunicatorMachine& found, const Machine& description);

/// Finds what a communicator of ranks on the host needs. Reads a few small files.
CommunicatorMachine discover_numa_nodes(const MachineSources& sources);

/// Adds what a communicator of ranks on GPUs needs: from /sys, CUDA, and NVML if fabric cliques are
/// possible. Fails if CUDA does not report device identities and peer access. Blocking.
Result<CommunicatorMachine> with_gpus(const MachineSources& sources, CommunicatorMachine found);

/// Adds GPUs that CUDA hides, if there are any: queries NVML, and /sys about new GPUs.
CommunicatorMachine with_hidden_gpus(const MachineSources& sources, CommunicatorMachine found);

/// Applies the description in `file`, unless the name is empty, and checks the machine. Fails if
/// the description cannot be used: at once for a pipe without a writer, else within a quarter of
/// `timeout`, a start's timeout.
Result<CommunicatorMachine> with_description(CommunicatorMachine found, const std::string& file,
                                             Duration timeout);

/// Returns the OS number of the first NUMA node that has all of these processors. -1: no node has
/// them all, or nothing is known about them.
int numa_number_of(const std::vector<NumaNode>& numa, const std::optional<std::vector<int>>& cpus);

/// Discovers parts of the machine and caches them. A failure is not cached: it affects the
/// communicator being created, and the next one tries again. The cause (a busy driver, memory, a
/// file) may be gone then. A forked child discovers for itself; no other thread may be discovering
/// during the fork. Thread-safe; concurrent callers wait for the discovering thread.
class ProcessMachine {
 public:
  using CommunicatorPart = std::shared_ptr<const CommunicatorMachine>;
  using WholePart = std::shared_ptr<const Machine>;
  using NetworkPart = std::shared_ptr<const NetworkMachine>;

  explicit ProcessMachine(MachineSources sources = {}) : sources_(std::move(sources)) {}
  ProcessMachine(const ProcessMachine&) = delete;
  ProcessMachine& operator=(const ProcessMachine&) = delete;

  const MachineSources& sources() const { return sources_; }

  /// Returns the first part, see with_gpus(). Hidden GPUs are added to the earlier result, which is
  /// not discovered again. From then on, all callers that ask for GPUs get them.
  Result<CommunicatorPart> for_communicators(bool gpus, const Settings& settings,
                                             HiddenGpus hidden = HiddenGpus::left_out);
  /// Returns the speed of the fastest network port that is up, for RDMA or not, in Gbit/s; 0: not
  /// known. Reads a few files for each port and interface, so call it only if ranks communicate
  /// over a network.
  double network_gbps(const Settings& settings);
  /// Returns the second part: the whole machine with PCI tree and NICs, or the contents of
  /// topo_file, with the ordinals of this process. Takes some hundred milliseconds the first time.
  Result<WholePart> whole(const Settings& settings);
  /// Returns the data for choosing network interfaces, discovered at the first call.
  Result<NetworkPart> network(const Settings& settings);
  /// Writes the second part to topo_dump_file if that is set, once for each such file. Only logs
  /// failures, as warnings.
  void dump_once(const Settings& settings);

 private:
  template <typename Part>
  struct Slot {
    std::mutex mutex;
    pid_t pid = 0;  // the process that discovered the part
    std::string file;
    std::shared_ptr<const Part> part;
  };
  template <typename Part>
  static bool is_known(Slot<Part>& slot, const std::string& file);
  template <typename Part, typename Discover>
  Result<std::shared_ptr<const Part>> get(Slot<Part>& slot, const std::string& file,
                                          const Discover& discover);

  Result<CommunicatorPart> discovered(std::size_t steps);

  MachineSources sources_;
  // By step: NUMA nodes; GPUs; hidden GPUs too. found_ is without the description in a file,
  // for_communicators_ with it.
  std::array<Slot<CommunicatorMachine>, 3> found_;
  std::array<Slot<CommunicatorMachine>, 3> for_communicators_;
  Slot<double> network_gbps_;
  Slot<Machine> whole_;
  Slot<NetworkMachine> network_;
  std::mutex dump_mutex_;
  std::string dumped_;
};

/// Returns the object of this process.
ProcessMachine& process_machine();

/// Replaces the object of process_machine() by `machine` until destroyed. For tests; `machine` must
/// outlive it.
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
