// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
// One thread calls exit() while others are inside calls, many times; in half of the runs calls time
// out. Objects that these threads use must not be destroyed. The address sanitizer reports such
// uses.
// [req:1.12][D16]
#include <atomic>
#include <barrier>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <new>
#include <random>
#include <thread>

#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "nccl.h"

namespace {

/// Results that the children report to the parent.
struct Shared {
  std::atomic<bool> error_seen = false;
  std::atomic<int> timeouts = 0;
};
Shared* shared = nullptr;

}  // namespace

// Disables leak checks, because threads still run and use their memory at exit.
extern "C" const char* __asan_default_options() {
  return "detect_leaks=0";
}
// Records the error here, because exit() runs meanwhile and may set the exit status.
extern "C" void __asan_on_error() {
  shared->error_seen = true;
}

namespace {

constexpr int kRanks = 3;

/// State shared by the ranks. Never destroyed, like the library's own objects.
struct Meeting {
  std::barrier<> barrier{kRanks};
  ncclUniqueId id;
};

/// Starts, uses and destroys communicators for ever; exit() may make any of these calls fail. With
/// `is_late`, this rank lets the other ranks' calls time out.
void live(Meeting& meeting, int rank, bool is_late) {
  for (;;) {
    if (rank == 0) static_cast<void>(ncclGetUniqueId(&meeting.id));
    meeting.barrier.arrive_and_wait();
    const ncclUniqueId id = meeting.id;
    meeting.barrier.arrive_and_wait();
    ncclComm_t comm = nullptr;
    if (ncclCommInitRank(&comm, kRanks, id, rank) != ncclSuccess) continue;
    void* buffer = nullptr;
    ncclWindow_t window = nullptr;
    if (ncclMemAlloc(&buffer, 65536) == ncclSuccess &&
        ncclCommWindowRegister(comm, buffer, 65536, &window, 1) == ncclSuccess) {
      for (int call = 0; call < 50; ++call) {
        if (is_late && call == 5) std::this_thread::sleep_for(std::chrono::milliseconds(30));
        const ncclResult_t result = ncclAllReduce(buffer, buffer, call % 2 == 0 ? 1 : 16384,
                                                  ncclFloat, ncclMax, comm, nullptr);
        if (result == ncclSystemError) ++shared->timeouts;
      }
      static_cast<void>(ncclCommWindowDeregister(comm, window));
    }
    static_cast<void>(ncclCommDestroy(comm));
    static_cast<void>(ncclMemFree(buffer));
  }
}

[[noreturn]] void exit_beside_calls(std::chrono::microseconds delay, bool after_timeouts) {
  ::alarm(60);
  if (after_timeouts) ::setenv("ORIEL_COLLECTIVE_TIMEOUT", "10ms", 1);
  auto& meeting = *new Meeting;
  for (int rank = 0; rank < kRanks; ++rank) {
    const bool is_late = after_timeouts && rank == 2;
    std::thread([&meeting, rank, is_late] { live(meeting, rank, is_late); }).detach();
  }
  std::this_thread::sleep_for(delay);
  std::exit(0);
}

}  // namespace

int main(int count, char** arguments) {
  ::setenv("ORIEL_BACKEND", "host", 1);
  void* const memory =
      ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return 1;
  shared = new (memory) Shared;
  const int exits = count > 1 ? std::atoi(arguments[1]) : 60;
  const char* const given = std::getenv("ORIEL_TEST_SEED");
  const auto seed = given != nullptr ? static_cast<unsigned>(std::strtoul(given, nullptr, 0))
                                     : std::random_device{}();
  std::printf("ORIEL_TEST_SEED=%u\n", seed);
  std::fflush(stdout);  // otherwise each child would print the buffer again
  std::mt19937 random(seed);
  for (int i = 0; i < exits; ++i) {
    const bool after_timeouts = i % 2 == 1;
    const std::chrono::microseconds delay(random() % (after_timeouts ? 150'000 : 60'000));
    const pid_t child = ::fork();
    if (child == 0) exit_beside_calls(delay, after_timeouts);
    int status = -1;
    if (::waitpid(child, &status, 0) != child || status != 0 || shared->error_seen) {
      std::fprintf(stderr, "exit %d, after %d us: status %#x\n", i, static_cast<int>(delay.count()),
                   static_cast<unsigned>(status));
      return 1;
    }
  }
  std::printf("%d calls timed out\n", shared->timeouts.load());
  return shared->timeouts > 0 ? 0 : 1;
}
