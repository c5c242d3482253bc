// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <chrono>
#include <cstdint>

#include <catch2/catch.hpp>

#include "net/failover/failover_pair.hpp"

// Immediates on queues with failover: a consumer that knows nothing of paths takes each immediate
// once, in order (B4 and 3.14).
using namespace oriel;
using namespace oriel::net;
using namespace oriel::net::test;
using device::Thread;
using std::chrono::milliseconds;
using std::chrono::seconds;

namespace {

/// Memory policy whose waits step the pair and its clock.
struct SteppingMemory : device::Memory {
  static inline FailoverPair* pair = nullptr;
  static void relax() { pair->step(); }
};

/// Writes with immediates from one rank, and their consumer on the other rank.
class Immediates {
 public:
  explicit Immediates(FailoverPair& pair) : pair_(pair), raw_(pair.view()) {
    SteppingMemory::pair = &pair;
    control_.timeout_ns = 60'000'000'000;
  }
  ~Immediates() { SteppingMemory::pair = nullptr; }
  Immediates(const Immediates&) = delete;
  Immediates& operator=(const Immediates&) = delete;

  const dq::ReceiveView& receives() const { return pair_.back->queue().receives(); }
  void post(std::uint32_t count) {
    for (; count > 0; --count, ++sent_) {
      const std::uint64_t word = 10 + sent_;
      pair_.a.memory[word] = 1000 + sent_;
      const dq::LocalRange local{pair_.a.region.address + word * 8, pair_.a.keys[0], 8};
      raw_.add(dq::transfer_wqe(dq::Opcode::write_immediate, raw_.place(), dq::kSignalled,
                                pair_.b.region.remote(word * 8), local, 0x5000 + sent_));
    }
    raw_.ring();
  }
  /// Waits for the next immediate and checks that it is the expected one.
  void take() {
    dq::ReceivedImmediate got;
    REQUIRE(dq::wait_immediate<Thread, SteppingMemory>(Thread(), pair_.back->view(), receives(),
                                                       got, control_) == dq::QueueOutcome::done);
    REQUIRE(got.value == 0x5000 + taken_);
    REQUIRE(got.bytes == 8);
    REQUIRE(pair_.b.memory[10 + taken_] == 1000 + taken_);
    ++taken_;
  }
  void take_all() {
    while (taken_ < sent_) {
      take();
      REQUIRE(dq::post_receives(receives(), 1));
    }
  }
  /// Checks that no further immediate arrives.
  void check_exact() {
    INFO(pair_.states());
    REQUIRE(pair_.run_until([&] { return pair_.is_complete(raw_.next()); }));
    pair_.run_for(milliseconds(20));
    dq::ReceivedImmediate none;
    REQUIRE(dq::take_immediate(receives(), none) == dq::Arrival::none);
    REQUIRE(receives().position->taken == sent_);
    REQUIRE_FALSE(pair_.has_failed(pair_.view()));
    REQUIRE(pair_.back->view().indexes->error == 0);
  }

 private:
  FailoverPair& pair_;
  RawPoster raw_;
  device::WaitControl control_;
  std::uint32_t sent_ = 0, taken_ = 0;
};

}  // namespace

TEST_CASE("a peer that waits for room as the primary stops has it on the backup", "[B4][F2]") {
  FailoverPair::Options options;
  options.queue.receives = 4;
  FailoverPair pair(options);
  Immediates work(pair);
  REQUIRE(dq::post_receives(work.receives(), 1));
  work.post(6);
  work.take();
  pair.run_for(milliseconds(5));  // the second one is retransmitted again and again
  stop_nic(*pair.a.nics[0]);
  pair.run_for(seconds(1));
  dq::ReceivedImmediate none;
  REQUIRE(dq::take_immediate(work.receives(), none) == dq::Arrival::none);
  REQUIRE(dq::post_receives(work.receives(), 2));
  work.take_all();
  work.check_exact();
  CHECK(pair.path() == 1);
}
