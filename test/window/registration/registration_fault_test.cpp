// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <chrono>
#include <csignal>
#include <cstdlib>
#include <random>
#include <thread>
#include <vector>

#include <catch2/catch.hpp>
#include <unistd.h>

#include "base/try.hpp"
#include "boot/session/forked_ranks.hpp"
#include "boot/session/inherited_memory.hpp"
#include "boot/session/served_id.hpp"
#include "support/descriptor_limit.hpp"
#include "support/fault.hpp"
#include "support/process_state.hpp"
#include "support/sanitized.hpp"
#include "support/seed.hpp"
#include "window/memory/sizes.hpp"
#include "window/registration/window_ranks.hpp"

namespace oriel::window {
namespace {

using namespace std::chrono_literals;

constexpr int kRanks = 3;

using Requests = std::vector<WindowRequest>;
using MakeRequests = std::function<Requests(const HostBuffer& buffer, int rank)>;

/// Closes the sockets of the parent's root service in a forked child, as a first session does. The
/// inherited sockets then do not count as the child's.
void drop_inherited_sockets() {
  auto loop = std::move(EventLoop::create()).value();
  static_cast<void>(loop.run(boot::Session::join(loop, {}, 0, 1, {}, Deadline::after(1s))));
}

/// Registers the requests of `make`. All ranks must refuse with the same error, which contains
/// `parts`. Then checks that nothing is held and that a valid registration works.
void check_refused(const MakeRequests& make, const std::vector<std::string>& parts) {
  for (const auto& layout : {std::vector<int>{kRanks}, {1, 1, 1}, {1, 2}}) {
    const auto results = run_ranks(layout, {}, [&](WindowRank& self) -> Status {
      const HostBuffer buffer(16 * kPage);
      const auto refused = self.register_batch(make(buffer, self.rank()));
      ORIEL_EXPECT(!refused.ok());
      ORIEL_CHECK(self.barrier());
      ORIEL_CHECK(self.check_nothing_held());
      ORIEL_CHECK(self.barrier());
      ORIEL_CHECK(self.cycle(buffer.at(), 16 * kPage));
      ORIEL_CHECK(self.barrier());
      return refused.error();
    });
    REQUIRE(results.size() == kRanks);
    for (const auto& result : results) {
      CHECK(result == results[0]);
      for (const auto& part : parts) {
        INFO("in: " << result);
        CHECK(result.find(part) != std::string::npos);
      }
    }
  }
}

/// Makes all ranks request `count` windows of a page; `odd` changes the requests of `rank`.
MakeRequests all_but(int rank, std::size_t count, const std::function<void(Requests&)>& odd) {
  return [=](const HostBuffer& buffer, int own) {
    Requests requests(count, {buffer.at(), kPage, 0});
    if (own == rank) odd(requests);
    return requests;
  };
}

void* foreign_memory() {
  static void* const foreign = std::aligned_alloc(kPage, kPage);
  return foreign;
}

}  // namespace

TEST_CASE("a wrong or differing argument is one error on all ranks, naming rank and value",
          "[req:1.38]") {
  const auto pointer = [](void* wrong) {
    return all_but(1, 1, [wrong](Requests& all) { all[0].pointer = wrong; });
  };
  const auto bytes = [](std::size_t wrong) {
    return all_but(1, 1, [wrong](Requests& all) { all[0].bytes = wrong; });
  };
  const auto shift = [](Requests& all) {
    all[0].pointer = static_cast<std::byte*>(all[0].pointer) + 8;
  };
  const std::pair<MakeRequests, std::vector<std::string>> cases[] = {
      {pointer(nullptr), {"rank 1", "window 0", "null"}},
      {pointer(foreign_memory()), {"rank 1", "window 0", "ncclMemAlloc"}},
      {all_but(1, 1, shift), {"rank 1", "window 0", "multiple of 4096"}},
      {bytes(0), {"rank 1", "window 0", "size is 0"}},
      {bytes(17 * kPage), {"rank 1", "window 0", "past the end"}},
      {bytes(~std::size_t{0}), {"rank 1", "window 0", "more than there can be"}},
      {all_but(1, 1, [](Requests& all) { all[0].flags = 6; }), {"rank 1", "window 0", "0x6"}},
      {all_but(2, 1, [](Requests& all) { all[0].flags = 1; }),
       {"the flags of window 0", "0 on rank 0", "1 on rank 2"}},
      {all_but(2, 1, [](Requests& all) { all.resize(3, all[0]); }),
       {"the number of windows", "1 on rank 0", "3 on rank 2"}},
      {all_but(1, 40, [](Requests& all) { all[37].bytes = 5 * kPage; }),
       {"the size of window 37", "4096 on rank 0", "20480 on rank 1"}},
  };
  for (const auto& [make, parts] : cases) check_refused(make, parts);
}

TEST_CASE("slot sizes that differ are refused by name", "[req:1.38]") {
  const ServedId id;
  const auto results = run_forked(
      2,
      [&](int rank) -> Status {
        RankOptions options;
        options.slot_bytes = (rank == 0 ? 1 : 2) * kSlotUnitBytes;
        ORIEL_TRY(const auto self, WindowRank::join(id.value(), rank, 2, options));
        const HostBuffer buffer(kPage);
        const auto refused = self->register_one(buffer.at(), kPage);
        ORIEL_EXPECT(!refused.ok());
        ORIEL_CHECK(self->barrier());
        return refused.error();
      },
      20s);
  CHECK(results[0] == results[1]);
  INFO(results[0]);
  CHECK(results[0].find("the slot size differs: 4294967296 bytes on rank 0, 8589934592 bytes on "
                        "rank 1") != std::string::npos);
  CHECK(results[0].find("ORIEL_BIG_SIZE") != std::string::npos);
}

TEST_CASE("a second deregistration and a made-up handle are errors, not crashes", "[req:1.38]") {
  check_all_ok(run_ranks({2}, {}, [](WindowRank& self) -> Status {
    const HostBuffer buffer(kPage);
    ORIEL_TRY(const auto window, self.register_one(buffer.at(), kPage));
    ORIEL_CHECK(self.manager().deregister(window.handle));
    for (const void* handle :
         {static_cast<const void*>(window.handle), static_cast<const void*>(&self),
          static_cast<const void*>(nullptr)}) {
      const Status again = self.manager().deregister(handle);
      ORIEL_EXPECT(!again.ok() && again.error().code() == ErrorCode::invalid_argument);
    }
    return self.barrier();
  }));
}

namespace {

/// Barrier of the forked ranks in shared memory, outside their session. A rank that returned from a
/// collective call knows only that all ranks have started it. Hence an immediate failure may still
/// reach another rank inside the call.
struct Meeting {
  std::atomic<int> come{0};

