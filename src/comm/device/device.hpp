// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
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
#include "net/copy/data_mover.hpp"
#include "net/mlx5/mlx5_memory.hpp"
#include "net/process/nic_process.hpp"
#include "net/queue/queue_pages.hpp"
#include "shadow/shadow_pool.hpp"
#include "topo/choice/rank_info.hpp"
#include "window/memory/mappable_memory.hpp"

namespace oriel::comm {

class PooledWindowSink;

/// Words through which the host ends a communicator's waits and learns of them: in host memory that
/// its kernels can reach too.
struct Notices {
  std::uint32_t abort = 0;  ///< nonzero ends every wait
  device::StallRecord stall{};
  kernels::CallFailure failure{};
};

/// Owns Notices; destroy it after everything that waits with them has ended.
class NoticeBoard {
 public:
  virtual ~NoticeBoard() = default;
  virtual Notices& host() = 0;       ///< for the host's eyes
  virtual Notices* on_device() = 0;  ///< the same words as the device addresses them
};

/// One exchange: a collective, or the sends and receives of a group.
struct ExchangeCall {
  kernels::LaunchList launches;
  /// GPU ranks: copies by copy engines, behind the first `launches_before_copies` launches.
  std::vector<kernels::LocalCopy> copies;
  bool copies_own_block = false;  ///< the last of them, from this GPU's memory
  std::size_t launches_before_copies = 0;
  void* stream = nullptr;
  /// CPU ranks: where a collective is recorded, and what it is. Null for sends and receives.
  kernels::CallRecord* record = nullptr;
  kernels::CollectiveCall collective;
};

/// Which launches of one communicator run in the order in which the host enqueues them. Plain calls
/// always do.
enum class GraphOrder : std::uint8_t {
  all,          ///< calls of a capture too, and launches of graphs, also beside plain calls
  in_captures,  ///< calls of a capture too; the user orders launches of graphs
  none,         ///< the user orders captured calls of different streams as well
};

/// Carries out the calls of one communicator on its device, in the order of the calls.
class Executor {
 public:
  virtual ~Executor() = default;
  /// Checks what the device needs to know of a call's `stream`. Local.
  virtual Status check_stream(void* stream) = 0;
  /// Checks that a group can join these streams: invalid_usage if only some of them are captured,
  /// or by different captures. Local.
  virtual Status check_joined(const std::vector<void*>& streams) = 0;
  /// Has `first` wait for what the other streams hold, ahead of a group's launches.
  virtual Status join_streams(void* first, const std::vector<void*>& streams) = 0;
  /// Has all other streams wait for the last call, which went to `last`.
  virtual Status release_streams(void* last, const std::vector<void*>& streams) = 0;
  /// Makes ready what run() would first have to wait for. Local; needs to be called only by threads
  /// that run several calls which wait for each other.
  virtual Status prepare(const kernels::Plan& plan,
                         const kernels::AllReduceArguments& arguments) = 0;
  virtual Status prepare_hierarchy(const kernels::HierarchyArguments& arguments) = 0;
  /// On the host: runs the call on this thread, to its end, or until a wait is given up; what the
  /// notices say is then the reason, and the error returned is for when they say nothing. On a GPU:
  /// enqueues it on `stream`, behind the calls before it also if those went to other streams.
  virtual Status run(const kernels::Plan& plan, const kernels::AllReduceArguments& arguments,
                     void* stream) = 0;
  /// The same for a collective among teams, and those that are no all-reduces.
  virtual Status run_hierarchy(const kernels::HierarchyArguments& arguments, void* stream) = 0;
  virtual Status prepare_exchange(const ExchangeCall& call) = 0;
  /// As run(), for a collective of one LSA team or for sends and receives.
  virtual Status run_exchange(ExchangeCall& call) = 0;
  /// A call of no elements that runs nothing. On the host it is one of those that are counted:
  /// `record` is this rank's. Nothing on a GPU, where ranks do not count.
  virtual void pass_over(kernels::CallRecord& record, const kernels::CollectiveCall& call) = 0;
  /// Waits until everything that was enqueued outside graphs has ended; with GraphOrder::all also
  /// for launches of graphs so far, if anything was enqueued outside graphs.
  virtual Status drain(Deadline deadline) = 0;
  /// Returns whether something that was enqueued has not ended, or a graph may be launched that
  /// holds a call: memory of the communicator may be used then. Does not wait.
  virtual bool is_in_use() = 0;
};

/// Facts that a communicator's window objects share.
struct TeamFacts {
  int world_rank = 0;
  int world_size = 1;
  std::vector<int> members;        ///< world ranks of the LSA team
  int index = 0;                   ///< this rank among them
  std::uint64_t communicator = 0;  ///< the communicator's number, as kernels know it

