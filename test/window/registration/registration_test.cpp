// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include <catch2/catch.hpp>

#include "base/try.hpp"
#include "boot/session/served_id.hpp"
#include "support/process_state.hpp"
#include "support/sanitized.hpp"
#include "window/memory/memory_host.hpp"
#include "window/memory/sizes.hpp"
#include "window/registration/window_ranks.hpp"

namespace oriel::window {
namespace {

std::byte pattern(int rank, std::size_t offset, int salt) {
  return static_cast<std::byte>(rank * 31 + static_cast<int>(offset / 512) + salt * 7 + 1);
}

void fill(std::byte* begin, std::size_t bytes, int rank, int salt) {
  for (std::size_t i = 0; i < bytes; i += 512) begin[i] = pattern(rank, i, salt);
}

bool holds(const std::byte* begin, std::size_t bytes, int rank, int salt) {
  for (std::size_t i = 0; i < bytes; i += 512) {
    if (begin[i] != pattern(rank, i, salt)) return false;
  }
  return true;
}

/// Checks that each rank of the team sees the data that every other rank wrote in its window. Then
/// checks writes in a peer's window.
Status check_visible(WindowRank& self, const RegisteredWindow& window, int salt) {
  boot::Group& team = self.team();
  fill(window.user, window.bytes, team.index(), salt);
  ORIEL_CHECK(self.barrier());
  for (int peer = 0; peer < team.size(); ++peer) {
    ORIEL_EXPECT(holds(self.peer(window, peer), window.bytes, peer, salt));
  }
  ORIEL_CHECK(self.barrier());
  const int next = (team.index() + 1) % team.size();
  fill(self.peer(window, next), window.bytes, next, salt + 1);
  ORIEL_CHECK(self.barrier());
  ORIEL_EXPECT(holds(window.user, window.bytes, team.index(), salt + 1));
  return self.barrier();
}

/// Deregisters everything and checks that nothing is held.
Status check_empty(WindowRank& self, const std::vector<RegisteredWindow>& windows) {
  ORIEL_CHECK(self.deregister(windows));
  ORIEL_CHECK(self.barrier());
  ORIEL_CHECK(self.check_nothing_held());
  return self.barrier();
}

const std::vector<std::vector<int>> kLayouts = {{1},       {2},    {1, 1},   {4},
                                                {1, 1, 1}, {2, 1}, {2, 3, 2}};

/// Counts under a lock, because counting opens files itself.
test::ProcessState held_by_process() {
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  return test::process_state();
}

}  // namespace

TEST_CASE("a batch of windows is seen by every rank at its computed address", "[req:1.16]") {
  check_ranks(kLayouts, {}, [](WindowRank& self) -> Status {
    const HostBuffer small(3 * kPage), large(5 << 20);
    ORIEL_TRY(const auto windows, self.register_batch({{small.at(), 3 * kPage, 0},
                                                       {large.at(1 << 20), 1 << 20, 1},
                                                       {large.at(), 5 << 20, 0}}));
    ORIEL_EXPECT(windows.size() == 3);
    int salt = 0;
    for (const auto& window : windows) ORIEL_CHECK(check_visible(self, window, salt += 2));
    ORIEL_EXPECT(self.manager().find(large.at(), 4)->handle == windows[2].handle);
    ORIEL_EXPECT(self.manager().find(large.at(1 << 20), 4)->handle == windows[1].handle);
    ORIEL_EXPECT(self.manager().find(small.at(), 3 * kPage)->handle == windows[0].handle);
    ORIEL_EXPECT(!self.manager().find(small.at(), 4 * kPage));
    return check_empty(self, windows);
  });
}

TEST_CASE("many windows in one allocation map it once", "[req:1.18]") {
  check_ranks(kLayouts, {}, [](WindowRank& self) -> Status {
    const HostBuffer buffer(64 * kPage);
    ORIEL_TRY(const auto outer, self.register_one(buffer.at(), 64 * kPage));
    const std::size_t taken = self.space().slots().taken_bytes();
    ORIEL_CHECK(self.barrier());
    const auto mappings = test::count_mappings();
    ORIEL_CHECK(self.barrier());
    std::vector<RegisteredWindow> windows = {outer};
    for (std::size_t i = 0; i < 20; ++i) {
      ORIEL_TRY(const auto window, self.register_one(buffer.at(i * kPage), (i + 1) * kPage));
      ORIEL_EXPECT(window.slot_offset == outer.slot_offset + i * kPage);
      ORIEL_EXPECT(window.flat_base == outer.flat_base + i * kPage);
      windows.push_back(window);
    }
    ORIEL_EXPECT(self.space().slots().taken_bytes() == taken);
    ORIEL_CHECK(self.barrier());
    ORIEL_EXPECT(test::count_mappings() == mappings);
    ORIEL_CHECK(self.barrier());
    // The outer window is deregistered before the windows inside it, which stay valid.
    ORIEL_CHECK(self.manager().deregister(outer.handle));
    ORIEL_EXPECT(self.space().slots().taken_bytes() == taken);
    ORIEL_CHECK(check_visible(self, windows[7], 3));
    windows.erase(windows.begin());
    return check_empty(self, windows);
  });
}

TEST_CASE("memory given up under a window goes with the window, its address not before",
          "[req:1.18]") {
  check_ranks({{1, 1}, {2}}, {}, [](WindowRank& self) -> Status {
    ORIEL_CHECK(self.barrier());
    const auto before = held_by_process();
    ORIEL_CHECK(self.barrier());
    ORIEL_TRY(void* const made, host_memory().allocate(16 * kPage));
    ORIEL_TRY(const auto window, self.register_one(made, 16 * kPage));
    const Status freed = host_memory().free(made);
    ORIEL_EXPECT(!freed.ok() && freed.error().code() == ErrorCode::invalid_usage);
    ORIEL_CHECK(host_memory().free_when_unused(made));
    ORIEL_EXPECT(host_memory().free(made).error().code() == ErrorCode::invalid_argument);
    ORIEL_TRY(void* const next, host_memory().allocate(16 * kPage));
    ORIEL_EXPECT(next != made);
    ORIEL_EXPECT(!self.manager().find(next, kPage));
    ORIEL_CHECK(host_memory().free(next));
    ORIEL_CHECK(check_visible(self, window, 3));
    ORIEL_CHECK(self.manager().deregister(window.handle));
    self.drop_manager();
    ORIEL_CHECK(self.barrier());
    ORIEL_EXPECT(held_by_process().mappings <= before.mappings);
    return self.barrier();
  });
}

TEST_CASE("LSA teams of different size register together, each in its own space", "[req:1.14]") {
  RankOptions options;
  options.teams = {{0}, {1, 3, 4}, {2, 5}};
  check_ranks({{6}, {1, 1, 1, 1, 1, 1}, {3, 2, 1}}, options, [](WindowRank& self) -> Status {
    const HostBuffer buffer(16 * kPage);
    ORIEL_TRY(const auto windows, self.register_batch({{buffer.at(), 8 * kPage, 0},
                                                       {buffer.at(4 * kPage), 8 * kPage, 0}}));
    for (const auto& window : windows) ORIEL_CHECK(check_visible(self, window, 1));
    ORIEL_CHECK(self.deregister(windows));
    return self.barrier();
  });
}

TEST_CASE("communicators with one team share one reservation", "[req:1.15]") {
  for (const auto& layout : kLayouts) {
    CAPTURE(layout);
    const ServedId second_id;
    check_all_ok(run_ranks(layout, {}, [&](WindowRank& self) -> Status {
      ORIEL_TRY(const auto other,
                WindowRank::join(second_id.value(), self.rank(), self.size(), {}));
      const HostBuffer buffer(8 * kPage), own(8 * kPage);
      ORIEL_TRY(const auto first, self.register_one(buffer.at(), 8 * kPage));
      ORIEL_TRY(const auto second, other->register_one(buffer.at(), 8 * kPage));
      ORIEL_TRY(const auto third, other->register_one(own.at(), 8 * kPage));
      ORIEL_EXPECT(first.flat_base == second.flat_base);
      // Both windows use the same allocations, which are mapped once.
      ORIEL_EXPECT(first.slot_offset == second.slot_offset);
      ORIEL_EXPECT(third.slot_offset != second.slot_offset);
      ORIEL_EXPECT(first.handle != second.handle);
      const Status foreign = self.manager().deregister(second.handle);
      ORIEL_EXPECT(!foreign.ok() && foreign.error().code() == ErrorCode::invalid_argument);
      ORIEL_CHECK(self.manager().deregister(first.handle));
      ORIEL_CHECK(check_visible(*other, second, 3));
      ORIEL_CHECK(check_visible(*other, third, 4));
      other->drop_manager();
      ORIEL_CHECK(self.barrier());
      ORIEL_EXPECT(self.space().slots().taken_bytes() == 0);
      return self.barrier();
    }));
  }
}

TEST_CASE("communicators that register at once all find a place though they just fit",
          "[req:1.15][req:1.16]") {
  constexpr std::size_t kBytes = std::size_t{1300} << 20;  // three fill a slot of 4 GiB
  constexpr std::size_t kCommunicators = 3;
  for (const auto& layout : {std::vector<int>{1, 1}, {2}, {1, 2, 1}}) {
    CAPTURE(layout);
    const std::vector<ServedId> ids(kCommunicators);
    check_all_ok(run_ranks(layout, {}, [&](WindowRank& self) -> Status {
      std::vector<std::unique_ptr<WindowRank>> comms;
      std::vector<std::byte*> buffers;
      for (const ServedId& id : ids) {
        ORIEL_TRY(auto joined, WindowRank::join(id.value(), self.rank(), self.size(), {}));
        comms.push_back(std::move(joined));
        // The memory is mapped, but no page is ever touched.
        ORIEL_TRY(void* const made, host_memory().allocate(kBytes, Backing::on_demand));
        buffers.push_back(static_cast<std::byte*>(made));
      }
      for (int round = 0; round < test::repeats(40, 4); ++round) {
        std::vector<Result<RegisteredWindow>> results(kCommunicators, RegisteredWindow{});
        ORIEL_CHECK(self.barrier());
        {
          std::vector<std::jthread> threads;
          for (std::size_t i = 0; i < kCommunicators; ++i) {
            // Odd ranks register in reverse order.
            const std::size_t k = self.rank() % 2 == 0 ? i : kCommunicators - 1 - i;
            threads.emplace_back(
                [&, k] { results[k] = comms[k]->register_one(buffers[k], kBytes); });
          }
        }
        Status failed;
        for (std::size_t k = 0; k < kCommunicators; ++k) {
          if (!results[k].ok()) {
            failed = Error(results[k].error()).with_context("round " + std::to_string(round));
            continue;
          }
          ORIEL_CHECK(comms[k]->manager().deregister(results[k]->handle));
        }
        ORIEL_CHECK(self.agree(std::move(failed)));
        ORIEL_CHECK(comms[0]->check_nothing_held());
      }
      for (std::byte* buffer : buffers) ORIEL_CHECK(host_memory().free(buffer));
      return self.barrier();
    }));
  }
}

}  // namespace oriel::window
