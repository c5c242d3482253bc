// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <string>
#include <vector>

#include <catch2/catch.hpp>
#include <fmt/format.h>
#include <unistd.h>
#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/lsan_interface.h>
#endif

#include "nccl.h"

#include "comm/support/held.hpp"
#include "support/failing_memory.hpp"
#include "support/fair_timer.hpp"
#include "support/ranks.hpp"
#include "support/sanitized.hpp"

/// Memory runs out on one rank in a call that all ranks make, at each of its allocations in turn:
/// the others learn of it long before ORIEL_TIMEOUT, and either all ranks have what the call was to
/// give them or none has.
namespace oriel::test {
namespace {

constexpr const char* kTimeout = "30s";
constexpr std::chrono::minutes kPatience{10};  // a whole walk takes minutes
constexpr std::chrono::milliseconds kPromptly{kSanitized ? 6000 : 1500};

/// Which allocations fail, one in each call: every ORIEL_TEST_STRIDE-th, if that is set, from a
/// random one on.
struct Walk {
  explicit Walk(long stride) : step(stride) {
    const char* given = std::getenv("ORIEL_TEST_STRIDE");
    if (given != nullptr) step = std::max(std::atol(given), 1L);
    first = ::getpid() % step;
  }
  long step;
  long first;
};

/// What the ranks of a play tell each other of a call, and what they make of it.
class Calls {
 public:
  Calls(Players& players, int failing) : players_(players), failing_(failing) {}

  /// Makes `call` on every rank, with the k-th allocation failing on one; the results are the same
  /// on all, or fail on all.
  template <class Call>
  ncclResult_t together(long k, const Call& call) {
    where_ = fmt::format("allocation {} of rank {}", k, failing_);
    const int rank = players_.first();
    players_.barrier();
    const auto begin = timer_.spent();
    ncclResult_t mine = ncclSuccess;
    bool hit = false;
    if (rank == failing_ && k >= 0) {
      hit = with_failure(k, [&] { mine = call(); });
    } else {
      mine = call();
    }
    const auto took = timer_.spent() - begin;
    text_ = mine != ncclSuccess ? ncclGetLastError(nullptr) : "";
    players_.word(word(rank)) = static_cast<std::uint64_t>(mine) | (hit ? kHit : 0);
    players_.barrier();
    hit_ = false;
    for (int other = 0; other < players_.size(); ++other) {
      const std::uint64_t theirs = players_.word(word(other));
      hit_ = hit_ || (theirs & kHit) != 0;
      require(((theirs & ~kHit) == 0) == (mine == ncclSuccess),
              fmt::format("{}: rank {} has {}, rank {} has {}, \"{}\"", where_, rank,
                          static_cast<int>(mine), other, theirs & ~kHit, text_));
    }
    require(took < kPromptly,
            fmt::format("{}: {} ms on rank {}: {}", where_, took.count(), rank, text_));
    return mine;
  }
  /// Requires an error that is about memory, and names the rank where it has run out.
  void require_reason(ncclResult_t result, bool one_process) const {
    const bool own = players_.first() == failing_;
    require(result == ncclSystemError,
            fmt::format("{}: the result is {}: {}", where_, static_cast<int>(result), text_));
    require(text_.find("memory") != std::string::npos, where_ + ": " + text_);
    const std::string name = one_process ? "rank " : fmt::format("rank {}", failing_);
    require(own || text_.find(name) != std::string::npos, where_ + ": " + text_);
  }
  bool hit() const { return hit_; }
  const std::string& where() const { return where_; }

 private:
  static constexpr std::uint64_t kHit = 1 << 16;
  static std::size_t word(int rank) { return static_cast<std::size_t>(rank); }

