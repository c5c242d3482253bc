// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "net/fabric/fabric_sleeper.hpp"

#include <atomic>
#include <chrono>

#include <catch2/catch.hpp>

#include "base/system_table.hpp"
#include "net/fabric/fabric_pair.hpp"
#include "net/soft/nic_thread.hpp"

// Thread that drives a NIC with a fabric wire when no other thread does (3.13). It sleeps until
// messages wake it.
using namespace oriel;
using namespace oriel::net;
using namespace oriel::net::test;
using device::Thread;
using dq::QueueOutcome;
using std::chrono::seconds;

namespace {

/// Counts of this process's polls: started, woken by an event, timed out.
std::atomic<long> started{0}, woken{0}, in_vain{0};

int watched_poll(pollfd* fds, nfds_t count, int timeout_ms) {
  ++started;
  const int ready = real_system_table().poll(fds, count, timeout_ms);
  if (ready > 0 && fds[0].revents != 0) ++woken;
  if (ready == 0) ++in_vain;
  return ready;
}

/// Only a thread drives the peer's NIC; only the waits of the test drive this side's.
struct Sleeping {
  explicit Sleeping(const WireFabric::Options& options = fabric_options()) : pair({}, options) {
    pair.all = {&pair.a.nic, &pair.a.nic};
    auto made = FabricSleeper::create(*pair.wire_b);
    REQUIRE(made.ok());
    sleeper.emplace(std::move(made).value());
    NicThread::Options driver;
    driver.progress = [this] { return pair.b.nic.progress(); };
    driver.sleep = [this] {
      ++sleeps;
      sleeper->sleep(others_drive);
    };
    driver.wake = [this] { sleeper->wake(); };
    auto running = NicThread::start(std::move(driver));
    REQUIRE(running.ok());
    thread.emplace(std::move(running).value());
  }
  void put() { REQUIRE(pair.wait(pair.put(0, 0, 4096)) == QueueOutcome::done); }
  FabricPair pair;
  std::optional<FabricSleeper> sleeper;
  std::atomic<bool> others_drive{false};
  std::atomic<long> sleeps{0};
  std::optional<NicThread> thread;
};

}  // namespace

TEST_CASE("a thread asleep on a fabric wire is woken by a message, and otherwise rarely",
          "[req:3.13]") {
  SystemTable table = real_system_table();
  table.poll = watched_poll;
  const ScopedSystemTable scoped(table);
  Sleeping at;
  at.put();  // connects the two ends
  if (at.pair.wire_b->wait_descriptor() < 0) return;
  constexpr int kPuts = 10;
  const long before = woken;
  for (int i = 0; i < kPuts; ++i) {
    const long seen = started;
    REQUIRE(soon([&] { return started > seen; }));
    at.put();
  }
  // A sleep that times out at this very moment finds the message without a wake-up.
  CHECK(woken - before >= kPuts / 2);
  // The thread stays asleep while nothing happens.
  const long vain = in_vain;
  REQUIRE(soon([&] { return in_vain > vain; }));
  const long slept = at.sleeps;
  REQUIRE(soon([&] { return in_vain >= vain + 3; }));
  CHECK(at.sleeps - slept < 50);
  at.put();
  // Stopping the thread does not wait for its sleep to time out.
  const long polls = started;
  REQUIRE(soon([&] { return started > polls; }));
  const auto asked = std::chrono::steady_clock::now();
  at.thread.reset();
  CHECK(std::chrono::steady_clock::now() - asked < seconds(10));
}

TEST_CASE("without such a descriptor, and beside others, the thread naps", "[req:3.13]") {
  SystemTable table = real_system_table();
  table.poll = watched_poll;
  const ScopedSystemTable scoped(table);
  FabricTable library = fabric_library().table;
  library.fi_cq_open = [](fid_domain* domain, fi_cq_attr* attributes, fid_cq** made,
                          void* context) -> int {
    // Behaves like a provider that can only be polled.
    if (attributes->wait_obj != FI_WAIT_NONE) return -FI_ENOSYS;
    return fabric_library().table.fi_cq_open(domain, attributes, made, context);
  };
  long polls = started;
  {
    Sleeping at(fabric_options(&library));
    CHECK(at.pair.wire_b->wait_descriptor() == -1);
    CHECK_FALSE(at.pair.wire_b->may_sleep());
    for (int i = 0; i < 5; ++i) at.put();
    const long seen = at.sleeps;
    REQUIRE(soon([&] { return at.sleeps > seen + 10; }));
    at.put();
    CHECK(started == polls);
    at.thread.reset();
  }
  Sleeping at;
  at.others_drive = true;
  const long seen = at.sleeps;
  REQUIRE(soon([&] { return at.sleeps > seen + 2; }));
  polls = started;
  REQUIRE(soon([&] { return at.sleeps > seen + 20; }));
  CHECK(started == polls);
  at.put();
}
