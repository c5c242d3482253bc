// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/device/cta_budget.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <future>
#include <memory>
#include <random>
#include <thread>
#include <vector>

#include <catch2/catch.hpp>

#include "support/on_threads.hpp"
#include "support/sanitized.hpp"

namespace oriel::comm {
namespace {

using namespace std::chrono_literals;

class Call final : public CtaBudget::Member {
 public:
  Call(std::uint64_t communicator, int ctas, Sharers sharers = {1, 1})
      : Member({communicator, ctas, sharers}) {}
  bool has_ended() const override {
    ++asked;
    if (under_way) ++too_early;
    return ended;
  }
  mutable std::atomic<int> asked = 0;
  mutable std::atomic<int> too_early = 0;  ///< polled before the launch was recorded
  std::atomic<bool> under_way = false;
  std::atomic<bool> ended = false;
};
using CallRef = std::shared_ptr<Call>;

/// A budget together with its calls.
class Budget {
 public:
  explicit Budget(int resident) : budget_(resident) {}
  CtaBudget& operator*() { return budget_; }
  CallRef add(std::uint64_t communicator, int ctas, Sharers sharers = {1, 1}) {
    auto call = std::make_shared<Call>(communicator, ctas, sharers);
    budget_.join(call);
    return call;
  }
  /// Launches `call`. Returns the calls that the launch waits for.
  std::vector<CallRef> launch(const CallRef& call) {
    const CtaBudget::Turn turn = budget_.begin(call);
    call->ended = false;
    std::vector<CallRef> waits;
    for (const auto& one : turn.waits()) {
      waits.push_back(std::const_pointer_cast<Call>(std::static_pointer_cast<const Call>(one)));
    }
    return waits;
  }

 private:
  CtaBudget budget_;
};

using Calls = std::vector<CallRef>;

/// Reference implementation of the chain rules, for one thread. Says which calls a launch waits
/// for.
class ChainRules {
 public:
  explicit ChainRules(int resident) : resident_(resident) {}
  Calls launch(const CallRef& call) {
    if (!is_chained_ && fits(call)) return {};
    if (is_chained_ && running_.back() == call) return {};
    if (is_chained_ && !running_.back()->ended) {
      running_ = {running_.back()};
    } else {
      std::erase_if(running_, [](const CallRef& each) { return each->ended.load(); });
      is_chained_ = is_chained_ && !running_.empty();
      if (!is_chained_ && fits(call)) return {};
    }
    Calls waits = running_;
    running_.push_back(call);
    is_chained_ = true;
    return waits;
  }
  void leave(const CallRef& call) {
    std::erase(running_, call);
    if (running_.empty()) is_chained_ = false;
  }

