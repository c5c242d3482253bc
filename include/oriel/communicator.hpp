// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "oriel/api.hpp"
#include "oriel/buffer.hpp"
#include "oriel/device_comm.hpp"
#include "oriel/error.hpp"
#include "oriel/types.hpp"
#include "oriel/unique_id.hpp"
#include "oriel/window.hpp"

struct ncclComm;

/// Oriel's C++ interface. It stands beside the C interface of nccl.h over the same library: a
/// communicator made here has an ncclComm_t, and one made there can be borrowed here.
///
/// Terms. *Local* calls concern the calling rank alone. *Collective* calls must be made by every
/// rank of the communicator, in the same order on all of them, and those that return a Status or
/// Result return the same error everywhere if any rank fails, unless a rank has died, or its call
/// makes no sense by itself (nccl.h says which).
///
/// Errors are values (error.hpp); memory exhaustion alone may throw. Groups of the C interface
/// (ncclGroupStart) do not concern these calls: each is carried out before it returns, so a thread
/// that plays several ranks uses the C interface, or a thread for each rank.
namespace oriel {

struct CommunicatorOptions {
  int min_ctas = 0;  ///< fewest CTAs of a collective's kernel, up to 1024; 0: no limit
  /// Most, up to 1024; 0: no limit. Both the same on all ranks. They count those that move data: an
  /// all-reduce on GPUs has one more, which sees to it that all ranks are in the same call.
  int max_ctas = 0;
  std::string name;  ///< for messages
};

/// A stretch of memory that is to become a window: all or a part of a Buffer, or of other memory
/// that can be shared (see Communicator::register_windows). `data` is a multiple of 4096.
struct MemoryRange {
  void* data = nullptr;
  std::size_t bytes = 0;
};

/// The arguments of one all-reduce.
struct AllReduceArguments {
  const void* input = nullptr;  ///< `count` elements of this rank, aligned to their size
  void* output = nullptr;       ///< `count` elements; equal to `input`, or apart from it
  std::size_t count = 0;        ///< elements, the same on all ranks; 0 does nothing
  DataType type = DataType::f32;
  ReduceOp op = ReduceOp::sum;
  /// premul_sum only: this rank's factor, one element of `type` in host memory, read by the call.
  const void* scalar = nullptr;
  void* stream = nullptr;  ///< a cudaStream_t; null on the CPU
};

/// The arguments of one all-gather.
struct AllGatherArguments {
  const void* input = nullptr;  ///< `count` elements of this rank, aligned to their size
  /// `count` elements of each rank, in rank order. Apart from `input`, or such that `input` is this
  /// rank's place in it.
  void* output = nullptr;
  std::size_t count = 0;  ///< elements of one rank, the same on all; 0 does nothing
  DataType type = DataType::f32;
  void* stream = nullptr;  ///< as AllReduceArguments::stream
};

/// The arguments of one reduce-scatter.
struct ReduceScatterArguments {
  const void* input = nullptr;  ///< `count` elements for each rank, in rank order
  /// `count` elements: the result for this rank. Apart from `input`, or this rank's place in it.
  void* output = nullptr;
  std::size_t count = 0;  ///< elements for one rank, the same on all; 0 does nothing
  DataType type = DataType::f32;
  ReduceOp op = ReduceOp::sum;
  const void* scalar = nullptr;  ///< as AllReduceArguments::scalar
  void* stream = nullptr;        ///< as AllReduceArguments::stream
};

/// One rank of a communicator. Ends with the object (see close()). Move-only; of a moved-from one
/// only destruction and assignment are allowed.
///
/// One thread at a time may call, but for abort() and async_error(), which any thread may call at
/// any time. Set-up calls block for at most ORIEL_TIMEOUT (30 s) each.
///
/// Once a peer has died, a wait was given up or abort() was called, async_error() says why, and all
/// collective calls are refused with that error.
class ORIEL_API Communicator {
 public:
  /// Joins as rank `rank` of `size`. Ranks may be processes or threads. The rank lives on the
  /// calling thread's current CUDA device, or on the CPU if there is no GPU or ORIEL_BACKEND says
  /// so. Collective, blocking.
  /// Errors: invalid_argument (rank, size, options, an id that is none), invalid_usage (a bad
  /// setting; ranks disagree), timeout (a rank did not come), remote (a rank failed), cuda, system.
  static Result<Communicator> init(const UniqueId& id, int rank, int size,
                                   const CommunicatorOptions& options = {});
  /// A communicator of the C interface, which must have started and must outlive the use of this
  /// object; destroying this object leaves it alone. Local. Error: invalid_argument (a null or
  /// stale handle), or why it has not started.
  static Result<Communicator> borrow(ncclComm* handle);

