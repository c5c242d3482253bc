// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "base/cuda_table.hpp"
#include "base/try.hpp"
#include "support/cuda/fault_cuda.hpp"
#include "support/cuda/gpu_count.hpp"
#include "support/cuda/needs_gpu.hpp"
#include "support/process_state.hpp"
#include "window/memory/memory_cuda.hpp"
#include "window/memory/on_device.hpp"
#include "window/memory/sizes.hpp"
#include "window/registration/window_ranks.hpp"

// Tests registration of GPU memory between processes and threads, with the real driver. The test
// itself never initialises CUDA, because its forked ranks could not use CUDA then.
namespace oriel::window {
namespace {

constexpr std::size_t kGiB = std::size_t{1} << 30;

const int kGpus = test::gpus_or_skip(test::driver_gpus);

RankOptions on_gpus() {
  RankOptions options;
  options.always_fork = true;
  options.slot_bytes = 16 * kSlotUnitBytes;
  options.memory = [](int rank) { return cuda_memory(rank % kGpus); };
  return options;
}

class GpuBuffer {
 public:
  static Result<std::unique_ptr<GpuBuffer>> make(Memory& memory, std::size_t bytes) {
    ORIEL_TRY(void* base, memory.allocate(bytes));
    return std::unique_ptr<GpuBuffer>(new GpuBuffer(memory, static_cast<std::byte*>(base)));
  }
  ~GpuBuffer() { static_cast<void>(memory_.free(base_)); }
  GpuBuffer(const GpuBuffer&) = delete;
  GpuBuffer& operator=(const GpuBuffer&) = delete;
  std::byte* at(std::size_t offset = 0) const { return base_ + offset; }

