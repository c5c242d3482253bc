// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "window/registration/participant.hpp"

#include <cstring>
#include <set>
#include <string>
#include <vector>

#include <catch2/catch.hpp>

#include "base/try.hpp"
#include "window/memory/sizes.hpp"
#include "window/registration/window_ranks.hpp"

/// Tests participants, which must know every window: they prepare with the registration, and roll
/// back with it.
namespace oriel::window {
namespace {

/// Log of the calls to all participants of one rank, in order.
using CallLog = std::vector<std::string>;

/// Learns the other ranks' addresses of the first window, like a NIC that exchanges its keys.
/// prepare() takes two collective steps of the world; a failure of its own is returned after both.
class Neighbour final : public Participant {
 public:
  Neighbour(std::string name, CallLog& calls) : name_(std::move(name)), calls_(&calls) {}

  void meet(WindowRank& rank) { rank_ = &rank; }
  /// Makes the next prepare() fail on this rank.
  void fail_once() { fails_ = true; }
  const std::set<std::uint64_t>& known() const { return known_; }
  const std::vector<std::uint64_t>& addresses() const { return addresses_; }
  /// Counts the windows that find() returned during prepare().
  int seen_early() const { return seen_early_; }
  /// Remaining time at the start of the last prepare().
  Duration time_left() const { return time_left_; }

  Task<Status> prepare(EventLoop& loop, std::span<const RegisteredWindow> windows,
                       Deadline deadline) override {
    time_left_ = deadline.remaining(loop.clock().now());
    calls_->push_back("prepare " + name_);
    for (const auto& window : windows) {
      if (rank_->manager().find(window.user, window.bytes)) ++seen_early_;
      coming_.push_back(window.serial);
    }
    Bytes mine(sizeof(std::uint64_t));
    const auto address = reinterpret_cast<std::uint64_t>(windows.front().user);
    std::memcpy(mine.data(), &address, mine.size());
    boot::Group& world = rank_->session().world();
    ORIEL_CO_TRY(const std::vector<Bytes> all,
                 co_await world.all_gather(boot::Operation::test, std::move(mine)));
    ORIEL_CO_CHECK(co_await world.barrier(boot::Operation::test));
    if (std::exchange(fails_, false)) {
      coming_.clear();
      co_return Error(ErrorCode::system, name_ + " has no room");
    }
    addresses_.clear();
    for (const Bytes& one : all) {
      std::uint64_t value = 0;
      std::memcpy(&value, one.data(), sizeof(value));
      addresses_.push_back(value);
    }
    co_return Status();
  }
  void commit() noexcept override {
    calls_->push_back("commit " + name_);
    known_.insert(coming_.begin(), coming_.end());
    coming_.clear();
  }
  void rollback() noexcept override {
    calls_->push_back("rollback " + name_);
    coming_.clear();
  }
  void deregister(std::uint64_t serial) noexcept override {
    calls_->push_back("forget " + name_);
    if (known_.erase(serial) == 0) calls_->push_back("unknown to " + name_);
  }

