// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <string>

#include <catch2/catch.hpp>

#include "net/failover/failover_pair.hpp"
#include "net/failover/failover_workload.hpp"
#include "support/sanitized.hpp"

// Failover of queues (3.14): tests of rows F1, F2, F5 to F7 and F9 to F12 of the reference. They
// run on software NICs and a clock that the test moves. Rates (F8) are in failover_flap_test.cpp.
// The random runs (F3, F4) are in failover_random_test.cpp.
using namespace oriel;
using namespace oriel::net;
using namespace oriel::net::test;
using device::Thread;
using std::chrono::milliseconds;
using std::chrono::seconds;

namespace {

/// Checks that `count` additions of post_adds() were executed once, in order.
void check_adds(const FailoverPair& pair, std::uint64_t count) {
  REQUIRE(pair.b.memory[0] == count);
  for (std::uint64_t i = 0; i < count; ++i) REQUIRE(pair.a.memory[100 + i] == i);
}

void post_write(const FailoverPair& pair, RawPoster& raw, std::uint64_t word,
                std::uint32_t flags = dq::kSignalled) {
  raw.add(dq::transfer_wqe(dq::Opcode::write, raw.place(), flags, pair.b.region.remote(word * 8),
                           word_of(pair.a, word)));
}

}  // namespace

TEST_CASE("a doorbell that is lost is made up for, on the same path", "[req:3.14][F1]") {
  FailoverPair pair;
  RawPoster raw(pair.view());
  post_adds(pair, raw, 5);
  raw.ring(raw.next(), 1);  // only the record shows the later WQEs
  const TimePoint begin = pair.clock.now();
  REQUIRE(pair.run_until([&] { return pair.is_complete(5); }));
  CHECK(pair.clock.now() - begin < seconds(1));
  check_adds(pair, 5);
  CHECK(pair.epoch() == 1);
}

TEST_CASE("a slow NIC is not failed over, a stopped one is", "[req:3.14][F2]") {
  FailoverPair pair;
  const auto number = pair.there->queue().number();
  SECTION("each WQE takes long, but not too long") {
    delay_queue(*pair.a.nics[0], number, milliseconds(2900), pair.clock);
    RawPoster raw(pair.view());
    ring_adds(pair, raw, 4);
    REQUIRE(pair.run_until([&] { return pair.is_complete(4); }));
    check_adds(pair, 4);
    CHECK(pair.epoch() == 1);
  }
  SECTION("one takes very long, while the NIC answers probes") {
    delay_queue(*pair.a.nics[0], number, seconds(30), pair.clock);
    RawPoster raw(pair.view());
    ring_adds(pair, raw, 1);
    pair.run_for(seconds(10));
    CHECK(pair.sent_there.is_usable(0));
    REQUIRE(pair.run_until([&] { return pair.is_complete(1); }));
    CHECK(pair.epoch() == 1);
  }
  SECTION("stopped for less than the threshold, here or there") {
    NicSoft& nic = GENERATE(false, true) ? *pair.a.nics[0] : *pair.b.nics[0];
    stop_nic(nic);
    RawPoster raw(pair.view());
    ring_adds(pair, raw, 3);
    pair.run_for(milliseconds(2900));
    CHECK(pair.epoch() == 1);
    resume_nic(nic);
    REQUIRE(pair.run_until([&] { return pair.is_complete(3); }));
    check_adds(pair, 3);
    CHECK(pair.epoch() == 1);
  }
  SECTION("stopped for longer, here or there") {
    NicSoft& nic = GENERATE(false, true) ? *pair.a.nics[0] : *pair.b.nics[0];
    stop_nic(nic);
    RawPoster raw(pair.view());
    ring_adds(pair, raw, 3);
    const TimePoint begin = pair.clock.now();
    REQUIRE(pair.run_until([&] { return pair.is_complete(3); }));
    CHECK(pair.clock.now() - begin >= seconds(3));
    CHECK(pair.clock.now() - begin < milliseconds(3200));
    check_adds(pair, 3);
    REQUIRE(pair.run_until([&] { return pair.both_on(1); }));
    CHECK_FALSE(pair.sent_there.is_usable(0));
  }
}

