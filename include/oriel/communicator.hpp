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

/// Contains Oriel's C++ interface, which uses the same library as the C interface of nccl.h. A
/// communicator made here has an ncclComm_t. A communicator made by the C interface can be borrowed
/// here.
///
/// Terms. *Local* calls concern the calling rank alone. *Collective* calls must be made by every
/// rank of the communicator, in the same order. If a collective call that returns a Status or
/// Result fails on one rank, all ranks return the same error. Exceptions: a rank has died, or its
/// arguments are invalid by themselves (see nccl.h).
///
/// Errors are values (error.hpp). Only memory exhaustion may throw. Groups of the C interface
/// (ncclGroupStart) do not affect these calls: each call is carried out before it returns. A thread
/// that plays several ranks therefore uses the C interface, or one thread per rank.
///
/// Example: replaces the floats of each rank by their sums over all ranks.
/// ```cpp
/// oriel::Status sum(const oriel::UniqueId& id, int rank, int size, std::span<float> data) {
///   oriel::Result<oriel::Communicator> comm = oriel::Communicator::init(id, rank, size);
///   if (!comm.ok()) return comm.error();
///   const oriel::Status started = comm->all_reduce(
///       {.input = data.data(), .output = data.data(), .count = data.size()});
///   if (!started.ok()) return started;
///   return comm->close();  // waits until `data` holds the sums
/// }
/// ```
namespace oriel {

/// Options of Communicator::init.
struct CommunicatorOptions {
  int min_ctas = 0;  ///< minimum CTAs of a collective's kernel, up to 1024; 0: no limit
  /// Maximum CTAs of a collective's kernel, up to 1024; 0: the library's default limit. The least
  /// limit of all ranks counts. Minimum and maximum count the CTAs that move data. An all-reduce on
  /// GPUs has one more CTA, which checks that all ranks are in the same call.
  int max_ctas = 0;
  std::string name;  ///< name used in messages
};

/// Memory range to register as a window: all or part of a Buffer, or of other memory that can be
/// shared (see Communicator::register_windows).
struct MemoryRange {
  void* data = nullptr;   ///< first byte; the address is a multiple of 4096
  std::size_t bytes = 0;  ///< size in bytes
};

/// Arguments of one all-reduce.
struct AllReduceArguments {
  const void* input = nullptr;    ///< `count` elements of this rank, aligned to their size
  void* output = nullptr;         ///< `count` elements; equal to `input`, or disjoint from it
  std::size_t count = 0;          ///< elements, the same on all ranks; 0 moves no data
  DataType type = DataType::f32;  ///< type of the elements, the same on all ranks
  ReduceOp op = ReduceOp::sum;    ///< operation, the same on all ranks
  /// Factor of this rank, for premul_sum only: one element of `type` in host memory. The call reads
  /// it before it returns. Must be null for other operations.
  const void* scalar = nullptr;
  void* stream = nullptr;  ///< a cudaStream_t; null on the CPU
};

/// Arguments of one all-gather.
struct AllGatherArguments {
  const void* input = nullptr;  ///< `count` elements of this rank, aligned to their size
  /// Receives `count` elements of each rank, in rank order. Either disjoint from `input`, or
  /// `input` is this rank's block of it.
  void* output = nullptr;
  std::size_t count = 0;          ///< elements of one rank, the same on all; 0 moves no data
  DataType type = DataType::f32;  ///< see AllReduceArguments::type
  void* stream = nullptr;         ///< see AllReduceArguments::stream
};

/// Arguments of one reduce-scatter.
struct ReduceScatterArguments {
  const void* input = nullptr;  ///< `count` elements for each rank, in rank order
  /// Receives `count` elements: the result for this rank. Either disjoint from `input`, or this
  /// rank's block of it.
  void* output = nullptr;
  std::size_t count = 0;          ///< elements for one rank, the same on all; 0 moves no data
  DataType type = DataType::f32;  ///< see AllReduceArguments::type
  ReduceOp op = ReduceOp::sum;    ///< see AllReduceArguments::op
  const void* scalar = nullptr;   ///< see AllReduceArguments::scalar
  void* stream = nullptr;         ///< see AllReduceArguments::stream
};

/// One rank of a communicator. The rank leaves the communicator when the object is destroyed (see
/// close()). Move-only; a moved-from object may only be destroyed or assigned to.
///
/// One thread at a time may call the functions of one object. Exceptions are abort() and
/// async_error(), which any thread may call at any time. Set-up calls block for at most
/// ORIEL_TIMEOUT (30 s by default) each.
///
/// If a peer has died, a wait has timed out or abort() was called, the communicator is unusable.
/// async_error() then returns the cause, and all collective calls are refused with this error.
class ORIEL_API Communicator {
 public:
  /// Joins as rank `rank` of `size`. Ranks may be processes or threads. The rank uses the calling
  /// thread's current CUDA device. It uses the CPU if there is no GPU or ORIEL_BACKEND selects the
  /// CPU. Collective, blocking.
  /// Errors: invalid_argument (rank, size, options, or `id` is no valid id), invalid_usage (an
  /// invalid setting, or ranks disagree). Also timeout (a rank did not join), remote (a rank
  /// failed), cuda, system.
  static Result<Communicator> init(const UniqueId& id, int rank, int size,
                                   const CommunicatorOptions& options = {});
  /// Wraps a communicator of the C interface, which must have started and must outlive the use of
  /// this object. Destroying this object does not destroy the communicator. Local; does not block.
  /// Errors: invalid_argument (a null or stale handle), invalid_usage (not started yet, a call in
  /// progress, or inherited by fork), or the error of its start.
  static Result<Communicator> borrow(ncclComm* handle);

