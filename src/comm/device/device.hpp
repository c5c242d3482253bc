// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "oriel/device/wait.hpp"
#include "oriel/error.hpp"

#include "base/deadline.hpp"
#include "base/event_loop.hpp"
#include "base/settings.hpp"
#include "base/task.hpp"
#include "comm/device/cta_budget.hpp"
#include "kernels/plan/arguments.hpp"
#include "kernels/plan/call_record.hpp"
#include "kernels/plan/choice.hpp"
#include "kernels/plan/exchange.hpp"
#include "kernels/plan/hierarchy_plan.hpp"
#include "net/copy/copy_engine.hpp"
#include "net/mlx5/mlx5_memory.hpp"
#include "net/process/nic_process.hpp"
#include "net/queue/queue_pages.hpp"
#include "shadow/shadow_pool.hpp"
#include "topo/choice/rank_info.hpp"
#include "window/memory/mappable_memory.hpp"

namespace oriel::comm {

class PooledWindowSink;

/// Words in host memory that the kernels of a communicator also access. Through them the host ends
/// waits and receives reports about waits.
struct Notices {
  std::uint32_t abort = 0;  ///< nonzero ends every wait
  device::StallRecord stall{};
  kernels::CallFailure failure{};
};

/// Owns Notices. Destroy it after all waits that use them have ended.
class NoticeMemory {
 public:
  virtual ~NoticeMemory() = default;
  virtual Notices& host() = 0;       ///< host address of the words
  virtual Notices* on_device() = 0;  ///< device address of the same words
};

/// One exchange: a collective, or the sends and receives of a group.
struct ExchangeCall {
  kernels::LaunchList launches;
  /// GPU ranks: copies by copy engines, enqueued after the first `launches_before_copies` launches.
  std::vector<kernels::LocalCopy> copies;
  bool copies_own_block = false;  ///< the last copy reads this GPU's own memory
  std::size_t launches_before_copies = 0;
  void* stream = nullptr;
  /// CPU ranks: an exchange of short messages that has no launches yet, and its facts. Launches are
  /// planned for the part that cannot move at once.
  kernels::Exchange* short_exchange = nullptr;
  const kernels::ExchangeFacts* facts = nullptr;
  /// CPU ranks: what the root of a reduce computes after the exchange. Has no output if there is
  /// nothing to compute.
  kernels::PairFold fold;
  /// CPU ranks: the record in which the collective is counted, and its description. `record` is
  /// null for sends and receives.
  kernels::CallRecord* record = nullptr;
  kernels::CollectiveCall collective;
};

/// Selects the launches of one communicator that run in the order of their enqueueing by the host.
/// Plain calls always run in this order.
enum class GraphOrder : std::uint8_t {
  all,          ///< also calls of one capture, and launches of graphs, even mixed with plain calls
  in_captures,  ///< also calls of one capture; the user orders launches of graphs
  none,         ///< the user also orders captured calls of different streams
};

/// Executes the calls of one communicator on its device, in the order of the calls.
class Executor {
 public:
  virtual ~Executor() = default;
  /// Checks that the device accepts a call's `stream`. Local.
  virtual Status check_stream(void* stream) = 0;
  /// Checks that one group may use all these streams. Returns invalid_usage if only some of them
  /// are captured, or if their captures differ. Local.
  virtual Status check_joined(const std::vector<void*>& streams) = 0;
  /// Makes `first` wait for the work in the other streams, before a group's launches.
  virtual Status join_streams(void* first, const std::vector<void*>& streams) = 0;
  /// Makes all other streams wait for the last call, which went to `last`.
  virtual Status release_streams(void* last, const std::vector<void*>& streams) = 0;
  /// Host: runs the call on this thread until it completes or a wait is aborted. After an abort the
  /// notices give the reason; the returned error applies only if they are empty. GPU: enqueues the
  /// call on `stream`, ordered after earlier calls, even those on other streams.
  virtual Status run(const kernels::Plan& plan, const kernels::AllReduceArguments& arguments,
                     void* stream) = 0;
  /// Runs a collective that has a HierarchyPlan: over several teams, or a reduce-scatter of CPU
  /// ranks in stages. Otherwise like run().
  virtual Status run_hierarchy(const kernels::HierarchyArguments& arguments, void* stream) = 0;
  /// Runs a collective that is planned as exchanges, or sends and receives; otherwise like run().
  virtual Status run_exchange(ExchangeCall& call) = 0;
  /// Counts a call of no elements, which runs nothing. Host: counts it in `record`, this rank's
  /// record of collectives. GPU: does nothing, since GPU ranks do not count calls.
  virtual void pass_over(kernels::CallRecord& record, const kernels::CollectiveCall& call) = 0;
  /// Waits until all work enqueued outside graphs has completed. With GraphOrder::all: also waits
  /// for earlier launches of graphs, if any work was enqueued outside graphs.
  virtual Status drain(Deadline deadline) = 0;
  /// Returns whether enqueued work is incomplete, or a graph that holds a call may still be
  /// launched. In both cases memory of the communicator may be in use. Does not block.
  virtual bool is_in_use() = 0;
  /// GPU: refuses calls from now on, since the communicator ends. drain() and is_in_use() then see
  /// each call that another thread has still been able to enqueue. Host: does nothing, because a
  /// call runs in its caller's thread, which keeps the memory. Any thread; does not block.
  virtual void close() {}
  /// Returns the number of the launch of the last call, from 1. Returns 0 if the call was captured,
  /// or if the executor does not mark launches.
  virtual std::uint64_t last_mark() const { return 0; }
  /// Returns how many marked launches have ended; empty while this is unknown. Any thread; does not
  /// block.
  virtual std::optional<std::uint64_t> ended_marks() { return std::nullopt; }
};

/// Facts that a communicator's window objects share.
struct TeamFacts {
  int world_rank = 0;
  int world_size = 1;
  std::vector<int> members;        ///< world ranks of the LSA team
  int index = 0;                   ///< index of this rank in `members`
  bool on_one_gpu = false;         ///< all ranks are members and share a GPU; equal on all of them
  std::uint64_t communicator = 0;  ///< number of the communicator in kernels