TEST_CASE("the backup fails while the queue is on its way there: on to the third path",
          "[req:3.14][F5]") {
  for (int steps = 0; steps < 30; steps += oriel::test::kSanitized ? 10 : 2) {
    FailoverPair::Options options;
    options.paths = 3;
    FailoverPair pair(options);
    pair.post.delay_most = 3;
    fail_wqe(*pair.a.nics[0], {pair.there->queue().number(), 3}, true);
    RawPoster raw(pair.view());
    ring_adds(pair, raw, 8);
    pair.step();
    pair.a.faults[0]->cut = true;  // prevents its recovery
    for (int i = 0; i < steps; ++i) pair.step();
    stop_nic(*pair.b.nics[1]);
    ring_adds(pair, raw, 8);
    REQUIRE(pair.run_until([&] { return pair.is_complete(16); }));
    REQUIRE(pair.b.memory[0] == 16);
    CHECK(pair.path() == 2);
  }
}

TEST_CASE("with both paths dead producers get an error in time", "[req:3.14][F6]") {
  FailoverPair::Options options;
  options.queue.depth = 128;
  FailoverPair pair(options);
  const bool here = GENERATE(false, true);
  for (const auto& nic : here ? pair.a.nics : pair.b.nics) stop_nic(*nic);
  RawPoster raw(pair.view());
  ring_adds(pair, raw, 3);
  const TimePoint begin = pair.clock.now();
  REQUIRE(pair.run_until([&] { return pair.there->failure().has_value(); }));
  // Bound: twice the timeout of a path, and the time of the agreement.
  CHECK(pair.clock.now() - begin < milliseconds(6500));
  REQUIRE(pair.run_until([&] { return pair.back->failure().has_value(); }, seconds(1)));
  const std::string text = pair.there->failure()->to_string();
  INFO(text);
  CHECK(text.find("rank 7") != std::string::npos);
  CHECK(text.find("nic0, nic1") != std::string::npos);
  CHECK(text.find("path 0: here no sign of life") != std::string::npos);
  CHECK(text.find("path 1: here no sign of life") != std::string::npos);
  // A kernel that waits and a kernel that posts both end.
  pair.control.timeout_ns = 0;
  CHECK(dq::wait_complete(pair.view(), 3, pair.control) == dq::QueueOutcome::failed);
  CHECK(dq::decode_error(pair.view().indexes->error).syndrome == 0x15);
  dq::Posted posted;
  for (int i = 0; i < 200 && posted.outcome == dq::QueueOutcome::done; ++i) {
    posted = dq::put<Thread>(Thread(), pair.view(), pair.transfer(0, 0, 8), pair.control);
  }
  CHECK(posted.outcome == dq::QueueOutcome::failed);
  // A queue on the other side, which had no work so far, ends too.
  CHECK(pair.has_failed(pair.back->view()));
}

TEST_CASE("a queue without a backup fails and names the rank when the peer's NIC stops",
          "[req:3.14][F6]") {
  FailoverPair::Options options;
  options.paths = 1;
  FailoverPair pair(options);
  RawPoster raw(pair.view());
  ring_adds(pair, raw, 3);
  REQUIRE(pair.run_until([&] { return pair.is_complete(3); }));
  stop_nic(*pair.b.nics[0]);
  ring_adds(pair, raw, 3);
  REQUIRE(pair.run_until([&] { return pair.has_failed(pair.view()); }, seconds(4)));
  CHECK(pair.there->failure()->to_string().find("rank 7") != std::string::npos);
}