  /// Takes the place of `other`. Local; does not block.
  Communicator(Communicator&& other) noexcept;
  /// Takes the place of `other`, and calls close() for the communicator held before. An error is
  /// only logged. Blocks as close() does.
  Communicator& operator=(Communicator&& other) noexcept;
  /// Calls close(). An error is only logged.
  ~Communicator();

  /// Returns the world rank, 0 to size() - 1. Local; does not block.
  int rank() const;
  /// Returns the number of ranks. Local; does not block.
  int size() const;
  /// Returns the world ranks whose memory this rank's kernels can access (its LSA team), including
  /// its own. Device code calls rank lsa_team()[i] LSA rank i. Local; does not block.
  std::vector<int> lsa_team() const;
  /// Returns the CUDA device of this rank, or -1 on the CPU. Local; does not block.
  int cuda_device() const;
  /// Returns the handle of this communicator for the C interface; null after close(). Unless the
  /// communicator was borrowed, the handle ends with this object. Local; does not block.
  ncclComm* handle() const;

  /// Allocates at least `bytes` bytes on this rank's device, which can be registered as a window.
  /// Local; does not block. On a GPU the contents are undefined, on the CPU zero. A process forked
  /// later may use the memory, but not register it. Errors: invalid_argument (0 bytes),
  /// invalid_usage (closed or inherited communicator), cuda, system.
  Result<Buffer> allocate(std::size_t bytes) const;

  /// Registers a range of each rank as one window. `bytes` is the same on all ranks. The range lies
  /// in memory of allocate() or ncclMemAlloc, or on GPUs in a cuMem allocation that was made
  /// exportable. A Buffer may end before its windows. Other memory must outlive the window.
  /// Collective, blocking.
  /// Errors: invalid_argument (null, 0 bytes, alignment, past the end of the allocation, memory
  /// that cannot be shared), invalid_usage (ranks disagree), timeout, remote, cuda, system. For
  /// memory that cannot be shared, the error names the call to use instead.
  Result<Window> register_window(MemoryRange range);
  /// Registers a whole buffer. Otherwise behaves as the function above.
  Result<Window> register_window(const Buffer& buffer);
  /// Registers several ranges. Takes one agreement for each 16 ranges. All other rounds of messages
  /// are those of one range. Either all ranges are registered or none. Otherwise behaves as
  /// register_window.
  Result<std::vector<Window>> register_windows(std::span<const MemoryRange> ranges);

  /// Reduces `count` elements over all ranks; every rank receives the same bits. Buffers may lie in
  /// windows or not. If all ranks are on one node, windows on all ranks save a copy. Among nodes a
  /// window may save a copy: the NIC can read data from it that are sent unchanged. Partial sums
  /// that cross the network lie in Oriel's own memory. Collective, in the order of the calls.
  /// On a GPU: enqueues the work on the stream, and blocks only while the stream's queue is full.
  /// The buffers belong to the call until this work has ended. On the CPU: blocks. When the call
  /// returns it is done, and all ranks have entered it.
  /// Memory order: earlier writes of the stream (or calling thread) are part of the input. Later
  /// reads of the stream (or thread) see the output.
  /// Errors: invalid_argument (a null, misaligned or partly overlapping buffer; a scalar that is
  /// missing or not allowed). Also invalid_usage (ranks are in different calls, or no network
  /// between the nodes), or the communicator's asynchronous error.
  Status all_reduce(const AllReduceArguments& arguments);
  /// Gathers the inputs of all ranks on every rank, in rank order. Otherwise behaves as all_reduce.
  Status all_gather(const AllGatherArguments& arguments);
  /// Reduces over all ranks; each rank receives its own block of the result. Otherwise behaves as
  /// all_reduce.
  Status reduce_scatter(const ReduceScatterArguments& arguments);

  /// Creates a device communicator for the user's own kernels. Collective, blocking.
  /// Errors: invalid_argument (barrier_slots, signals or counters out of range), invalid_usage
  /// (other device headers; ranks disagree), timeout, remote, cuda, system.
  Result<DeviceComm> device_comm(const DeviceCommOptions& options = {});

  /// Ends all waits of this communicator on all ranks. The outputs of interrupted collectives are
  /// undefined. Afterwards async_error() returns `aborted` on this rank and `remote` on its peers,
  /// unless an earlier error is recorded. Local; does not block; any thread may call it.
  /// Idempotent.
  void abort();
  /// Returns the error that has made the communicator unusable, if there is one. Returns nothing
  /// after close(). Local; does not block; any thread may call it.
  std::optional<Error> async_error() const;

  /// Waits for this rank's collectives and leaves the communicator. Remaining Windows and
  /// DeviceComms keep its links and memory until they are destroyed. Local; blocks while a
  /// collective is running. A borrowed communicator is only released. Later calls do nothing, and
  /// calls that need a communicator return invalid_usage. No other call may run at the same time.
  /// Errors: cuda, timeout (unusable, and its work did not end within 5 s), invalid_argument (the
  /// handle was already ended through the C interface).
  Status close();

 private:
  struct Impl;
  explicit Communicator(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace oriel