 private:
  GpuBuffer(Memory& memory, std::byte* base) : memory_(memory), base_(base) {}
  Memory& memory_;
  std::byte* base_;
};

unsigned mark(int index, std::size_t window, int salt) {
  return 0x10000u * static_cast<unsigned>(salt) + 0x100u * static_cast<unsigned>(index) +
         static_cast<unsigned>(window);
}

Status check_visible(WindowRank& self, const std::vector<RegisteredWindow>& windows) {
  boot::Group& team = self.team();
  ORIEL_TRY(const auto device, OnDevice::enter(self.memory().device()));
  for (std::size_t i = 0; i < windows.size(); ++i) {
    ORIEL_CHECK(device->fill(windows[i].user, mark(team.index(), i, 1), windows[i].bytes));
  }
  ORIEL_CHECK(self.barrier());
  for (std::size_t i = 0; i < windows.size(); ++i) {
    for (int peer = 0; peer < team.size(); ++peer) {
      const std::byte* begin = self.peer(windows[i], peer);
      for (const std::size_t offset : {std::size_t{0}, windows[i].bytes - 4}) {
        ORIEL_TRY(const unsigned seen, device->word(begin + offset));
        ORIEL_EXPECT(seen == mark(peer, i, 1));
      }
    }
  }
  ORIEL_CHECK(self.barrier());
  const int next = (team.index() + 1) % team.size();
  for (std::size_t i = 0; i < windows.size(); ++i) {
    ORIEL_CHECK(device->fill(self.peer(windows[i], next), mark(next, i, 2), windows[i].bytes));
  }
  ORIEL_CHECK(self.barrier());
  for (std::size_t i = 0; i < windows.size(); ++i) {
    ORIEL_TRY(const unsigned seen, device->word(windows[i].user + windows[i].bytes - 4));
    ORIEL_EXPECT(seen == mark(team.index(), i, 2));
  }
  return self.barrier();
}

}  // namespace

TEST_CASE("GPU windows are seen by every rank, of processes and of threads", "[req:1.19]") {
  check_ranks({{1, 1}, {2}, {1, 2}, {1, 1, 1, 1}}, on_gpus(), [](WindowRank& self) -> Status {
    ORIEL_TRY(const auto small, GpuBuffer::make(self.memory(), 4096));
    const auto granules = 1 + static_cast<std::size_t>(self.rank()) % 3;
    ORIEL_TRY(const auto large, GpuBuffer::make(self.memory(), (8 + 2 * granules) * kMiB));
    ORIEL_TRY(const auto windows,
              self.register_batch(
                  {{small->at(), 4096, 0}, {large->at(2 * kMiB * granules), 4 * kMiB, 0}}));
    ORIEL_CHECK(check_visible(self, windows));
    ORIEL_CHECK(self.deregister(windows));
    ORIEL_CHECK(self.barrier());
    ORIEL_EXPECT(self.space().slots().taken_bytes() == 0);
    // Offsets that differ by less than a granule cannot be mapped to one offset.
    const auto refused =
        self.register_one(large->at(static_cast<std::size_t>(self.rank()) % 2 * 4096), 4096);
    ORIEL_EXPECT(!refused.ok());
    ORIEL_EXPECT(refused.error().message().find("rank 1") != std::string::npos);
    return self.barrier();
  });
}

TEST_CASE("1 GiB windows register in 12 ms, and cycles hold nothing", "[req:1.21]") {
  const std::vector<int> layout(4, 1);
  check_all_ok(run_ranks(layout, on_gpus(), [](WindowRank& self) -> Status {
    std::vector<std::unique_ptr<GpuBuffer>> buffers;
    std::vector<RegisteredWindow> windows;
    std::vector<double> milliseconds;
    for (int i = 0; i < 10; ++i) {
      ORIEL_TRY(auto buffer, GpuBuffer::make(self.memory(), kGiB));
      buffers.push_back(std::move(buffer));
      ORIEL_CHECK(self.barrier());
      const auto begin = std::chrono::steady_clock::now();
      ORIEL_TRY(const auto window, self.register_one(buffers.back()->at(), kGiB));
      const std::chrono::duration<double, std::milli> spent =
          std::chrono::steady_clock::now() - begin;
      milliseconds.push_back(spent.count());
      windows.push_back(window);
    }
    if (self.rank() == 0) {
      std::printf("1 GiB windows on %d GPU(s), 4 ranks, ms:", kGpus);
      for (const double one : milliseconds) std::printf(" %.2f", one);
      std::printf("\n");
      std::fflush(stdout);
    }
    ORIEL_CHECK(check_visible(self, windows));
    std::sort(milliseconds.begin() + 1, milliseconds.end());
    ORIEL_EXPECT(milliseconds[5] <= 12);
    ORIEL_CHECK(self.deregister(windows));
    ORIEL_CHECK(self.barrier());

    std::size_t fds = 0;
    for (int cycle = 0; cycle < 200; ++cycle) {
      ORIEL_CHECK(self.cycle(buffers[0]->at(), 64 * kMiB));
      if (cycle == 20) fds = test::count_fds();
    }
    ORIEL_EXPECT(test::count_fds() == fds);
    ORIEL_CHECK(self.barrier());
    ORIEL_EXPECT(self.space().slots().taken_bytes() == 0);
    return self.barrier();
  }));
}

namespace {

/// Resources of a rank, for a comparison before and after.
struct Held {
  std::size_t fds = 0;
  std::size_t taken = 0;
  int objects = 0;
  bool operator==(const Held&) const = default;
};

Held held_by(WindowRank& self) {
  static std::mutex mutex;  // counting opens files itself
  const std::lock_guard lock(mutex);
  return {test::count_fds(), self.space().slots().taken_bytes(), self.sink().alive()};
}

/// Registers a window, which reopens the sockets that an earlier failure has closed.
Status register_fresh(WindowRank& self) {
  ORIEL_TRY(const auto fresh, GpuBuffer::make(self.memory(), 2 * kMiB));
  ORIEL_CHECK(self.cycle(fresh->at(), 2 * kMiB));
  return self.barrier();
}

/// Fails the k-th driver call of a registration on `victim`, for every k, within one communicator.
/// The communicator must remain usable.
Status fail_every_call(WindowRank& self, int victim, GpuBuffer& kept, int& errors) {
  const bool mine = self.rank() == victim;
  for (long k = 1; k < 500; ++k) {
    ORIEL_TRY(const auto fresh, GpuBuffer::make(self.memory(), 2 * kMiB));
    ORIEL_CHECK(register_fresh(self));
    const Held before = held_by(self);
    ORIEL_CHECK(self.barrier());
    test::FaultPlan plan;
    plan.fail_at = k;
    plan.status = CUDA_ERROR_OUT_OF_MEMORY;
    auto registered = [&] {
      std::optional<test::ScopedCudaFaults> faults;
      if (mine) faults.emplace(plan);
      return self.register_batch({{fresh->at(), 2 * kMiB, 0}, {kept.at(), 4096, 0}});
    }();
    if (registered.ok()) {
      ORIEL_CHECK(self.deregister(registered.value()));
    } else {
      ++errors;
      const std::string text = registered.error().to_string();
      ORIEL_EXPECT(registered.error().origin_rank() == victim);
      ORIEL_EXPECT(text.find("OUT_OF_MEMORY") != std::string::npos);
      ORIEL_CHECK(self.same_everywhere(text));
    }
    ORIEL_CHECK(register_fresh(self));
    ORIEL_EXPECT(held_by(self) == before);
    ORIEL_CHECK(self.barrier());
    const Status reached = self.agree(
        mine && !plan.hit() ? Status(Error(ErrorCode::internal, "no more calls")) : Status());
    if (!reached.ok()) return {};
  }
  return Error(ErrorCode::internal, "a registration takes more than 500 driver calls");
}

}  // namespace

TEST_CASE("any failed driver call of a registration, on any rank, has one outcome on all ranks",
          "[req:1.41]") {
  check_ranks({{1, 1}, {2}}, on_gpus(), [&](WindowRank& self) -> Status {
    static const test::CudaFaultHooks hooks;  // one for the process
    ORIEL_TRY(const auto kept, GpuBuffer::make(self.memory(), 4096));
    ORIEL_TRY(const auto window, self.register_one(kept->at(), 4096));
    int errors = 0;
    for (int victim = 0; victim < self.size(); ++victim) {
      ORIEL_CHECK(fail_every_call(self, victim, *kept, errors));
    }
    ORIEL_EXPECT(errors >= 10);
    ORIEL_CHECK(check_visible(self, {window}));
    ORIEL_CHECK(self.manager().deregister(window.handle));
    return self.barrier();
  });
}

}  // namespace oriel::window
