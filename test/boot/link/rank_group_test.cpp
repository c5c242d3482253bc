// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "boot/link/rank_group.hpp"

#include <bit>
#include <random>
#include <string>

#include <catch2/catch.hpp>

#include "base/try.hpp"
#include "boot/link/sim_transport.hpp"
#include "support/sanitized.hpp"

namespace oriel::boot {
namespace {

using namespace std::chrono_literals;

std::vector<int> iota(int size) {
  std::vector<int> ranks(static_cast<std::size_t>(size));
  for (int i = 0; i < size; ++i) ranks[static_cast<std::size_t>(i)] = i;
  return ranks;
}

std::vector<Group> groups_of(SimNetwork& network, int size) {
  std::vector<Group> groups;
  for (int rank = 0; rank < size; ++rank) {
    groups.emplace_back(network.transport(rank), iota(size), rank);
  }
  return groups;
}

// Of another length for each rank, and empty for some.
Bytes payload(int rank) {
  return Bytes(static_cast<std::size_t>(rank * 7 % 23), static_cast<std::byte>(rank * 31 + 1));
}

int rounds(int size) {
  return static_cast<int>(std::bit_width(static_cast<unsigned>(size - 1)));
}

std::vector<int> sizes() {
  std::vector<int> out;
  for (int size = 1; size <= 34; ++size) out.push_back(size);
  for (const int size : {63, 64, 65}) out.push_back(size);
  if (test::kSanitized) return out;
  for (const int size : {100, 127, 128, 129, 200, 255, 256, 257}) out.push_back(size);
  return out;
}

const SimModel kModel = {.latency = 10us, .jitter = 0us};

}  // namespace

TEST_CASE("all-gather yields every member's bytes in ceil(log2 n) rounds", "[req:1.9]") {
  for (const int size : sizes()) {
    CAPTURE(size);
    SimNetwork network(size, kModel, 1);
    auto groups = groups_of(network, size);
    std::vector<Task<Result<std::vector<Bytes>>>> tasks;
    for (int rank = 0; rank < size; ++rank) {
      tasks.push_back(
          groups[static_cast<std::size_t>(rank)].all_gather(Operation::test, payload(rank)));
    }
    const auto begin = network.clock().now();
    const auto results = network.run(std::move(tasks));
    CHECK(network.clock().now() - begin == rounds(size) * 10us);
    for (int rank = 0; rank < size; ++rank) {
      const auto& result = results[static_cast<std::size_t>(rank)];
      REQUIRE(result);
      REQUIRE(result->ok());
      REQUIRE(result->value().size() == static_cast<std::size_t>(size));
      for (int member = 0; member < size; ++member) {
        REQUIRE(result->value()[static_cast<std::size_t>(member)] == payload(member));
      }
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
      auto groups = groups_of(network, size);
      std::vector<Task<Result<Bytes>>> tasks;
      for (int rank = 0; rank < size; ++rank) {
        tasks.push_back(groups[static_cast<std::size_t>(rank)].broadcast(Operation::test, root,
                                                                         payload(rank + 5)));
      }
      const auto begin = network.clock().now();
      const auto results = network.run(std::move(tasks));
      CHECK(network.clock().now() - begin <= rounds(size) * 10us);
      int messages = 0;
      for (int rank = 0; rank < size; ++rank) {
        const auto& result = results[static_cast<std::size_t>(rank)];
        REQUIRE(result);
        REQUIRE(result->ok());
        REQUIRE(result->value() == payload(root + 5));
        messages += network.messages_sent(rank);
      }
      CHECK(messages == size - 1);
    }
  }
}

namespace {

// Notes the order of events.
Task<Status> enter_and_note(Group& group, std::vector<std::string>& log) {
  log.push_back("enter");
  ORIEL_CO_CHECK(co_await group.barrier(Operation::test));
  log.push_back("leave");
  co_return Status();
}

}  // namespace

TEST_CASE("no member leaves a barrier before all have entered it", "[req:1.9]") {
  for (const int size : sizes()) {
    CAPTURE(size);
    SimNetwork network(size, {.latency = 10us, .jitter = 50us}, 7);
    auto groups = groups_of(network, size);
    std::vector<std::string> log;
    std::vector<Task<Status>> tasks;
    for (auto& group : groups) tasks.push_back(enter_and_note(group, log));
    // The tasks start one after the other, but only after the last has entered may any leave.
    const auto results = network.run(std::move(tasks));
    for (const auto& result : results) REQUIRE((result && result->ok()));
    REQUIRE(log.size() == 2 * static_cast<std::size_t>(size));
    for (std::size_t i = 0; i < log.size(); ++i) {
      REQUIRE(log[i] == (i < static_cast<std::size_t>(size) ? "enter" : "leave"));
    }
  }
}

TEST_CASE("agreement: the lowest failing rank's error is everybody's", "[req:1.38]") {
  for (const int size : {1, 2, 3, 5, 8, 13, 64, 100}) {
    CAPTURE(size);
    SimNetwork network(size, kModel, 3);
    auto groups = groups_of(network, size);
    const int failing = size / 2;
    std::vector<Task<Status>> tasks;
    for (int rank = 0; rank < size; ++rank) {
      Status mine;
      if (rank >= failing && rank % 2 == failing % 2) {
        mine = Error(ErrorCode::cuda, "cuMemMap of rank " + std::to_string(rank))
                   .with_scope(Scope::window)
                   .with_native(NativeDomain::cuda_driver, 700 + rank)
                   .with_hint("a hint")
                   .with_context("mapping window 3");
      }
      // A rank that failed early may know none of its values.
      std::vector<AgreedField> fields;
      if (mine.ok()) fields.push_back({"the number of windows", 4});
      tasks.push_back(groups[static_cast<std::size_t>(rank)].agree(Operation::test, std::move(mine),
                                                                   std::move(fields)));
    }
    const auto results = network.run(std::move(tasks));
    for (const auto& result : results) {
      REQUIRE(result);
      REQUIRE_FALSE(result->ok());
      const Error& error = result->error();
      CHECK(error.code() == ErrorCode::cuda);
      CHECK(error.scope() == Scope::window);
      CHECK(error.origin_rank() == failing);
      CHECK(error.native().domain == NativeDomain::cuda_driver);
      CHECK(error.native().value == 700 + failing);
      CHECK(error.to_string() == results[0]->error().to_string());
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
    auto groups = groups_of(network, size);
    std::vector<Task<Status>> tasks;
    for (int rank = 0; rank < size; ++rank) {
      std::vector<AgreedField> fields = {{"the window flags", 1},
                                         {"the number of windows", rank == size - 1 ? 2U : 3U}};
      tasks.push_back(groups[static_cast<std::size_t>(rank)].agree(Operation::test, Status(),
                                                                   std::move(fields)));
    }
    const auto results = network.run(std::move(tasks));
    for (const auto& result : results) {
      REQUIRE(result);
      REQUIRE_FALSE(result->ok());
      CHECK(result->error().code() == ErrorCode::invalid_usage);
      CHECK(result->error().message() ==
            "the number of windows differs: 3 on rank 0, 2 on rank " + std::to_string(size - 1));
    }
  }
}

TEST_CASE("agreement: texts too long for the record are cut the same way everywhere",
          "[req:1.38]") {
  SimNetwork network(3, kModel, 3);
  auto groups = groups_of(network, 3);
  std::vector<Task<Status>> tasks;
  for (int rank = 0; rank < 3; ++rank) {
    Status mine;
    std::string text;
    for (int i = 0; i < 400; ++i) text += "\xc3\xa9";  // two bytes a character
    if (rank == 1) mine = Error(ErrorCode::system, text).with_hint(text);
    std::vector<AgreedField> fields;
    tasks.push_back(groups[static_cast<std::size_t>(rank)].agree(Operation::test, std::move(mine),
                                                                 std::move(fields)));
  }
  const auto results = network.run(std::move(tasks));
  for (const auto& result : results) {
    REQUIRE(result);
    const std::string& message = result->error().message();
    CHECK(message == results[1]->error().message());
    CHECK(message.size() <= 448);
    CHECK(message.ends_with("\xc3\xa9..."));
    CHECK(result->error().hint().ends_with("\xc3\xa9..."));
  }
}

TEST_CASE("ranks in different calls get an error that names both", "[req:1.38]") {
  for (const int size : {2, 3, 8, 20}) {
    CAPTURE(size);
    SimNetwork network(size, kModel, 3);
    auto groups = groups_of(network, size);
    std::vector<Task<Status>> tasks;
    for (int rank = 0; rank < size; ++rank) {
      const auto operation = rank == 1 ? Operation::window_register : Operation::finalize;
      tasks.push_back(groups[static_cast<std::size_t>(rank)].barrier(operation));
    }
    const auto results = network.run(std::move(tasks));
    for (const auto& result : results) {
      REQUIRE(result);
      REQUIRE_FALSE(result->ok());
      const std::string text = result->error().to_string();
      CAPTURE(text);
      CHECK(text.find("rank 1 is in window_register #1") != std::string::npos);
      CHECK(text.find("is in finalize #1") != std::string::npos);
    }
    CHECK(network.clock().now() - TimePoint{} < 1s);  // at once, not at the deadline
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
  // Twice: whoever dies in its last step of the first is missed in the second.
  ORIEL_CO_CHECK(co_await group.barrier(Operation::test));
  ORIEL_CO_CHECK(co_await group.barrier(Operation::test));
  if (all.size() != static_cast<std::size_t>(group.size()) || bytes != payload(3)) {
    co_return Error(ErrorCode::internal, "wrong bytes");
  }
  co_return Status();
}

}  // namespace

namespace {

/// Ends with what ends a wait for `lost`, if there is such a rank; then gives up.
Task<Status> abort_alone(Group& group, Transport& transport, int lost) {
  Status status;
  if (lost >= 0) {
    Bytes none;
    auto heard = co_await group.broadcast(Operation::test, lost, std::move(none));
    if (!heard.ok()) status = std::move(heard).error();
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
    // Steps of one rank in every_protocol, at least: a member of a broadcast may have only one.
    const int all_steps = 2 * rounds(size) * 3 + 1;
    for (int step = 0; step < all_steps; ++step) {
      const int victim = static_cast<int>(random() % static_cast<unsigned>(size));
      CAPTURE(size, step, victim);
      SimNetwork network(size, {.latency = 10us, .jitter = 30us}, random());
      network.kill_at(victim, step);
      auto groups = groups_of(network, size);
      std::vector<Task<Status>> tasks;
      for (int rank = 0; rank < size; ++rank) {
        tasks.push_back(every_protocol(groups[static_cast<std::size_t>(rank)], rank));
      }
      const auto results = network.run(std::move(tasks));
      REQUIRE(network.reached_fault(victim));
      for (int rank = 0; rank < size; ++rank) {
        const auto& result = results[static_cast<std::size_t>(rank)];
        if (rank == victim) {
          CHECK_FALSE(result);
          continue;
        }
        REQUIRE(result);
        REQUIRE_FALSE(result->ok());
        CHECK(result->error().origin_rank() == victim);
        CHECK(result->error().message().find("rank " + std::to_string(victim) + " has died") == 0);
      }
      // The news needs at most log2 n hops; nobody waits for the deadline.
      CHECK(network.clock().now() - TimePoint{} < 100ms);
    }
  }
}

TEST_CASE("an abort of all ranks at once sends one notice a link", "[req:3.22]") {
  constexpr int kSize = 1024;
  constexpr int kLinksOfRank = 19;
  const bool dies = GENERATE(false, true);  // a rank, of which all others learn and abort then
  SimNetwork network(kSize, kModel, 1);
  if (dies) network.kill_at(7, 0);
  auto groups = groups_of(network, kSize);
  std::vector<Task<Status>> tasks;
  for (int rank = 0; rank < kSize; ++rank) {
    tasks.push_back(abort_alone(groups[static_cast<std::size_t>(rank)], network.transport(rank),
                                dies ? 7 : -1));
  }
  const auto results = network.run(std::move(tasks));
  for (int rank = 0; rank < kSize; ++rank) {
    if (dies && rank == 7) continue;
    REQUIRE(results[static_cast<std::size_t>(rank)]);
  }
  CHECK(network.frames_sent() <= (kSize + 1) * kLinksOfRank);
}

TEST_CASE("a rank that stops: every survivor ends at the deadline", "[req:1.12]") {
  for (const int size : {2, 3, 8, 21}) {
    CAPTURE(size);
    SimNetwork network(size, {.latency = 10us, .deadline = 3s}, 9);
    network.stop_at(1, 2);
    auto groups = groups_of(network, size);
    std::vector<Task<Status>> tasks;
    for (int rank = 0; rank < size; ++rank) {
      tasks.push_back(every_protocol(groups[static_cast<std::size_t>(rank)], rank));
    }
    const auto results = network.run(std::move(tasks));
    for (int rank = 0; rank < size; ++rank) {
      const auto& result = results[static_cast<std::size_t>(rank)];
      if (rank == 1) continue;
      REQUIRE(result);
      REQUIRE_FALSE(result->ok());
      CHECK(result->error().code() == ErrorCode::timeout);
    }
    CHECK(network.clock().now() - TimePoint{} < 3100ms);
  }
}

}  // namespace oriel::boot