 private:
  static int weight(const CallRef& call) { return 2 * (call->facts().ctas + 1); }
  bool fits(const CallRef& call) {
    int sum = weight(call);
    for (const CallRef& each : running_) {
      if (each == call) return true;
      sum += weight(each);
    }
    if (!running_.empty() && sum > resident_) return false;
    running_.push_back(call);
    return true;
  }
  int resident_;
  bool is_chained_ = false;
  Calls running_;
};

topo::RankInfo gpu(std::uint64_t process, std::uint8_t device, std::uint16_t resident = 132) {
  topo::RankInfo info;
  info.kind = topo::DeviceKind::cuda;
  info.process = process;
  info.uuid[0] = std::byte{device};
  info.resident_ctas = resident;
  return info;
}

}  // namespace

TEST_CASE("ranks that share a GPU divide its CTAs, with a dependent of each call",
          "[req:5.5][D1]") {
  const auto of = [](int sharers, std::uint16_t resident = 132) {
    std::vector<topo::RankInfo> infos{gpu(9, 9, 1000)};
    for (int i = 0; i < sharers; ++i) infos.push_back(gpu(1, 1, resident));
    return infos;
  };
  CHECK(most_ctas_of_gpus(of(1), 0) == 32);
  CHECK(most_ctas_of_gpus(of(1, 16), 0) == 15);
  for (const int sharers : {2, 3, 4, 8, 16, 33}) {
    const int ctas = most_ctas_of_gpus(of(sharers), 0);
    INFO(sharers << " ranks, " << ctas << " CTAs");
    CHECK(sharers * 2 * (ctas + 1) <= 132);
    CHECK((ctas == 32 || sharers * 2 * (ctas + 2) > 132));
  }
  CHECK(most_ctas_of_gpus(of(100), 0) == 1);
}

TEST_CASE(
    "ranks are on one GPU if all have its identity and are one team, not if one is alone or on "
    "a CPU",
    "[req:5.23]") {
  const std::vector<topo::RankInfo> sharing{gpu(1, 1), gpu(2, 1), gpu(3, 1)};
  CHECK(are_on_one_gpu(sharing, {0, 1, 2}));
  // Rank 1 could have a peer in the team of rank 2 in the same call.
  CHECK_FALSE(are_on_one_gpu(sharing, {0, 1}));
  CHECK_FALSE(are_on_one_gpu({gpu(1, 1), gpu(1, 2)}, {0, 1}));
  CHECK_FALSE(are_on_one_gpu({gpu(1, 1)}, {0}));
  CHECK_FALSE(are_on_one_gpu({{}, {}}, {0, 1}));
}

TEST_CASE("ranks have GPUs of their own unless two share one, or one is a CPU", "[req:5.9]") {
  CHECK(have_own_gpus({gpu(1, 1), gpu(1, 2)}));
  CHECK_FALSE(have_own_gpus({gpu(1, 1), gpu(1, 2), gpu(2, 1)}));
  CHECK_FALSE(have_own_gpus({gpu(1, 1), {}}));
  std::vector<topo::RankInfo> known{gpu(1, 1), gpu(1, 2)};
  known[1].known_sharers = 2;  // another communicator's
  CHECK_FALSE(have_own_gpus(known));
}

TEST_CASE("the largest wish of a rank for CTAs holds for all, up to the limit", "[req:5.17]") {
  std::vector<topo::RankInfo> infos{gpu(1, 1), gpu(1, 2)};
  CHECK(least_ctas_of_gpus(infos, 32) == 0);
  infos[0].cta_least = 4;
  infos[1].cta_least = 8;
  CHECK(least_ctas_of_gpus(infos, 32) == 8);
  CHECK(least_ctas_of_gpus(infos, 6) == 6);
}

TEST_CASE("the least limit of a rank holds for all, and a forced number may use a dependent's room",
          "[req:5.5]") {
  std::vector<topo::RankInfo> infos{gpu(1, 1), gpu(1, 2)};
  infos[0].cta_limit = 128;
  CHECK(most_ctas_of_gpus(infos, 0) == 32);
  infos[1].cta_limit = 100;
  CHECK(most_ctas_of_gpus(infos, 0) == 100);
  infos[1].cta_limit = 7;
  CHECK(most_ctas_of_gpus(infos, 64) == 7);
  infos = {gpu(1, 1), gpu(2, 1), gpu(1, 1), gpu(1, 1)};
  for (auto& info : infos) info.cta_limit = 64;
  CHECK(most_ctas_of_gpus(infos, 0) == 15);
  CHECK(most_ctas_of_gpus(infos, 16) == 16);
  CHECK(most_ctas_of_gpus(infos, 64) == 32);
  CHECK(sharers_of(infos, infos[0]).all == 4);
  CHECK(sharers_of(infos, infos[0]).in_process == 3);
  infos = {gpu(1, 1), gpu(1, 2)};
  infos[1].known_sharers = 4;  // sharers known from an existing communicator
  CHECK(most_ctas_of_gpus(infos, 0) == 15);
}

TEST_CASE("launches within the budget wait for nothing and ask for nothing", "[req:5.5][D1]") {
  Budget budget(132);
  const Calls calls{budget.add(1, 32), budget.add(2, 32)};
  for (int i = 0; i < 10; ++i) {
    CHECK(budget.launch(calls[static_cast<std::size_t>(i / 3 % 2)]).empty());
  }
  const auto alone = budget.add(3, 144);
  CHECK(calls[0]->asked + calls[1]->asked == 0);
  // Calls that have ended free their CTAs.
  for (const CallRef& call : calls) call->ended = true;
  CHECK(budget.launch(alone).empty());
  CHECK(budget.launch(alone).empty());
}

TEST_CASE("launches beyond the budget wait in host order, until the GPU is empty",
          "[req:5.5][D1]") {
  Budget budget(132);
  const auto a = budget.add(1, 32), b = budget.add(2, 32), c = budget.add(3, 32);
  CHECK(budget.launch(a).empty());
  CHECK(budget.launch(b).empty());
  CHECK(budget.launch(c) == Calls{a, b});
  CHECK(budget.launch(c).empty());
  CHECK(budget.launch(a) == Calls{c});
  CHECK(budget.launch(b) == Calls{a});
  CHECK(budget.launch(a) == Calls{b});
  // If the last call of the chain has ended, so have all calls that it waited for.
  for (const CallRef& call : {a, b, c}) call->ended = true;
  CHECK(budget.launch(c).empty());
  CHECK(budget.launch(b).empty());
  CHECK(budget.launch(a) == Calls{c, b});
  // Two communicators leave the budget.
  (*budget).leave(b);
  (*budget).leave(c);
  CHECK(budget.launch(a).empty());
}

TEST_CASE("ranks of one communicator on a GPU never wait for each other", "[req:5.5][D1]") {
  Budget budget(132);
  const Sharers two{2, 2};
  const Calls a{budget.add(1, 32, two), budget.add(1, 32, two)};
  const Calls b{budget.add(2, 32, two), budget.add(2, 32, two)};
  SECTION("as threads, each waits for its own calls") {
    CHECK(budget.launch(a[0]).empty());
    CHECK(budget.launch(b[0]) == Calls{a[0]});
    const auto second_rank = [&](int) {
      return budget.launch(a[1]).empty() && budget.launch(b[1]) == Calls{a[1]};
    };
    CHECK(test::on_threads(1, second_rank) == 1);
    CHECK(budget.launch(a[0]) == Calls{b[0]});
  }
  SECTION("of one thread, they wait for the communicator before") {
    CHECK(budget.launch(a[0]).empty());
    CHECK(budget.launch(a[1]).empty());
    CHECK(budget.launch(b[0]) == a);
    CHECK(budget.launch(b[1]) == a);
    CHECK(budget.launch(b[0]).empty());
  }
  CHECK((*budget).most_sharers() == 2);
  for (const auto& call : {a[0], a[1], b[0], b[1]}) (*budget).leave(call);
  CHECK((*budget).most_sharers() == 1);
}

TEST_CASE("a launch beyond the budget waits for launches that other threads make",
          "[req:5.5][D1]") {
  Budget budget(132);
  const auto a = budget.add(1, 32), b = budget.add(2, 65);
  std::atomic<bool> is_recorded = false;
  std::promise<void> started;
  auto first = std::async(std::launch::async, [&] {
    const CtaBudget::Turn turn = (*budget).begin(a);
    started.set_value();
    std::this_thread::sleep_for(30ms);
    is_recorded = true;
  });
  started.get_future().wait();
  CHECK(budget.launch(b) == Calls{a});
  CHECK(is_recorded);
  first.get();
}

TEST_CASE("launches of random communicators wait for those that the rules of one chain name",
          "[req:5.5][req:5.6][D1]") {
  const auto seed = std::random_device{}();
  INFO("seed " << seed);
  std::mt19937 random(seed);
  const auto draw = [&](std::size_t below) {
    return std::uniform_int_distribution<std::size_t>(0, below - 1)(random);
  };
  for (int round = 0; round < test::repeats(200); ++round) {
    Budget budget(132);
    ChainRules rules(132);
    Calls calls;
    std::uint64_t next = 0;
    for (int step = 0; step < 200; ++step) {
      const std::size_t action = draw(20);
      if (calls.empty() || (action == 0 && calls.size() < 8)) {
        calls.push_back(budget.add(++next, 1 + static_cast<int>(draw(50))));
        continue;
      }
      const CallRef call = calls[draw(calls.size())];
      if (action == 1) {
        (*budget).leave(call);
        rules.leave(call);
        std::erase(calls, call);
      } else if (action < 8) {
        call->ended = true;
      } else {
        const Calls expected = rules.launch(call);
        REQUIRE(budget.launch(call) == expected);
      }
    }
  }
}

TEST_CASE("launches of threads that wait for others find these recorded, and none beside them",
          "[req:5.5][req:5.6][D1]") {
  CtaBudget budget(132);
  Calls calls;
  // Any two of these calls fit on the GPU together, but no three.
  for (const int ctas : {32, 32, 20, 20}) {
    calls.push_back(std::make_shared<Call>(calls.size() + 1, ctas));
    budget.join(calls.back());
  }
  std::atomic<int> live = 0;
  std::atomic<int> waited = 0;
  const auto launch = [&](const CallRef& call) {
    const CtaBudget::Turn turn = budget.begin(call);
    call->under_way = true;
    call->ended = false;
    bool is_right = ++live == 1 || turn.waits().empty();
    for (const auto& other : turn.waits()) {
      const bool is_own = other == call;  // the call's last launch may be in the chain
      is_right = is_right && (is_own || !static_cast<const Call&>(*other).under_way);
      ++waited;
    }
    std::this_thread::yield();
    is_right = is_right && (turn.waits().empty() || live == 1);
    --live;
    call->under_way = false;
    return is_right;
  };
  const int right = test::on_threads(static_cast<int>(calls.size()), [&](int thread) {
    const CallRef& call = calls[static_cast<std::size_t>(thread)];
    bool is_right = true;
    for (int i = 0; i < test::repeats(5000); ++i) {
      is_right = launch(call) && is_right;
      if (i % 3 != 0) call->ended = true;
      if (i % 64 == 0) std::this_thread::sleep_for(100us);  // lets the others run alone
    }
    call->ended = true;
    return is_right;
  });
  CHECK(right == static_cast<int>(calls.size()));
  for (const CallRef& call : calls) CHECK(call->too_early == 0);
  CHECK(waited > 0);
}

}  // namespace oriel::comm