 private:
  std::string name_;
  CallLog* calls_;
  WindowRank* rank_ = nullptr;
  bool fails_ = false;
  int seen_early_ = 0;
  Duration time_left_{};
  std::vector<std::uint64_t> coming_;
  std::vector<std::uint64_t> addresses_;
  std::set<std::uint64_t> known_;
};

struct Pair {
  CallLog calls;
  Neighbour a{"a", calls};
  Neighbour b{"b", calls};
};

/// Runs `body` with two participants on each rank. Each rank is a process, with its own copy.
void run_ranks(const std::function<Status(WindowRank&, Pair&)>& body) {
  for (const auto& layout : {std::vector<int>{1}, {1, 1}, {1, 1, 1}}) {
    CAPTURE(layout.size());
    Pair pair;
    RankOptions options;
    options.participants = {&pair.a, &pair.b};
    options.always_fork = true;
    check_all_ok(run_ranks(layout, options, [&](WindowRank& self) -> Status {
      pair.a.meet(self);
      pair.b.meet(self);
      return body(self, pair);
    }));
  }
}

Status check_nothing_held(WindowRank& self, const Pair& pair) {
  ORIEL_CHECK(self.check_nothing_held());
  ORIEL_EXPECT(pair.a.known().empty());
  ORIEL_EXPECT(pair.b.known().empty());
  return {};
}

}  // namespace

TEST_CASE("participants prepare every window in order, then commit, and are notified of its end",
          "[req:1.16]") {
  run_ranks([](WindowRank& self, Pair& pair) -> Status {
    const HostBuffer buffer(8 * kPage);
    ORIEL_TRY(const auto windows, self.register_batch({{buffer.at(kPage), kPage, 0},
                                                       {buffer.at(2 * kPage), 3 * kPage, 0}}));
    ORIEL_EXPECT((pair.calls == CallLog{"prepare a", "prepare b", "commit a", "commit b"}));
    // A participant gets less time than the registration.
    ORIEL_EXPECT(pair.a.time_left() > Duration::zero());
    ORIEL_EXPECT(pair.a.time_left() <= Duration(kTimeout) * 3 / 4);
    ORIEL_EXPECT(pair.a.seen_early() == 0);
    ORIEL_EXPECT((pair.a.known() == std::set{windows[0].serial, windows[1].serial}));
    ORIEL_EXPECT(pair.b.known() == pair.a.known());
    ORIEL_EXPECT(pair.b.addresses().size() == static_cast<std::size_t>(self.size()));
    ORIEL_EXPECT(pair.b.addresses()[static_cast<std::size_t>(self.rank())] ==
                 reinterpret_cast<std::uint64_t>(buffer.at(kPage)));
    pair.calls.clear();
    ORIEL_CHECK(self.manager().deregister(windows[0].handle));
    ORIEL_EXPECT((pair.calls == CallLog{"forget a", "forget b"}));
    ORIEL_EXPECT(pair.a.known() == std::set{windows[1].serial});
    pair.calls.clear();
    ORIEL_CHECK(self.barrier());
    self.drop_manager();  // one window is still registered
    ORIEL_EXPECT((pair.calls == CallLog{"forget a", "forget b"}));
    return self.barrier();
  });
}

TEST_CASE("a participant that fails on one rank takes the whole batch back everywhere",
          "[req:1.16]") {
  run_ranks([](WindowRank& self, Pair& pair) -> Status {
    const HostBuffer buffer(8 * kPage);
    const std::vector<WindowRequest> requests = {{buffer.at(), kPage, 0},
                                                 {buffer.at(kPage), 2 * kPage, 0}};
    const int victim = self.size() - 1;
    const bool mine = self.rank() == victim;

    ORIEL_EXPECT(!self.register_batch({{buffer.at(), mine ? 0 : kPage, 0}}).ok());
    ORIEL_EXPECT(pair.calls.empty());  // refused before any prepare()
    ORIEL_CHECK(check_nothing_held(self, pair));

    if (mine) pair.b.fail_once();
    const auto second = self.register_batch(requests);
    ORIEL_EXPECT(!second.ok());
    ORIEL_EXPECT(second.error().origin_rank() == victim);
    ORIEL_EXPECT(second.error().message() == "b has no room");
    ORIEL_CHECK(self.same_everywhere(second.error().to_string()));
    // Participants roll back in reverse order; the one that failed keeps nothing.
    ORIEL_EXPECT(
        (pair.calls == (mine ? CallLog{"prepare a", "prepare b", "rollback a"}
                             : CallLog{"prepare a", "prepare b", "rollback b", "rollback a"})));
    ORIEL_CHECK(check_nothing_held(self, pair));

    pair.calls.clear();
    if (mine) pair.a.fail_once();
    const auto first = self.register_batch(requests);
    ORIEL_EXPECT(!first.ok() && first.error().message() == "a has no room");
    ORIEL_CHECK(self.same_everywhere(first.error().to_string()));
    ORIEL_EXPECT(
        (pair.calls == (mine ? CallLog{"prepare a"} : CallLog{"prepare a", "rollback a"})));
    ORIEL_CHECK(check_nothing_held(self, pair));

    ORIEL_TRY(const auto windows, self.register_batch(requests));
    ORIEL_EXPECT(pair.a.known().size() == 2 && pair.b.known().size() == 2);
    ORIEL_CHECK(self.deregister(windows));
    ORIEL_CHECK(self.barrier());
    return check_nothing_held(self, pair);
  });
}

}  // namespace oriel::window