  Status join() {
    ++come;
    if (test::eventually([&] { return come == kRanks; })) return {};
    return Error(ErrorCode::timeout, "the other ranks have not come to the test's meeting");
  }
};

constexpr const char* kNotReached = "<not reached>";

/// Reports the outcome of a registration in which one rank's call failed. The text is "registered",
/// the common error, or "broken, " with the connection's failure. The victim prefixes the failed
/// call and "|".
Status register_with_fault(const boot::UniqueId& id, int rank, test::FaultPlan* plan,
                           Meeting& joined) {
  RankOptions options;
  options.timeout = 4s;
  ORIEL_TRY(const auto self, WindowRank::join(id, rank, kRanks, options));
  const HostBuffer first(3 * kPage), second(2 << 20);
  const auto before = test::process_state();
  ORIEL_CHECK(joined.join());
  auto registered = [&] {
    std::optional<test::ScopedSystemFaults> faults;
    if (plan != nullptr) faults.emplace(*plan);
    return self->register_batch({{first.at(), 3 * kPage, 0}, {second.at(kPage), kPage, 0}});
  }();
  std::string said;
  if (plan != nullptr) said = std::string(plan->hit() ? plan->failed.load() : kNotReached) + "|";
  const auto result = [&](const std::string& word, const Error* error) {
    if (error != nullptr) said += word + std::string(to_string(error->code())) + ", ";
    return Error(ErrorCode::internal, said + (error != nullptr ? error->to_string() : word));
  };
  if (registered.ok()) {
    // A rank that fails to receive the last message of the vote knows of the failure alone at
    // first. The barrier then fails on the other ranks as well.
    const Status usable = self->barrier();
    if (!usable.ok()) {
      self->drop_manager();
      return result("broken, ", &usable.error());
    }
    ORIEL_CHECK(self->deregister(registered.value()));
    return result("registered", nullptr);
  }
  const bool broken = self->session().failure().has_value();
  // Checks for leaks only after the other ranks have finished.
  if (!broken) ORIEL_CHECK(self->barrier());
  ORIEL_CHECK(self->check_nothing_held());
  if (broken) return result("broken, ", &registered.error());
  ORIEL_EXPECT(test::process_state() == before);
  ORIEL_CHECK(self->barrier());
  // The communicator remains usable.
  ORIEL_CHECK(self->cycle(first.at(), 3 * kPage));
  ORIEL_CHECK(self->barrier());
  return result("", &registered.error());
}

/// Returns the reports of all ranks for a registration in which call `fail_at` of `victim` fails.
std::vector<std::string> results_with_fault(int victim, long fail_at) {
  const ServedId id;
  const Shared<Meeting> joined;
  return run_forked(
      kRanks,
      [&](int rank) -> Status {
        drop_inherited_sockets();
        const auto before = test::process_state();
        test::FaultPlan plan;
        plan.fail_at = fail_at;
        plan.status = ENOMEM;
        Status status =
            register_with_fault(id.value(), rank, rank == victim ? &plan : nullptr, *joined);
        ORIEL_EXPECT(test::process_state() == before);
        return status;
      },
      30s);
}

/// Limits this process to `count` more open files, for the object's lifetime. Fills the free
/// numbers, because RLIMIT_NOFILE limits numbers.
class FewFiles {
 public:
  explicit FewFiles(int count) {
    for (OwnedFd filler(::dup(0)); filler; filler = OwnedFd(::dup(0))) {
      fillers_.push_back(std::move(filler));
    }
    for (int i = 0; i < count; ++i) fillers_.pop_back();
  }

