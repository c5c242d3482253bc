// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <cstdlib>
#include <fstream>
#include <random>
#include <string>
#include <vector>

#include <catch2/catch.hpp>
#include <malloc.h>
#include <unistd.h>

#include "comm/support/held.hpp"

/// Tests the lifetime of windows through the C interface, on the CPU.
namespace oriel::test {
namespace {

constexpr std::size_t kPage = 4096;

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr bool kSanitizer = true;  // has its own heap, which delays the reuse of freed memory
#else
constexpr bool kSanitizer = false;
#endif

/// Memory use that shows leaks without a descriptor or mapping.
struct Memory {
  std::size_t heap_bytes = 0;      ///< allocated by malloc
  std::size_t resident_bytes = 0;  ///< resident pages other than shared memory
};

Memory memory_now() {
  static_cast<void>(::malloc_trim(0));
  Memory now;
  now.heap_bytes = ::mallinfo2().uordblks + ::mallinfo2().hblkhd;
  std::size_t size = 0, resident = 0, shared = 0;
  std::ifstream("/proc/self/statm") >> size >> resident >> shared;
  now.resident_bytes = (resident - shared) * static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  return now;
}

int wanted_cycles() {
  const char* wanted = std::getenv("ORIEL_TEST_CYCLES");
  if (wanted != nullptr) return std::atoi(wanted);
  return kSanitizer ? 1000 : 10'000;
}

void fill(void* memory, std::size_t count, float value) {
  for (std::size_t i = 0; i < count; ++i) static_cast<float*>(memory)[i] = value;
}

}  // namespace

TEST_CASE("ncclMemFree refuses memory under a window, naming the call to make first",
          "[req:1.18]") {
  for (const LaunchMode launch_mode : kLaunchModes) {
    INFO(name_of(launch_mode));
    check_all_ok(run_ranks(launch_mode, 2, [](TestRanks& self) {
      constexpr std::size_t kCount = 4096;
      auto comms = self.init();
      for (const bool by_communicator : {false, true}) {
        std::vector<void*> memory(comms.size());
        for (void*& one : memory) require(ncclMemAlloc(&one, 4 * kCount), "ncclMemAlloc");
        const auto windows = self.register_windows(comms, memory, 4 * kCount);
        for (std::size_t i = 0; i < comms.size(); ++i) {
          expect_error(ncclMemFree(memory[i]), ncclInvalidUsage, "ncclMemFree",
                       {"a window is registered on it", "ncclCommWindowDeregister"});
          fill(memory[i], kCount, static_cast<float>(self.ranks()[i] + 1));
        }
        require(self.together([&](std::size_t i, int) {
          return ncclAllReduce(memory[i], memory[i], kCount, ncclFloat, ncclSum, comms[i], nullptr);
        }),
                "ncclAllReduce");
        for (const void* one : memory) {
          require(static_cast<const float*>(one)[kCount - 1] == 3, "the sum");
        }
        self.barrier();
        if (by_communicator) self.destroy(comms);
        for (std::size_t i = 0; i < memory.size(); ++i) {
          if (!by_communicator)
            require(ncclCommWindowDeregister(comms[i], windows[i]), "deregister");
          require(ncclMemFree(memory[i]), "ncclMemFree");
        }
      }
    }));
  }
}

TEST_CASE("heap and resident pages do not grow with the number of registrations", "[req:1.21]") {
  const int cycles = wanted_cycles();
  const auto seed = std::random_device{}();
  INFO("seed " << seed << ", " << cycles << " cycles (ORIEL_TEST_CYCLES changes them)");
  check_all_ok(run_ranks(
      LaunchMode::processes, 2,
      [&](TestRanks& self) {
        std::mt19937 common(seed), own(seed + 1 + static_cast<unsigned>(self.first()));
        ncclComm_t comm = self.init().at(0);
        std::vector<std::unique_ptr<Buffer>> buffers;
        for (int i = 0; i < 6; ++i) buffers.push_back(std::make_unique<Buffer>(32 * kPage));
        std::vector<ncclWindow_t> alive;
        Memory early;
        Held early_held{};
        for (int cycle = 1; cycle <= cycles; ++cycle) {
          std::vector<ncclWindow_t> made(1 + common() % 3);
          require(ncclGroupStart(), "ncclGroupStart");
          for (ncclWindow_t& window : made) {
            auto* const base = static_cast<std::byte*>(buffers[common() % buffers.size()]->at());
            const std::size_t offset = own() % 16, pages = 1 + common() % 16;
            require(ncclCommWindowRegister(comm, base + offset * kPage, pages * kPage, &window, 0),
                    "ncclCommWindowRegister");
          }
          require(ncclGroupEnd(), "ncclGroupEnd");
          alive.insert(alive.end(), made.begin(), made.end());
          const bool measured = cycle == cycles / 5 || cycle == cycles;
          while (alive.size() > (measured ? 0U : 12U)) {
            const auto at = alive.begin() + static_cast<std::ptrdiff_t>(own() % alive.size());
            require(ncclCommWindowDeregister(comm, *at), "ncclCommWindowDeregister");
            alive.erase(at);
          }
          if (!measured) continue;
          self.barrier();
          const Memory now = memory_now();
          if (cycle < cycles) {
            early = now;
            early_held = settled();
          } else {
            require_held(early_held, "after the last cycle");
            // By default 8,000 cycles lie between the measurements. A leak of malloc's smallest
            // chunk, 32 bytes, in each of them would be 250 KiB.
            require(
                kSanitizer || now.heap_bytes <= early.heap_bytes + 64 * 1024,
                fmt::format("{} bytes of heap instead of {}", now.heap_bytes, early.heap_bytes));
            require(kSanitizer || now.resident_bytes <= early.resident_bytes + 512 * 1024,
                    fmt::format("{} resident bytes instead of {}", now.resident_bytes,
                                early.resident_bytes));
          }
          self.barrier();
        }
        require(ncclCommDestroy(comm), "ncclCommDestroy");
      },
      120s));
}

}  // namespace oriel::test
