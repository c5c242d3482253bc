// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "nccl.h"
#include "oriel/error.hpp"

#include "base/deadline.hpp"
#include "perf/shared_barrier.hpp"
#include "perf/values.hpp"

namespace oriel::perf {

/// Counts the errors found in one buffer set after a call.
struct CheckReport {
  std::uint64_t wrong_outputs = 0;
  std::uint64_t changed_inputs = 0;
  std::uint64_t written_past_end = 0;  ///< bytes
  std::uint64_t first_wrong = UINT64_MAX;
  std::uint64_t digest = 0;  ///< hash of the output's bits; ranks with equal bits have equal hashes

  std::uint64_t total() const { return wrong_outputs + changed_inputs + written_past_end; }
  void add(const CheckReport& other) {
    wrong_outputs += other.wrong_outputs;
    changed_inputs += other.changed_inputs;
    written_past_end += other.written_past_end;
    first_wrong = other.first_wrong < first_wrong ? other.first_wrong : first_wrong;
    digest = digest * 31 + other.digest;
  }
};

/// A loop of calls to time.
struct TimedLoop {
  int calls = 1;
  int graph_launches = 0;  ///< 0: plain calls; else launches of a CUDA graph of all `calls`
  bool blocking = false;   ///< wait for each call before the next (plain calls only)
  double jitter_us = 0;    ///< upper bound of the random delay before each call
  std::uint64_t jitter_seed = 0;
  std::function<Status(int call)> issue;  ///< enqueues one call, numbered from 0
};

/// Allocates, fills and checks the buffers of one rank, and times its calls. One object per rank,
/// used by one thread. When a call succeeds, its work on the device has finished.
class Backend {
 public:
  virtual ~Backend() = default;

  virtual std::string device_name() const = 0;
  /// Returns the stream of the collectives; null on CPUs.
  virtual cudaStream_t stream() const = 0;

  /// Allocates ordinary memory, unknown to the library under test. Freed with the backend.
  virtual Result<void*> allocate(std::size_t bytes) = 0;

  virtual Status fill(void* out, std::size_t count, const Pattern& pattern, int rank) = 0;
  virtual Status set_bytes(void* out, std::uint8_t value, std::size_t bytes) = 0;
  virtual Status check_output(const void* data, std::size_t count, const Pattern& pattern,
                              CheckReport& report) = 0;
  virtual Status check_input(const void* data, std::size_t count, const Pattern& pattern, int rank,
                             CheckReport& report) = 0;
  virtual Status check_bytes(const void* data, std::uint8_t value, std::size_t bytes,
                             CheckReport& report) = 0;

  /// Waits for all work enqueued on stream().
  virtual Status synchronize(Deadline deadline) = 0;

  /// Runs the loop once and returns microseconds per call. Waits at the barrier, then makes one
  /// untimed call (or graph launch), so that ranks start as the collective itself leaves them.
  /// Captures a graph at its first use and keeps it until forget_graphs().
  virtual Result<double> time(const TimedLoop& loop, const SharedBarrier& barrier,
                              Deadline deadline) = 0;
  virtual void forget_graphs() {}

  /// Makes each of the loop's calls once and waits for them. On GPUs, if graph_launches is above 0,
  /// the calls go through a graph as in time().
  virtual Status run_once(const TimedLoop& loop, Deadline deadline) = 0;

  /// Sets a function that is polled while waiting for the device; its error ends the wait.
  void watch(std::function<Status()> health) { health_ = std::move(health); }

 protected:
  Status healthy() const { return health_ ? health_() : Status{}; }

 private:
  std::function<Status()> health_;
};

std::unique_ptr<Backend> make_host_backend();
/// Uses device `local_rank` modulo the number of devices.
Result<std::unique_ptr<Backend>> make_cuda_backend(int local_rank);
/// Counts the GPUs; 0 without a driver or in a build without CUDA. Initialises CUDA in this
/// process.
int count_cuda_devices();

/// Returns the pseudorandom delay before call `call` of a rank, in [0, jitter_us).
inline double jitter_delay_us(const TimedLoop& loop, int call) {
  const std::uint64_t random =
      scramble(loop.jitter_seed + static_cast<std::uint64_t>(call) * 0x9e3779b97f4a7c15u);
  return loop.jitter_us * static_cast<double>(random >> 11) * 0x1p-53;
}

}  // namespace oriel::perf