 private:
  const test::DescriptorLimit limit_{256};
  std::vector<OwnedFd> fillers_;
};

/// Registers with room for 0, 1, ... files on `victim` until there is enough. `receipts` counts
/// failures to receive other ranks' descriptors.
Status register_with_few_files(WindowRank& self, const HostBuffer& first, const HostBuffer& second,
                               int victim, int& receipts) {
  constexpr int kMostFiles = 24;
  for (int count = 0; count <= kMostFiles; ++count) {
    ORIEL_CHECK(self.barrier());
    auto registered = [&] {
      std::optional<FewFiles> few;
      if (self.rank() == victim) few.emplace(count);
      return self.register_batch({{first.at(), kPage, 0}, {second.at(), kPage, 0}});
    }();
    const std::string text = registered.ok() ? "" : registered.error().to_string();
    ORIEL_CHECK(self.same_everywhere(text));
    if (registered.ok()) {
      ORIEL_CHECK(self.deregister(registered.value()));
      return {};
    }
    const Error& error = registered.error();
    const bool names_cause = error.native().value == EMFILE && error.origin_rank() == victim &&
                             text.find("RLIMIT_NOFILE") != std::string::npos;
    if (!names_cause) return error;
    if (text.find("file descriptors from rank") != std::string::npos) ++receipts;
    // Checks that a registration works with enough room; it also connects all ranks for the next
    // attempt.
    ORIEL_CHECK(self.cycle(first.at(), kPage));
  }
  return Error(ErrorCode::internal, "no number of files was enough");
}

}  // namespace

TEST_CASE("a rank without room for others' descriptors is named on all, with the cause",
          "[req:1.15][req:1.41]") {
  check_all_ok(run_ranks({1, 1, 1}, {}, [](WindowRank& self) -> Status {
    const HostBuffer first(kPage), second(kPage);
    ORIEL_CHECK(self.cycle(first.at(), kPage));
    for (int victim = 0; victim < kRanks; ++victim) {
      int receipts = 0;
      ORIEL_CHECK(register_with_few_files(self, first, second, victim, receipts));
      ORIEL_EXPECT(receipts > 0);
    }
    return self.barrier();
  }));
}

TEST_CASE("any failed system call of a registration, on any rank, has one outcome on all ranks",
          "[req:1.41]") {
  constexpr long kStep = test::kSanitized ? 13 : 1;  // sanitizers slow forks down
  // The number of reads and polls depends on timing. Hence the walk ends only after several runs
  // that finish before call k.
  constexpr int kMissesToEnd = 3;
  int agreed = 0, harmless = 0, broken = 0;
  for (int victim = 0; victim < kRanks; ++victim) {
    int misses = 0;
    for (long k = 1; misses < kMissesToEnd; k += kStep) {
      REQUIRE(k < 2000);
      auto results = results_with_fault(victim, k);
      std::string& own = results[static_cast<std::size_t>(victim)];
      INFO("rank " << victim << ", call " << k << ": " << own);
      misses = own.starts_with(kNotReached) ? misses + 1 : 0;
      if (misses > 0) continue;
      const auto bar = own.find('|');
      REQUIRE(bar != std::string::npos);
      own.erase(0, bar + 1);
      const std::string blame = "system error, rank " + std::to_string(victim) + ": ";
      const bool connection = own.starts_with("broken, ");
      for (const auto& result : results) {
        INFO(result);
        // A failure of the connections may reach the ranks in different rounds, but with the same
        // cause.
        CHECK((connection ? result.starts_with("broken, " + blame) : result == own));
      }
      if (connection) {
        ++broken;
      } else if (own == "registered") {
        ++harmless;
      } else {
        ++agreed;
        CHECK(own.starts_with(blame));
        CHECK(own.find("ENOMEM") != std::string::npos);
      }
    }
  }
  WARN(agreed << " errors on all ranks, " << harmless << " without effect, " << broken
              << " of the connections");
  CHECK(agreed > 50 / kStep);
}

TEST_CASE("a rank that is killed in the middle of registrations is named", "[req:1.38]") {
  const std::uint64_t seed = test::test_seed();
  std::mt19937 random(seed);
  for (int round = 0; round < 8; ++round) {
    const ServedId id;
    const int victim = static_cast<int>(random() % kRanks);
    const Shared<std::atomic<int>> joined;
    ForkedRanks ranks(kRanks, [&](int rank) -> Status {
      drop_inherited_sockets();
      const auto before = test::process_state();
      std::string seen;
      {
        RankOptions options;
        options.timeout = 10s;
        ORIEL_TRY(const auto self, WindowRank::join(id.value(), rank, kRanks, options));
        ++*joined;
        const HostBuffer buffer(64 * kPage);
        for (std::size_t i = 0; seen.empty(); ++i) {
          const auto window = self->register_one(buffer.at(i % 16 * kPage), 4 * kPage);
          if (!window.ok()) {
            seen = window.error().to_string();
          } else {
            ORIEL_CHECK(self->manager().deregister(window.value().handle));
          }
        }
        ORIEL_CHECK(self->check_nothing_held());
      }
      ORIEL_EXPECT(test::process_state() == before);
      return Error(ErrorCode::remote, seen);
    });
    // Waits until all ranks have joined; another test kills ranks during join.
    REQUIRE(test::eventually([&] { return *joined == kRanks; }));
    std::this_thread::sleep_for(std::chrono::milliseconds(random() % 100));
    ranks.kill(victim, SIGKILL);
    const auto results = ranks.collect(20s);
    for (int rank = 0; rank < kRanks; ++rank) {
      if (rank == victim) continue;
      INFO("killed rank " << victim << "; rank " << rank << ": "
                          << results[static_cast<std::size_t>(rank)]);
      CHECK(results[static_cast<std::size_t>(rank)].find("rank " + std::to_string(victim)) !=
            std::string::npos);
    }
  }
}

}  // namespace oriel::window