  Communicator(Communicator&& other) noexcept;
  Communicator& operator=(Communicator&& other) noexcept;
  /// As close(), without a word; an error goes to the log.
  ~Communicator();

  int rank() const;
  int size() const;
  /// The world ranks whose memory this rank's kernels can reach (its LSA team), its own among them,
  /// in the order of the team: what device code calls LSA rank i is lsa_team()[i]. Local.
  std::vector<int> lsa_team() const;
  /// The CUDA device of this rank, or -1 on the CPU. Local.
  int cuda_device() const;
  /// The same communicator for the C interface. Ends with this object, unless it was borrowed.
  ncclComm* handle() const;

  /// Memory of at least `bytes` on this rank's device, which can become a window. Local. On a GPU
  /// its contents are undefined, on the CPU zero. A process that is forked later may use it, but
  /// not register it. Errors: invalid_argument (0 bytes), cuda, system.
  Result<Buffer> allocate(std::size_t bytes) const;

  /// Registers a range of each rank as one window; `bytes` is the same on all ranks. Memory that
  /// can be shared: of allocate() or ncclMemAlloc; on GPUs also cuMem allocations of others, if
  /// made exportable. The memory outlives the window. Collective, blocking. Errors:
  /// invalid_argument (null, 0 bytes, alignment, past the end of its allocation, memory that cannot
  /// be shared, with the call to use instead), invalid_usage (ranks disagree), timeout, remote,
  /// cuda, system.
  Result<Window> register_window(MemoryRange range);
  Result<Window> register_window(const Buffer& buffer);
  /// Several at once, in as many rounds of messages as one: all are registered or none.
  Result<std::vector<Window>> register_windows(std::span<const MemoryRange> ranges);

  /// Reduces `count` elements over all ranks, every rank receives the same bits. Buffers may lie in
  /// windows or not. Where all ranks are of one node, windows on all of them save a copy; among
  /// nodes they save none, for what crosses is a sum that is made in memory of Oriel's own, and is
  /// sent from and to there. Collective, in the order of the calls.
  /// On a GPU: enqueued on the stream; buffers belong to the call until that work has ended. On the
  /// CPU: done when it returns, and all ranks have come then.
  /// Memory order: what the stream (the calling thread) did before is part of the input; the output
  /// is there for what the stream (the thread) does next.
  /// Errors: invalid_argument (a null, misaligned or half overlapping buffer, a scalar that is
  /// missing or not wanted), invalid_usage (ranks are in different calls; no network between the
  /// nodes), the communicator's asynchronous error.
  Status all_reduce(const AllReduceArguments& arguments);
  /// Gives every rank the inputs of all. In all else as all_reduce.
  Status all_gather(const AllGatherArguments& arguments);
  /// Reduces over all ranks, of which each receives a part of the result. In all else as
  /// all_reduce.
  Status reduce_scatter(const ReduceScatterArguments& arguments);

  /// Makes a communicator for kernels of the user's own. Collective, blocking.
  /// Errors: invalid_argument (barrier_slots), invalid_usage (ranks disagree), timeout, remote,
  /// cuda, system.
  Result<DeviceComm> device_comm(const DeviceCommOptions& options = {});

  /// Ends all waits of this communicator on all ranks; collectives that were under way have
  /// undefined outputs. Local, does not wait. Idempotent.
  void abort();
  /// Why the communicator cannot be used any more, if so. Local, does not block.
  std::optional<Error> async_error() const;

  /// Waits for this rank's collectives and ends its part in the communicator. Windows and
  /// DeviceComms that are left keep its links and memory until they go. Local; blocks while a
  /// collective is under way. A borrowed communicator is only let go. Later calls do nothing, and
  /// calls that need a communicator return invalid_usage. No other call may run meanwhile.
  /// Error: cuda.
  Status close();

 private:
  struct Impl;
  explicit Communicator(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace oriel