  Players& players_;
  int failing_;
  FairTimer timer_;
  std::string where_;
  std::string text_;
  bool hit_ = false;
};

void require_no_leak([[maybe_unused]] const std::string& when) {
#ifdef __SANITIZE_ADDRESS__
  require(__lsan_do_recoverable_leak_check() == 0, when + ": memory has leaked");
#endif
}

/// An all-reduce of the ranks' numbers plus one.
void require_works(Players& players, ncclComm_t comm, const std::string& when) {
  float value = static_cast<float>(players.first() + 1);
  require(ncclAllReduce(&value, &value, 1, ncclFloat, ncclSum, comm, nullptr), when.c_str());
  const int size = players.size();
  require(value == static_cast<float>(size * (size + 1) / 2), when + ": the sum");
}

struct Case {
  Cast cast;
  int failing;
};

void check_play(const Case& of, int size, const std::function<void(Players&)>& body) {
  CAPTURE(name_of(of.cast), of.failing);
  check_all_ok(play(of.cast, size, body, kPatience));
}

using Start = std::function<ncclResult_t(const ncclUniqueId& id, int rank, ncclComm_t* out)>;

void walk_start(Players& players, const Case& of, const Walk& walk, const Start& start) {
  Calls calls(players, of.failing);
  const int rank = players.first();
  const bool one_process = of.cast == Cast::threads;
  const auto start_one = [&](long k) {
    const ncclUniqueId id = players.next_id();
    ncclComm_t comm = nullptr;
    const ncclResult_t result = calls.together(k, [&] { return start(id, rank, &comm); });
    require((comm != nullptr) == (result == ncclSuccess), calls.where() + ": the handle");
    if (result != ncclSuccess) {
      calls.require_reason(result, one_process);
      return false;
    }
    if (!calls.hit()) require_works(players, comm, calls.where());
    require(ncclCommDestroy(comm), "ncclCommDestroy");
    return true;
  };
  require(start_one(-1), "the first start");
  players.barrier();
  const Held before = settled();
  players.barrier();
  long failures = 0;
  for (long k = walk.first;; k += walk.step) {
    const bool started = start_one(k);
    if (!calls.hit()) break;
    if (started) continue;
    if (++failures % 16 == 0) require(start_one(-1), calls.where() + ": the next start");
    require(k < 20'000, "allocations without end");
  }
  players.barrier();
  require_held(before, "after all starts");
  require_no_leak("after all starts");
  require(failures >= 100 / walk.step, fmt::format("{} failures", failures));
}

TEST_CASE("all ranks agree on a start in which memory runs out on one",
          "[req:1.12][req:1.38][req:1.41]") {
  Environment environment(Variables{{"ORIEL_TIMEOUT", kTimeout}});
  const Walk walk(23);
  WARN("ORIEL_TEST_STRIDE=" << walk.step << ", from " << walk.first);
  for (const Case& of : {Case{Cast::threads, 0}, Case{Cast::threads, 1}, Case{Cast::processes, 0},
                         Case{Cast::processes, 2}}) {
    check_play(of, of.cast == Cast::threads ? 2 : 3, [&](Players& players) {
      const int size = players.size();
      walk_start(players, of, walk, [size](const ncclUniqueId& id, int rank, ncclComm_t* out) {
        return ncclCommInitRank(out, size, id, rank);
      });
    });
  }
}

/// Registers `count` windows in one group.
ncclResult_t register_some(ncclComm_t comm, const std::vector<Buffer>& buffers,
                           std::vector<ncclWindow_t>& windows) {
  if (buffers.size() == 1) {
    return ncclCommWindowRegister(comm, buffers[0].at(), 4096, &windows[0], 1);
  }
  ncclResult_t first = ncclGroupStart();
  for (std::size_t i = 0; i < buffers.size(); ++i) {
    const ncclResult_t noted = ncclCommWindowRegister(comm, buffers[i].at(), 4096, &windows[i], 1);
    if (first == ncclSuccess) first = noted;
  }
  const ncclResult_t ended = ncclGroupEnd();
  return ended != ncclSuccess ? ended : first;
}

/// Registrations of some windows, after each failure either tried again or with a new communicator.
class RegistrationWalk {
 public:
  RegistrationWalk(Players& players, const Case& of, std::size_t windows, bool retries)
      : players_(players), of_(of), calls_(players, of.failing), retries_(retries) {
    for (std::size_t i = 0; i < windows; ++i) buffers_.emplace_back(4096);
  }

  void run(const Walk& walk) {
    comms_ = players_.init();
    players_.barrier();
    const Held before = settled();
    players_.barrier();
    for (long k = walk.first; step(k); k += walk.step) {
      require(k < 20'000, "allocations without end");
    }
    players_.barrier();
    require_held(before, "after all registrations");
    players_.destroy(comms_);
    require_no_leak("after all registrations");
    require(failures_ >= 20 / walk.step, fmt::format("{} failures", failures_));
    require(4 * lost_ <= failures_,
            fmt::format("{} of {} failures ended the communicator", lost_, failures_));
  }

 private:
  /// False if there are no more allocations.
  bool step(long k) {
    const bool made = try_once(k);
    const bool hit = calls_.hit();
    if (made) return hit;
    ++failures_;
    // The communicator is as good as before, or of no more use to anybody.
    const bool is_good = retries_ && try_once(-1);
    if (retries_ && !is_good) ++lost_;
    if (!is_good) {
      players_.destroy(comms_);
      comms_ = players_.init();
    }
    return true;
  }
  bool try_once(long k) {
    std::vector<ncclWindow_t> windows(buffers_.size(), nullptr);
    const ncclResult_t result =
        calls_.together(k, [&] { return register_some(comms_[0], buffers_, windows); });
    for (const ncclWindow_t window : windows) {
      require((window != nullptr) == (result == ncclSuccess), calls_.where() + ": a window");
    }
    if (result != ncclSuccess) {
      calls_.require_reason(result, of_.cast == Cast::threads);
      return false;
    }
    if (!calls_.hit()) require_works(players_, comms_[0], calls_.where());
    for (const ncclWindow_t window : windows) {
      require(ncclCommWindowDeregister(comms_[0], window), "ncclCommWindowDeregister");
    }
    return true;
  }

  Players& players_;
  Case of_;
  Calls calls_;
  bool retries_;
  std::vector<Buffer> buffers_;
  std::vector<ncclComm_t> comms_;
  long failures_ = 0;
  long lost_ = 0;
};

TEST_CASE("all ranks agree on windows whose registration runs out of memory",
          "[req:1.16][req:1.38][req:1.41]") {
  Environment environment(Variables{{"ORIEL_TIMEOUT", kTimeout}});
  const Walk walk(7);
  WARN("ORIEL_TEST_STRIDE=" << walk.step << ", from " << walk.first);
  const bool retries = GENERATE(true, false);
  const std::size_t windows = GENERATE(1, 2);
  for (const Case& of : {Case{Cast::threads, 0}, Case{Cast::threads, 1}, Case{Cast::processes, 0},
                         Case{Cast::processes, 1}}) {
    check_play(of, 2, [&](Players& players) {
      RegistrationWalk(players, of, windows, retries).run(walk);
    });
  }
}

TEST_CASE("a window stays whose deregistration runs out of memory", "[req:1.38]") {
  run_alone([] {
    ncclComm_t comm = init_alone();
    const Buffer buffer(4096);
    long failures = 0;
    for (long k = 0;; ++k) {
      ncclWindow_t window = nullptr;
      require(ncclCommWindowRegister(comm, buffer.at(), 4096, &window, 1), "register");
      ncclResult_t result = ncclSuccess;
      const bool hit = with_failure(k, [&] { result = ncclCommWindowDeregister(comm, window); });
      if (result != ncclSuccess) {
        ++failures;
        require(ncclCommWindowDeregister(comm, window), fmt::format("allocation {}", k).c_str());
      }
      if (!hit) break;
      require(k < 1000, "allocations without end");
    }
    require(failures >= 1, "no failure");
    require(ncclCommDestroy(comm), "ncclCommDestroy");
  });
}

}  // namespace
}  // namespace oriel::test