  /// Returns the world rank of the member at `at`; -1 if there is none.
  int world_rank_of(int at) const {
    const bool known = at >= 0 && at < static_cast<int>(members.size());
    return known ? members[static_cast<std::size_t>(at)] : -1;
  }
};

/// What a software NIC needs besides the processor to serve kernels of a device; nothing on the
/// host. Destroyed after the NIC.
struct NicMemory {
  std::shared_ptr<net::NicProcess> process;      ///< who moves what is in windows; may be null
  std::unique_ptr<net::QueuePagesSource> pages;  ///< where its queues lie
  std::unique_ptr<net::DataMover> mover;         ///< for windows
};

/// Where a rank keeps its windows and runs its collectives: a GPU, or the host. One object for each
/// device of the process, shared by its communicators and never destroyed. Thread-safe.
class Device {
 public:
  virtual ~Device() = default;
  virtual kernels::Backend backend() const = 0;
  /// The CUDA ordinal; -1 for the host.
  virtual int ordinal() const = 0;
  virtual window::Memory& memory() = 0;

  /// What a rank here tells the others; with what is wanted besides, for a supplement to it. The
  /// machine is looked at once per process.
  virtual Result<topo::RankInfo> rank_info(const topo::NodeIdentity& node, const Settings& settings,
                                           topo::Wanted wanted) = 0;
  /// Fresh memory of memory(), as the algorithms expect a rank's scratch: of layout.total_bytes, in
  /// which `hierarchy` and `channels` have their parts. A GPU fills it between other work: this
  /// suspends for it, and gives up so long before `deadline` that other ranks can still be told.
  /// What the GPU has yet to write to by then, the device keeps until it has.
  virtual Task<Result<void*>> make_scratch(EventLoop& loop, kernels::ScratchLayout layout,
                                           kernels::HierarchyLayout hierarchy,
                                           std::vector<kernels::ChannelLayout> channels,
                                           Deadline deadline) = 0;
  /// The same for `bytes` (a multiple of 4) that are zero, but for `part` at `offset`.
  virtual Task<Result<void*>> make_control(EventLoop& loop, std::size_t bytes, std::size_t offset,
                                           std::vector<std::byte> part, Deadline deadline) = 0;
  virtual Result<std::unique_ptr<NoticeBoard>> make_notice_board() = 0;
  virtual Result<std::unique_ptr<Executor>> make_executor(const CtaBudget::Facts& facts,
                                                          GraphOrder order) = 0;
  virtual Result<std::unique_ptr<PooledWindowSink>> make_window_sink(const TeamFacts& facts) = 0;
  /// The pool of this process for objects of this size that the device's kernels read.
  virtual Result<std::shared_ptr<shadow::ShadowPool>> object_pool(std::size_t bytes,
                                                                  std::size_t alignment) = 0;
  /// Begins to start the process that copies for NICs of this GPU, unless it runs already; all who
  /// hold it share it. Null where there is none to be; why, if it is not by choice, the log says.
  virtual std::shared_ptr<net::NicProcess> begin_nic_process(const Settings& /*settings*/) {
    return nullptr;
  }
  /// On a GPU it pins memory, for which the driver may wait until kernels that run have ended.
  /// `process` has its GPU; null: this process copies.
  virtual Result<NicMemory> make_nic_memory(std::shared_ptr<net::NicProcess> process) = 0;
  /// Where queues of an adapter lie for those who fill them here. Outlives these.
  virtual Result<std::unique_ptr<net::Mlx5Memory>> make_adapter_memory() = 0;
};

/// The device that a call of this thread means: the current CUDA device, or the host if there is no
/// GPU or ORIEL_BACKEND says so.
Result<Device*> current_device();
/// The device with this CUDA ordinal.
Result<Device*> device_with_ordinal(int ordinal);
/// The device whose Memory::allocate gave `pointer`, as far as can be told; the host otherwise.
Result<Device*> device_of_allocation(const void* pointer);
/// Number of GPUs that count; 0 means that ranks live on the host.
Result<int> gpu_count();

Device& host_device();
/// In builds with CUDA only: a GPU, how many there are (an error where CUDA cannot be used), which
/// one is current for the calling thread, and which one `pointer` belongs to (-1 for none).
Result<Device*> cuda_device(int ordinal);
Result<int> cuda_device_count();
Result<int> current_cuda_ordinal();
int cuda_ordinal_of(const void* pointer);

}  // namespace oriel::comm
