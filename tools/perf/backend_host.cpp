// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <vector>

#include <fmt/format.h>

#include "base/try.hpp"
#include "perf/backend.hpp"

namespace oriel::perf {
namespace {

using SteadyTime = std::chrono::steady_clock;

double microseconds_since(SteadyTime::time_point start) {
  return std::chrono::duration<double, std::micro>(SteadyTime::now() - start).count();
}

void spin_for(double us) {
  const auto start = SteadyTime::now();
  while (microseconds_since(start) < us) {
  }
}

std::vector<std::uint64_t> keys_of(const Pattern& pattern) {
  std::vector<std::uint64_t> keys(static_cast<std::size_t>(pattern.ranks));
  for (int rank = 0; rank < pattern.ranks; ++rank)
    keys[static_cast<std::size_t>(rank)] = key_of(pattern.seed, rank);
  return keys;
}

// Returns the storage bits as an unsigned number, for the digest.
template <typename Storage>
std::uint64_t bits_of(Storage value) {
  std::uint64_t bits = 0;
  std::memcpy(&bits, &value, sizeof value);
  return bits;
}

class HostBackend final : public Backend {
 public:
  std::string device_name() const override { return "CPU"; }
  cudaStream_t stream() const override { return nullptr; }

  Result<void*> allocate(std::size_t bytes) override {
    // Uses malloc, as ordinary programs do, and touches all pages so that no page fault is timed.
    void* memory = std::malloc(bytes);
    if (memory == nullptr)
      return Error(ErrorCode::system, fmt::format("no memory for a buffer of {} bytes", bytes));
    std::memset(memory, 0, bytes);
    allocations_.emplace_back(memory);
    return memory;
  }

  Status fill(void* out, std::size_t count, const Pattern& pattern, int rank) override {
    with_type(pattern.type, [&](auto type) {
      auto* data = static_cast<typename Element<type()>::Storage*>(out);
      const std::uint64_t key = key_of(pattern.seed, rank);
      for (std::size_t i = 0; i < count; ++i) data[i] = input_at<type()>(pattern.op, rank, key, i);
    });
    return {};
  }

  Status set_bytes(void* out, std::uint8_t value, std::size_t bytes) override {
    std::memset(out, value, bytes);
    return {};
  }

  Status check_output(const void* data, std::size_t count, const Pattern& pattern,
                      CheckReport& report) override {
    const std::vector<std::uint64_t> keys = keys_of(pattern);
    with_type(pattern.type, [&](auto type) {
      const auto* results = static_cast<const typename Element<type()>::Storage*>(data);
      for (std::size_t i = 0; i < count; ++i) {
        report.digest += digest_term(i, bits_of(results[i]));
        if (result_ok<type()>(pattern, keys.data(), i, results[i])) continue;
        ++report.wrong_outputs;
        report.first_wrong = std::min<std::uint64_t>(report.first_wrong, i);
      }
    });
    return {};
  }

  Status check_input(const void* data, std::size_t count, const Pattern& pattern, int rank,
                     CheckReport& report) override {
    with_type(pattern.type, [&](auto type) {
      const auto* values = static_cast<const typename Element<type()>::Storage*>(data);
      const std::uint64_t key = key_of(pattern.seed, rank);
      for (std::size_t i = 0; i < count; ++i)
        if (bits_of(values[i]) != bits_of(input_at<type()>(pattern.op, rank, key, i)))
          ++report.changed_inputs;
    });
    return {};
  }

  Status check_bytes(const void* data, std::uint8_t value, std::size_t bytes,
                     CheckReport& report) override {
    const auto* at = static_cast<const std::uint8_t*>(data);
    const auto same = static_cast<std::size_t>(std::count(at, at + bytes, value));
    report.written_past_end += bytes - same;
    return {};
  }

  Status synchronize(Deadline) override { return {}; }  // calls on CPUs block until done

  Result<double> time(const TimedLoop& loop, const SharedBarrier& barrier,
                      Deadline deadline) override {
    if (loop.graph_launches > 0)
      return Error(ErrorCode::invalid_argument, "-G: there are no graphs without a GPU");
    ORIEL_CHECK(barrier.wait(deadline));
    ORIEL_CHECK(loop.issue(0));
    const auto start = SteadyTime::now();
    for (int call = 0; call < loop.calls; ++call) {
      if (loop.jitter_us > 0) spin_for(jitter_delay_us(loop, call));
      ORIEL_CHECK(loop.issue(call));
    }
    return microseconds_since(start) / loop.calls;
  }

  Status run_once(const TimedLoop& loop, Deadline) override {
    for (int call = 0; call < loop.calls; ++call) ORIEL_CHECK(loop.issue(call));
    return {};
  }

 private:
  struct Free {
    void operator()(void* memory) const { std::free(memory); }
  };
  std::vector<std::unique_ptr<void, Free>> allocations_;
};

}  // namespace

std::unique_ptr<Backend> make_host_backend() {
  return std::make_unique<HostBackend>();
}

#if !ORIEL_HAVE_CUDA
Result<std::unique_ptr<Backend>> make_cuda_backend(int) {
  return Error(ErrorCode::invalid_usage, "this oriel-perf was built without CUDA");
}
int count_cuda_devices() {
  return 0;
}
#endif

}  // namespace oriel::perf
