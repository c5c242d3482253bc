// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
// One thread calls exit() while others are inside calls, many times: nothing that they use may be
// destroyed under them. Run it under the address sanitizer, which sees what is.
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

std::atomic<bool>* error_seen = nullptr;  // shared with the children

}  // namespace

// Memory of threads that still run is no leak.
extern "C" const char* __asan_default_options() {
  return "detect_leaks=0";
}
// The exit status may be that of exit(), which runs meanwhile.
extern "C" void __asan_on_error() {
  *error_seen = true;
}

namespace {

constexpr int kRanks = 3;

/// What the ranks share; never destroyed, as what the library owns.
struct Meeting {
  std::barrier<> barrier{kRanks};
  ncclUniqueId id;
};

/// Starts, uses and destroys communicators for ever. An exit may make any of these calls fail.
void live(Meeting& meeting, int rank) {
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
        static_cast<void>(ncclAllReduce(buffer, buffer, call % 2 == 0 ? 1 : 16384, ncclFloat,
                                        ncclMax, comm, nullptr));
      }
      static_cast<void>(ncclCommWindowDeregister(comm, window));
    }
    static_cast<void>(ncclCommDestroy(comm));
    static_cast<void>(ncclMemFree(buffer));
  }
}

[[noreturn]] void exit_beside_calls(std::chrono::microseconds delay) {
  ::alarm(60);
  auto& meeting = *new Meeting;
  for (int rank = 0; rank < kRanks; ++rank) {
    std::thread([&meeting, rank] { live(meeting, rank); }).detach();
  }
  std::this_thread::sleep_for(delay);
  std::exit(0);
}

}  // namespace

int main(int count, char** arguments) {
  ::setenv("ORIEL_BACKEND", "host", 1);
  void* const shared =
      ::mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (shared == MAP_FAILED) return 1;
  error_seen = new (shared) std::atomic<bool>(false);
  const int exits = count > 1 ? std::atoi(arguments[1]) : 60;
  std::mt19937 random(std::random_device{}());
  for (int i = 0; i < exits; ++i) {
    const std::chrono::microseconds delay(random() % 60'000);
    const pid_t child = ::fork();
    if (child == 0) exit_beside_calls(delay);
    int status = -1;
    if (::waitpid(child, &status, 0) != child || status != 0 || *error_seen) {
      std::fprintf(stderr, "exit %d, after %d us: status %#x\n", i, static_cast<int>(delay.count()),
                   static_cast<unsigned>(status));
      return 1;
    }
  }
  return 0;
}