TEST_CASE("one side sees the error, or both do at once: both leave the path once",
          "[req:3.14][F7]") {
  FailoverPair pair;
  const bool here = GENERATE(false, true), there = GENERATE(false, true);
  if (!here && !there) return;
  if (here) fail_wqe(*pair.a.nics[0], {0, 2}, there);
  if (there) fail_wqe(*pair.b.nics[0], {0, 2}, here);
  Workload work(*pair.there, *pair.back, pair.a, pair.b, 5);
  Workload back_work(*pair.back, *pair.there, pair.b, pair.a, 6);
  for (int i = 0; i < 40; ++i) work.post(), back_work.post(), pair.step();
  REQUIRE(pair.run_until([&] { return work.is_done() && back_work.is_done(); }, seconds(2)));
  work.check_all();
  back_work.check_all();
  CHECK(pair.both_on(1));
  CHECK(pair.epoch() == 2);
  // An end that has seen no error still holds the path usable.
  CHECK((here || pair.sent_there.is_usable(0)));
  CHECK((there || pair.sent_back.is_usable(0)));
}

TEST_CASE("an error that is none of a path does not fail over", "[req:3.14][F9]") {
  for (const unsigned value :
       {0x01u, 0x02u, 0x04u, 0x06u, 0x10u, 0x11u, 0x12u, 0x13u, 0x14u, 0x16u, 0x22u}) {
    FailoverPair pair;
    fail_wqe(*pair.a.nics[0], {pair.there->queue().number(), 2}, false,
             static_cast<Syndrome>(value));
    RawPoster raw(pair.view());
    ring_adds(pair, raw, 5);
    REQUIRE(pair.run_until([&] { return pair.has_failed(pair.view()); }, seconds(1)));
    const dq::QueueError error = dq::decode_error(pair.view().indexes->error);
    CHECK(error.syndrome == value);
    CHECK(error.index == 2);
    CHECK(pair.view().indexes->completed == 2);
    CHECK(pair.epoch() == 1);
    REQUIRE(pair.run_until([&] { return pair.has_failed(pair.back->view()); }, seconds(1)));
    CHECK(dq::decode_error(pair.back->view().indexes->error).syndrome == 0x05);
    // The end that could not execute the request is at fault.
    CHECK(pair.back->is_at_fault() == (value == 0x14));
    CHECK_FALSE(pair.there->is_at_fault());
    CHECK(pair.b.memory[0] == 2);
  }
}

TEST_CASE("a key that the peer does not have ends the queue, on either path",
          "[req:3.14][F9][B6]") {
  FailoverPair pair;
  const bool on_backup = GENERATE(false, true);
  if (on_backup) {
    // Simulates a window that was not registered with the backup.
    pair.there->aliases(1).remove_remote(pair.b.keys[0]);
    stop_nic(*pair.a.nics[0]);
  }
  RawPoster raw(pair.view());
  if (on_backup) {
    post_adds(pair, raw, 1);
  } else {
    raw.add(dq::fetch_add_wqe(raw.place(), dq::kSignalled,
                              {pair.b.region.address, pair.b.keys[0] + 1}, 1,
                              word_of(pair.a, 100)));
  }
  raw.ring();
  REQUIRE(pair.run_until([&] { return pair.has_failed(pair.view()); }, seconds(5)));
  CHECK(dq::decode_error(pair.view().indexes->error).syndrome == 0x13);
  CHECK(pair.epoch() == (on_backup ? 2 : 1));
  CHECK(pair.b.memory[0] == 0);
  REQUIRE(pair.run_until([&] { return pair.back->failure().has_value(); }, seconds(1)));
  CHECK(pair.back->failure()->to_string().find("0x13") != std::string::npos);
}

