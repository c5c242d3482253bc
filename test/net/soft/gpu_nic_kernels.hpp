// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "oriel/device/queue.hpp"

#include "net/queue/operations_body.hpp"
#include "net/soft/immediates_body.hpp"
#include "net/soft/random_ops.hpp"

/// Kernels that post work to a software NIC. Each launcher returns a cudaError_t as int and does
/// not synchronise; `stream` is a cudaStream_t. All pointers must be accessible to the kernel.
namespace oriel::net::test {

/// Queue and memory of one side.
struct GpuPath : OperationsPath {
  /// Offsets of the signal words: in `local`, added to by the peer's puts; in `remote`, added to by
  /// this side's puts.
  std::uint64_t own_signal = 0;
  std::uint64_t far_signal = 0;
};

struct OpsJob {
  OperationsPath path;
  RandomOp* ops = nullptr;
  std::uint32_t count = 0;
  std::uint32_t* outcome = nullptr;  ///< a QueueOutcome; set at the end
};

/// Runs every operation by each thread, lane, warp or CTA of a kernel of kOperationsCtas CTAs.
struct OperationsJob {
  OperationsPath path;
  std::uint32_t* wrong = nullptr;  ///< result of OperationsBody::run() of each group
};
enum class OperationsGroup : std::uint32_t { thread, lanes, warp, cta };
inline constexpr std::uint32_t kOperationsCtas = 2;
inline constexpr std::uint32_t kOperationsThreads = 64;

/// One end of a transfer with immediates, by one thread, warp or CTA.
struct ImmediatesJob {
  ImmediatesPath path;
  std::uint32_t rounds = 0;
  bool sends = false;                ///< sends; else receives
  std::uint32_t* wrong = nullptr;    ///< number of wrong rounds
  std::uint32_t* outcome = nullptr;  ///< a QueueOutcome; set at the end
};

/// Fetches a word by each thread of a kernel of kTicketCtas CTAs.
struct TicketsJob {
  OperationsPath path;
  std::uint64_t offset = 0;          ///< offset of the word
  std::uint32_t each = 0;            ///< fetches of each thread
  std::uint64_t* tickets = nullptr;  ///< old values that each thread has fetched
  std::uint32_t* outcome = nullptr;  ///< a QueueOutcome of each thread
};
inline constexpr std::uint32_t kTicketCtas = 32;
inline constexpr std::uint32_t kTicketThreads = 128;

/// Posts `rounds` puts, of which at most `in_flight` are incomplete.
struct PutsJob {
  GpuPath path;
  std::uint64_t bytes = 0;
  std::uint32_t rounds = 0;
  std::uint32_t in_flight = 1;
  std::uint32_t* outcome = nullptr;
};

/// One side of a ping-pong of puts with signals. All bytes of round r have the value r modulo 256;
/// the receiver checks each.
struct PingJob {
  GpuPath path;
  std::uint64_t from = 0;  ///< offset of the data sent; `to`: offset where the peer's arrives
  std::uint64_t to = 0;
  std::uint64_t bytes = 0;
  std::uint32_t rounds = 0;
  bool begins = false;
  std::uint64_t* cycles = nullptr;       ///< clock cycles per round trip if `begins`; may be null
  std::uint64_t* wrong = nullptr;        ///< number of wrong bytes
  std::uint64_t* nanoseconds = nullptr;  ///< duration of all rounds
  std::uint32_t* outcome = nullptr;
};

/// Measures the processor and the copy engine alone: writes a word in pinned memory and waits for a
/// word in the GPU's memory, `rounds` times.
struct FloorJob {
  std::uint64_t* asked = nullptr;
  const std::uint64_t* answered = nullptr;
  std::uint32_t rounds = 0;
  std::uint64_t* cycles = nullptr;
  std::uint64_t* nanoseconds = nullptr;
};

/// Loads all kernels into the current device.
int load_gpu_nic_kernels();
int load_operations_kernels();
#if defined(__CUDACC__)
template <class... Kernels>
int load_kernels(Kernels... kernels) {
  cudaFuncAttributes attributes;
  int status = cudaSuccess;
  ((status = status == cudaSuccess ? cudaFuncGetAttributes(&attributes, kernels) : status), ...);
  return status;
}
template <class Argument>
int launch(void (*kernel)(Argument), std::uint32_t ctas, std::uint32_t threads,
           const Argument& argument, void* stream) {
  kernel<<<ctas, threads, 0, static_cast<cudaStream_t>(stream)>>>(argument);
  return cudaGetLastError();
}
#endif
int launch_ops(const OpsJob& job, void* stream);
int launch_operations(const OperationsJob& job, OperationsGroup group, void* stream);
int launch_immediates(const ImmediatesJob& job, OperationsGroup group, void* stream);
int launch_tickets(const TicketsJob& job, void* stream);
int launch_puts(const PutsJob& job, void* stream);
int launch_ping(const PingJob& job, void* stream);
int launch_floor(const FloorJob& job, void* stream);
/// Launches a kernel that does next to nothing, for tests that stand in for an application.
int launch_nothing(std::uint32_t* word, void* stream);

}  // namespace oriel::net::test
