// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "boot/link/rank_group.hpp"

#include <bit>
#include <numeric>
#include <random>
#include <string>

#include <catch2/catch.hpp>

#include "base/try.hpp"
#include "boot/link/sim_transport.hpp"
#include "support/sanitized.hpp"

namespace oriel::boot {
namespace {

using namespace std::chrono_literals;

/// Runs make(group, rank) on every rank of the network; returns the results in rank order.
template <typename Make>
auto run_ranks(SimNetwork& network, int size, const Make& make) {
  std::vector<int> ranks(static_cast<std::size_t>(size));
  std::iota(ranks.begin(), ranks.end(), 0);
  std::vector<Group> groups;
  for (int rank = 0; rank < size; ++rank) groups.emplace_back(network.transport(rank), ranks, rank);
  std::vector<decltype(make(groups[0], 0))> tasks;
  for (int rank = 0; rank < size; ++rank) {
    tasks.push_back(make(groups[static_cast<std::size_t>(rank)], rank));
  }
  return network.run(std::move(tasks));
}

/// Returns the errors of all ranks but `lost`.
template <typename Results>
std::vector<Error> errors_of(const Results& results, int lost = -1) {
  std::vector<Error> errors;
  for (std::size_t rank = 0; rank < results.size(); ++rank) {
    CAPTURE(rank);
    if (static_cast<int>(rank) == lost) continue;
    REQUIRE(results[rank]);
    REQUIRE_FALSE(results[rank]->ok());
    errors.push_back(results[rank]->error());
  }
  return errors;
}

// Returns a payload whose length differs between ranks and is 0 for some.
Bytes payload(int rank) {
  return Bytes(static_cast<std::size_t>(rank * 7 % 23), static_cast<std::byte>(rank * 31 + 1));
}

int rounds(int size) {
  return static_cast<int>(std::bit_width(static_cast<unsigned>(size - 1)));
}

std::vector<int> sizes() {
  std::vector<int> out;
  for (int size = 1; size <= 34; ++size) out.push_back(size);
  for (const int size : {63, 64, 65, 100, 127, 128, 129, 257}) {
    if (size < 100 || !test::kSanitized) out.push_back(size);
  }
  return out;
}

const SimModel kModel = {.latency = 10us, .jitter = 0us};

}  // namespace

TEST_CASE("all-gather yields every member's bytes in ceil(log2 n) rounds", "[req:1.9]") {
  for (const int size : sizes()) {
    CAPTURE(size);
    SimNetwork network(size, kModel, 1);
    const auto results = run_ranks(network, size, [](Group& group, int rank) {
      return group.all_gather(Operation::test, payload(rank));
    });
    CHECK(network.clock().now() - TimePoint{} == rounds(size) * 10us);
    std::vector<Bytes> all;
    for (int rank = 0; rank < size; ++rank) all.push_back(payload(rank));
    for (int rank = 0; rank < size; ++rank) {
      REQUIRE(results[static_cast<std::size_t>(rank)]->value() == all);
      REQUIRE(network.messages_sent(rank) == rounds(size));
    }
  }
}

TEST_CASE("broadcast reaches every member from any root in at most ceil(log2 n) rounds",
          "[req:1.9]") {
  for (const int size : sizes()) {
    for (int root = 0; root < size; root += std::max(1, size / 3)) {
      CAPTURE(size, root);
      SimNetwork network(size, kModel, 1);
      const auto results = run_ranks(network, size, [root](Group& group, int rank) {
        return group.broadcast(Operation::test, root, payload(rank + 5));
      });
      CHECK(network.clock().now() - TimePoint{} <= rounds(size) * 10us);
      int messages = 0;
      for (int rank = 0; rank < size; ++rank) {
        REQUIRE(results[static_cast<std::size_t>(rank)]->value() == payload(root + 5));
        messages += network.messages_sent(rank);
      }
      CHECK(messages == size - 1);
    }
  }
}

namespace {

/// Logs entry and exit in order.
Task<Status> enter_and_leave(Group& group, std::string& log) {
  log += '+';
  ORIEL_CO_CHECK(co_await group.barrier(Operation::test));
  log += '-';
  co_return Status();
}

}  // namespace

TEST_CASE("no member leaves a barrier before all have entered it", "[req:1.9]") {
  for (const int size : sizes()) {
    CAPTURE(size);
    SimNetwork network(size, {.latency = 10us, .jitter = 50us}, 7);
    std::string log;
    // The tasks start one after the other; none may leave before the last has entered.
    for (const auto& result :
         run_ranks(network, size, [&](Group&group, int) { return enter_and_leave(group, log); })) {
      REQUIRE((result && result->ok()));
    }
    const auto ranks = static_cast<std::size_t>(size);
    CHECK(log == std::string(ranks, '+') + std::string(ranks, '-'));
  }
}

TEST_CASE("if several ranks fail before an agreement, every rank gets the lowest one's error",
          "[req:1.38]") {
  for (const int size : {1, 2, 3, 5, 8, 13, 64, 100}) {
    CAPTURE(size);
    SimNetwork network(size, kModel, 3);
    const int failing = size / 2;
    const auto results = run_ranks(network, size, [failing](Group& group, int rank) {
      Status mine;
      if (rank >= failing && rank % 2 == failing % 2) {
        mine = Error(ErrorCode::cuda, "cuMemMap of rank " + std::to_string(rank))
                   .with_scope(Scope::window)
                   .with_native(NativeDomain::cuda_driver, 700 + rank)
                   .with_hint("a hint")
                   .with_context("mapping window 3");
      }
      // A rank that failed early may know none of its field values.
      std::vector<AgreedField> fields;
      if (mine.ok()) fields.push_back({"the number of windows", 4});
      return group.agree(Operation::test, std::move(mine), std::move(fields));
    });
    for (const Error& error : errors_of(results)) {
      CHECK(error.code() == ErrorCode::cuda);
      CHECK(error.scope() == Scope::window);
      CHECK(error.origin_rank() == failing);
      CHECK(error.native().domain == NativeDomain::cuda_driver);
      CHECK(error.native().value == 700 + failing);
      CHECK(error.message() == "cuMemMap of rank " + std::to_string(failing));
      CHECK(error.hint() == "a hint");
      CHECK(error.contexts() == std::vector<std::string>{"mapping window 3"});
    }
  }
}

TEST_CASE("agreement: a field that differs is named with two ranks and their values",
          "[req:1.38]") {
  for (const int size : {2, 3, 7, 16, 33}) {
    CAPTURE(size);
    SimNetwork network(size, kModel, 3);
    const auto results = run_ranks(network, size, [size](Group& group, int rank) {
      std::vector<AgreedField> fields = {{"the window flags", 1},
                                         {"the number of windows", rank == size - 1 ? 2U : 3U}};
      return group.agree(Operation::test, Status(), std::move(fields));
    });
    for (const Error& error : errors_of(results)) {
      CHECK(error.code() == ErrorCode::invalid_usage);
      CHECK(error.message() ==
            "the number of windows differs: 3 on rank 0, 2 on rank " + std::to_string(size - 1));
    }
  }
}

TEST_CASE("agreement: texts too long for the record are cut the same way everywhere",
          "[req:1.38]") {
  SimNetwork network(3, kModel, 3);
  std::string text = "\x1b[2J";                      // terminal controls are not passed on
  for (int i = 0; i < 400; ++i) text += "\xc3\xa9";  // two bytes a character
  const auto errors = errors_of(run_ranks(network, 3, [&](Group& group, int rank) {
    Status mine;
    if (rank == 1) mine = Error(ErrorCode::system, text).with_hint(text);
    return group.agree(Operation::test, std::move(mine), {});
  }));
  for (const Error& error : errors) {
    CHECK(error.message() == errors[1].message());
    CHECK(error.message().size() <= 448);
    CHECK(error.message().starts_with("?[2J"));
    CHECK(error.message().ends_with("\xc3\xa9..."));
    CHECK(error.hint().ends_with("\xc3\xa9..."));
  }
}

TEST_CASE("ranks in different calls get an error that names both", "[req:1.38]") {
  for (const int size : {2, 3, 8, 20}) {
    CAPTURE(size);
    SimNetwork network(size, kModel, 3);
    const auto results = run_ranks(network, size, [](Group& group, int rank) {
      return group.barrier(rank == 1 ? Operation::window_register : Operation::test);
    });
    for (const Error& error : errors_of(results)) {
      const std::string text = error.to_string();
      CAPTURE(text);
      CHECK(text.find("rank 1 is in window_register #1") != std::string::npos);
      CHECK(text.find("is in test #1") != std::string::npos);
    }
    CHECK(network.clock().now() - TimePoint{} < 1s);  // well before the deadline
  }
}

namespace {

Task<Status> every_protocol(Group& group, int rank) {
  Bytes mine = payload(rank);
  ORIEL_CO_TRY(const auto all, co_await group.all_gather(Operation::test, std::move(mine)));
  Bytes root_bytes = payload(3);
  ORIEL_CO_TRY(const auto bytes,
               co_await group.broadcast(Operation::test, group.size() - 1, std::move(root_bytes)));
  std::vector<AgreedField> fields;
  fields.push_back({"a value", 5});
  Status fine;
  ORIEL_CO_CHECK(co_await group.agree(Operation::test, std::move(fine), std::move(fields)));
  // Two barriers: if a rank dies in its last step of the first, the second one detects the death.
  ORIEL_CO_CHECK(co_await group.barrier(Operation::test));
  ORIEL_CO_CHECK(co_await group.barrier(Operation::test));
  co_return Status();
}

/// Waits for a broadcast from `lost`, if there is such a rank, and takes its error; then gives up.
Task<Status> abort_alone(Group& group, Transport& transport, int lost) {
  Status status;
  if (lost >= 0) {
    Bytes none;
    auto has_answered = co_await group.broadcast(Operation::test, lost, std::move(none));
    if (!has_answered.ok()) status = std::move(has_answered).error();
  }
  transport.give_up(Error(ErrorCode::aborted, "the job ends").with_origin(group.index()));
  co_return status;
}

}  // namespace

TEST_CASE("a rank lost at any step: every survivor gets an error that names it", "[req:1.12]") {
  const auto seed = std::random_device{}();
  CAPTURE(seed);
  std::mt19937_64 random(seed);
  for (const int size : {2, 3, 4, 5, 7, 8, 12, 16, 31, 65}) {
    // Minimum number of steps of one rank in every_protocol up to the end of the first barrier; a
    // broadcast may take only one step.
    const int all_steps = 2 * rounds(size) * 3 + 1;
    for (int step = 0; step < all_steps; ++step) {
      const int victim = static_cast<int>(random() % static_cast<unsigned>(size));
      CAPTURE(size, step, victim);
      SimNetwork network(size, {.latency = 10us, .jitter = 30us}, random());
      network.kill_at(victim, step);
      const auto results = run_ranks(network, size, every_protocol);
      REQUIRE(network.reached_fault(victim));
      CHECK_FALSE(results[static_cast<std::size_t>(victim)]);
      for (const Error& error : errors_of(results, victim)) {
        CHECK(error.origin_rank() == victim);
        CHECK(error.message().starts_with("rank " + std::to_string(victim) + " has died"));
      }
      // The failure notice takes at most log2 n hops; no rank waits for the deadline.
      CHECK(network.clock().now() - TimePoint{} < 100ms);
    }
  }
}

TEST_CASE("a rank that stops: every survivor ends at the deadline", "[req:1.12]") {
  for (const int size : {2, 3, 8, 21}) {
    CAPTURE(size);
    SimNetwork network(size, {.latency = 10us, .deadline = 3s}, 9);
    network.stop_at(1, 2);
    for (const Error& error : errors_of(run_ranks(network, size, every_protocol), 1)) {
      CHECK(error.code() == ErrorCode::timeout);
    }
    CHECK(network.clock().now() - TimePoint{} < 3100ms);
  }
}

TEST_CASE("an abort of all ranks at once sends one notice a link", "[req:3.22][D6]") {
  constexpr int kSize = 1024;
  constexpr int kLinksOfRank = 19;
  for (const int lost : {-1, 7}) {  // if 7 is lost, all others learn of it and then abort
    SimNetwork network(kSize, kModel, 1);
    if (lost >= 0) network.kill_at(lost, 0);
    const auto results = run_ranks(network, kSize, [&](Group& group, int rank) {
      return abort_alone(group, network.transport(rank), lost);
    });
    for (int rank = 0; rank < kSize; ++rank) {
      REQUIRE((rank == lost || results[static_cast<std::size_t>(rank)]));
    }
    CHECK(network.frames_sent() <= (kSize + 1) * kLinksOfRank);
  }
}

}  // namespace oriel::boot