  /// Returns the world rank of the member at index `at`; -1 if there is none.
  int world_rank_of(int at) const {
    const bool known = at >= 0 && at < static_cast<int>(members.size());
    return known ? members[static_cast<std::size_t>(at)] : -1;
  }
};

/// Resources that a software NIC needs to serve kernels of a GPU; empty on the host. Destroy it
/// after the NIC.
struct NicMemory {
  std::shared_ptr<net::NicProcess> process;      ///< copies data of windows; may be null
  std::unique_ptr<net::QueuePagesSource> pages;  ///< allocates the memory of its queues
  std::unique_ptr<net::CopyEngine> engine;       ///< moves data of windows
};

/// Device that holds a rank's windows and runs its collectives: a GPU, or the host. The process has
/// one object per device, shared by its communicators and never destroyed. Thread-safe.
class Device {
 public:
  virtual ~Device() = default;
  virtual kernels::Backend backend() const = 0;
  /// Returns the CUDA ordinal; -1 for the host.
  virtual int ordinal() const = 0;
  virtual window::Memory& memory() = 0;

  /// Returns the information that a rank on this device sends to the others. `wanted` selects
  /// further parts, for a supplement to it. The machine is inspected once per process.
  virtual Result<topo::RankInfo> rank_info(const topo::NodeIdentity& node, const Settings& settings,
                                           topo::Wanted wanted) = 0;
  /// Allocates a rank's scratch of layout.total_bytes from memory(), initialized as the algorithms
  /// expect. `hierarchy` and `channels` have their parts in it. GPU: memory is filled on a stream
  /// of its own. Up to 100 short polls block the thread meanwhile. Between later polls this
  /// coroutine suspends. It fails after 3/4 of the time to
  /// `deadline`, so that other ranks can still be informed. If it fails, the device keeps the
  /// memory until the GPU has completed its writes.
  virtual Task<Result<void*>> make_scratch(EventLoop& loop, kernels::ScratchLayout layout,
                                           kernels::HierarchyLayout hierarchy,
                                           std::vector<kernels::ChannelLayout> channels,
                                           Deadline deadline) = 0;
  /// Allocates `bytes` (a multiple of 4) of memory that is zero except for `part` at `offset`;
  /// otherwise like make_scratch().
  virtual Task<Result<void*>> make_control(EventLoop& loop, std::size_t bytes, std::size_t offset,
                                           std::vector<std::byte> part, Deadline deadline) = 0;
  virtual Result<std::unique_ptr<NoticeMemory>> make_notice_memory() = 0;
  /// `marks`: GPU ranks count the launches that have ended, by one driver call more for each.
  virtual Result<std::unique_ptr<Executor>> make_executor(const CtaBudget::Facts& facts,
                                                          GraphOrder order, bool marks) = 0;
  virtual Result<std::unique_ptr<PooledWindowSink>> make_window_sink(const TeamFacts& facts) = 0;
  /// Returns the process's pool for objects of this size that the device's kernels read.
  virtual Result<std::shared_ptr<shadow::ShadowPool>> object_pool(std::size_t bytes,
                                                                  std::size_t alignment) = 0;
  /// Starts, unless it is running, the process that copies for NICs of this GPU. Does not wait
  /// until it is ready. All holders share it. Returns null if there is none; if that is not by
  /// choice, the log gives the reason.
  virtual std::shared_ptr<net::NicProcess> begin_nic_process(const Settings& /*settings*/) {
    return nullptr;
  }
  /// GPU: pins memory, for which the driver may wait until running kernels have ended. `process`
  /// has its GPU; if null, this process copies.
  virtual Result<NicMemory> make_nic_memory(std::shared_ptr<net::NicProcess> process) = 0;
  /// Makes the memory for the queues of an adapter that ranks on this device fill. The memory must
  /// outlive the queues.
  virtual Result<std::unique_ptr<net::Mlx5Memory>> make_adapter_memory() = 0;
};

/// Returns the device for calls of this thread: the current CUDA device. Returns the host if there
/// is no GPU or ORIEL_BACKEND selects the host.
Result<Device*> current_device();
/// Returns the device with this CUDA ordinal.
Result<Device*> device_with_ordinal(int ordinal);
/// Returns the GPU that `pointer` belongs to, according to CUDA; otherwise the host.
Result<Device*> device_of_allocation(const void* pointer);
/// Returns the number of usable GPUs; 0 means that ranks run on the host.
Result<int> gpu_count();

Device& host_device();
/// Returns the GPU with this CUDA ordinal. Only in builds with CUDA, like the functions below.
Result<Device*> cuda_device(int ordinal);
/// Returns the number of GPUs. Fails if CUDA is unusable.
Result<int> cuda_device_count();
/// Returns the ordinal of the calling thread's current GPU; 0 if the thread has no context.
Result<int> current_cuda_ordinal();
/// Returns the ordinal of the GPU that `pointer` belongs to; -1 if CUDA does not know it.
int cuda_ordinal_of(const void* pointer);

}  // namespace oriel::comm