TEST_CASE("a request of an old epoch that reaches its queue late writes nothing",
          "[req:3.14][F10]") {
  FailoverPair pair;
  pair.a.faults[0]->hold = true;
  RawPoster raw(pair.view());
  pair.a.memory[10] = 2;
  post_write(pair, raw, 10);
  raw.ring();
  pair.run_for(milliseconds(1));
  pair.a.faults[0]->hold = false;
  REQUIRE_FALSE(pair.a.faults[0]->held.empty());
  pair.a.faults[0]->cut = true;
  REQUIRE(pair.run_until([&] { return pair.is_complete(1); }));
  // Lets the queue return, so that the same queue of the same NICs is in use again.
  pair.a.faults[0]->cut = false;
  REQUIRE(pair.run_until([&] { return pair.both_on(0); }));
  pair.b.memory[10] = 77;
  pair.a.wires[0]->release();
  pair.run_for(milliseconds(10));
  CHECK(pair.b.memory[10] == 77);
  CHECK_FALSE(pair.has_failed(pair.view()));
}

TEST_CASE("after a failover each WQE of a batch that was rung in part runs once",
          "[req:3.14][F11]") {
  for (std::uint64_t rung = 0; rung <= 8; rung += oriel::test::kSanitized ? 4 : 1) {  // none to all
    for (std::uint64_t recorded = rung; recorded <= 8; recorded += 4) {
      FailoverPair pair;
      RawPoster raw(pair.view());
      post_adds(pair, raw, 8);
      if (rung > 0) raw.ring(recorded, rung);
      stop_nic(*pair.a.nics[0]);
      if (rung > 0) {
        REQUIRE(pair.run_until([&] { return pair.is_complete(rung); }));
        CHECK(pair.path() == 1);
      }
      pair.run_for(seconds(5));
      // On the new path, the record counts as rung. WQEs after it wait for the next ring.
      REQUIRE(pair.b.memory[0] == (rung > 0 ? recorded : 0));
      raw.ring();
      REQUIRE(pair.run_until([&] { return pair.is_complete(8); }));
      check_adds(pair, 8);
    }
  }
}

TEST_CASE("without the channel the queue works, and ends in time when its path does",
          "[req:3.14][F12]") {
  FailoverPair pair;
  pair.post.cut = true;
  RawPoster raw(pair.view());
  ring_adds(pair, raw, 3);
  REQUIRE(pair.run_until([&] { return pair.is_complete(3); }));
  pair.run_for(seconds(1));
  stop_nic(*pair.b.nics[0]);
  ring_adds(pair, raw, 3);
  SECTION("it never comes back") {
    // Bound: the timeout of a path, and the limit of the agreement.
    REQUIRE(pair.run_until([&] { return pair.has_failed(pair.view()); }, milliseconds(13'100)));
    const std::string text = pair.there->failure()->to_string();
    INFO(text);
    CHECK(text.find("has not answered within") != std::string::npos);
    CHECK(text.find("rank 7") != std::string::npos);
  }
  SECTION("it comes back in time, and loses much") {
    pair.run_for(seconds(9));
    pair.post.cut = false;
    pair.post.loss = 0.7;
    REQUIRE(pair.run_until([&] { return pair.is_complete(6); }));
    CHECK(pair.b.memory[0] == 6);
  }
}

TEST_CASE("a peer that claims to have accepted less than it has answered ends the queue",
          "[req:3.14][req:3.23]") {
  FailoverPair pair;
  RawPoster raw(pair.view());
  ring_adds(pair, raw, 4);
  REQUIRE(pair.run_until([&] { return pair.is_complete(4); }));
  pair.post.forge = [](int to, Bytes& message) {
    PathStatement statement = decode_statement(message).value();
    if (to == 0) statement.delivered = std::min<std::uint64_t>(statement.delivered, 3);
    message = encode_statement(statement);
  };
  stop_nic(*pair.a.nics[0]);
  ring_adds(pair, raw, 1);
  REQUIRE(pair.run_until([&] { return pair.there->failure().has_value(); }));
  const std::string text = pair.there->failure()->to_string();
  INFO(text);
  CHECK(text.find("it has accepted 3 requests and answered 4") != std::string::npos);
  CHECK(text.find("rank 7") != std::string::npos);
  REQUIRE(pair.run_until([&] { return pair.back->failure().has_value(); }));
}
