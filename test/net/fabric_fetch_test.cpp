// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <random>
#include <thread>

#include <catch2/catch.hpp>

#include "net/fabric_faults.hpp"
#include "net/fabric_pair.hpp"
#include "net/syndrome.hpp"

// Long writes between hosts: the NIC that is written to fetches their bytes (3.13, 3.20).
using namespace oriel;
using namespace oriel::net;
using namespace oriel::net::test;
using device::Thread;
using dq::QueueOutcome;

namespace {

const NeedsFabric needs_fabric;

constexpr std::size_t kWords = std::size_t{3} << 16;  // 1.5 MiB
constexpr std::size_t kBytes = kWords * 8;
constexpr std::size_t kLong = 16 * 1024;  // from here on they are fetched

std::byte* bytes_of(Side& side) {
  return reinterpret_cast<std::byte*>(side.memory.data());
}

void fill(Side& side, std::uint64_t seed) {
  for (auto& word : side.memory) word = seed += 0x9e3779b97f4a7c15;
}

struct FetchPair : FabricPair {
  explicit FetchPair(const WireFabric::Options& options = fabric_options())
      : FabricPair({}, options, kWords) {
    fill(a, 1);
    fill(b, 2);
  }
  dq::Posted put(std::uint64_t from, std::uint64_t to, std::uint64_t bytes) {
    return dq::put<Thread, DrivingMemory>(Thread(), view(), transfer(from, to, bytes), control);
  }
  bool arrived(std::size_t from, std::size_t to, std::size_t bytes) {
    return std::memcmp(bytes_of(a) + from, bytes_of(b) + to, bytes) == 0;
  }
  std::uint64_t fetches() const { return b.nic.counters().fetches; }
  std::uint64_t fetched_bytes() const { return b.nic.counters().fetched_bytes; }
};

/// A put of all memory arrives, in messages.
void check_without_fetching(FetchPair& pair) {
  REQUIRE(pair.wait(pair.put(0, 0, kBytes)) == QueueOutcome::done);
  CHECK(pair.arrived(0, 0, kBytes));
  CHECK(pair.fetches() == 0);
}

}  // namespace

TEST_CASE("3.13 long puts arrive byte for byte, fetched, and what is behind them comes later") {
  FetchPair pair;
  const unsigned seed = std::random_device()();
  INFO("seed " << seed);
  std::mt19937_64 random(seed);
  std::uint64_t expected = 0;
  for (int i = 0; i < 24; ++i) {
    const bool is_long = random() % 4 != 0;
    const std::size_t bytes = is_long ? kLong + random() % 500'000 : 1 + random() % (kLong - 1);
    const std::size_t from = random() % (kBytes - bytes), to = random() % (kBytes - 8 - bytes);
    if (is_long) expected += bytes;
    const std::uint64_t before = pair.b.memory.back();
    const auto posted = dq::put_signal<dq::SignalOp::add, Thread, DrivingMemory>(
        Thread(), pair.view(), pair.transfer(from, to, bytes), pair.b.region, kBytes - 8, 1,
        pair.control);
    REQUIRE(posted.outcome == QueueOutcome::done);
    // Whoever sees the signal sees the bytes.
    REQUIRE(soon([&] {
      pair.a.nic.progress();
      pair.b.nic.progress();
      return pair.b.memory.back() != before;
    }));
    REQUIRE(pair.arrived(from, to, bytes));
    REQUIRE(pair.wait(posted) == QueueOutcome::done);
  }
  CHECK(pair.fetched_bytes() == expected);
}

TEST_CASE("3.13 of puts to one place the last one stays, whether they are fetched or not") {
  FetchPair pair;
  constexpr std::size_t kMost = 700'000;
  for (int round = 0; round < 5; ++round) {
    fill(pair.b, 3);
    dq::Posted last{};
    for (const std::size_t bytes : {kMost, std::size_t{100}, kLong, 2 * kLong}) {
      last = pair.put(bytes, 64, bytes);
      REQUIRE(last.outcome == QueueOutcome::done);
    }
    REQUIRE(pair.wait(last) == QueueOutcome::done);
    CHECK(pair.arrived(2 * kLong, 64, 2 * kLong));
    CHECK(pair.arrived(kMost + 2 * kLong, 64 + 2 * kLong, kMost - 2 * kLong));
  }
}

TEST_CASE("3.13 nothing is fetched where that cannot be, or is not wanted") {
  SECTION("one end wants payloads proven") {
    auto proving = fabric_options();
    proving.prove_payloads = true;
    FetchPair pair(proving);
    check_without_fetching(pair);
  }
  SECTION("the provider cannot read") {
    FabricPlan plan;
    FabricTable table = planned_fabric();
    table.fi_dupinfo = [](const fi_info* info) {
      fi_info* const made = detail::copy_info(info);
      if (made != nullptr && info != nullptr) made->caps &= ~FI_RMA;
      return made;
    };
    FetchPair pair(fabric_options(&table));
    check_without_fetching(pair);
  }
  SECTION("the memory cannot be registered") {
    FabricPlan plan;
    plan.fail = [](const char* call) -> long {
      return std::string_view(call) == "fi_mr_reg" ? -FI_ENOMEM : 0;
    };
    FetchPair pair(fabric_options(&planned_fabric()));
    check_without_fetching(pair);
  }
  SECTION("the target's provider cannot, and it says so") {
    FabricPlan plan;
    FabricTable table = planned_fabric();
    static int taken;
    taken = 0;
    table.fi_dupinfo = [](const fi_info* info) {
      fi_info* const made = detail::copy_info(info);
      if (made != nullptr && info != nullptr && ++taken == 2) made->caps &= ~FI_RMA;
      return made;
    };
    FetchPair pair(fabric_options(&table));
    check_without_fetching(pair);
    CHECK(pair.a.nic.counters().unmapped == 1);
    // It is not asked again.
    check_without_fetching(pair);
    CHECK(pair.a.nic.counters().unmapped == 1);
  }
}

TEST_CASE("3.13 a library without room, or with registered memory, fetches all the same") {
  FabricPlan plan;
  FabricTable table = planned_fabric();
  std::mt19937 random(7);
  plan.fail = [&](const char* call) -> long {
    return std::string_view(call) == "fi_read" && random() % 4 != 0 ? -FI_EAGAIN : 0;
  };
  table.fi_dupinfo = [](const fi_info* info) {
    fi_info* const made = detail::copy_info(info);
    if (made != nullptr && info != nullptr) made->domain_attr->mr_mode |= FI_MR_LOCAL;
    return made;
  };
  {
    FetchPair pair(fabric_options(&table));
    REQUIRE(pair.wait(pair.put(0, 0, kBytes)) == QueueOutcome::done);
    CHECK(pair.arrived(0, 0, kBytes));
    CHECK(pair.fetched_bytes() == kBytes);
  }
  CHECK(plan.open.empty());
}

TEST_CASE("3.13 a fetch that fails is tried again, and in the end it is the entry that fails") {
  FabricPlan plan;
  int failures = 3;
  plan.fail = [&](const char* call) -> long {
    return std::string_view(call) == "fi_read" && failures != 0 && failures-- > 0 ? -FI_EIO : 0;
  };
  FabricTable table = planned_fabric();
  FetchPair pair(fabric_options(&table));
  REQUIRE(pair.wait(pair.put(0, 0, 2 * kLong)) == QueueOutcome::done);
  CHECK(pair.arrived(0, 0, 2 * kLong));
  CHECK(pair.fetches() == 4);
  const std::byte behind = bytes_of(pair.b)[kBytes - 1];
  // As a peer that names what is not there: its wire refuses to be read.
  plan.fail = [](const char*) { return 0; };
  static std::uint64_t asked;
  asked = 0;
  table.fi_read = [](fid_ep* endpoint, void* to, std::size_t bytes, void* descriptor,
                     fi_addr_t from, std::uint64_t address, std::uint64_t key, void* context) {
    ++asked;
    return FabricPlan::real().fi_read(endpoint, to, bytes, descriptor, from, address, key ^ 1,
                                      context);
  };
  CHECK(pair.wait(pair.put(0, kBytes - kLong, kLong)) == QueueOutcome::failed);
  CHECK(dq::decode_error(*pair.there.memory().first_error).syndrome ==
        static_cast<std::uint8_t>(Syndrome::remote_operation));
  CHECK(asked > 1);
  CHECK(bytes_of(pair.b)[kBytes - 1] == behind);
  CHECK(pair.wire_b->peer_status(pair.wire_a->address())
            .error()
            .to_string()
            .find("fetching from rank 0") != std::string::npos);
}

TEST_CASE("3.13 memory that is given back has been fetched before, and into") {
  for (const bool gives_source : {true, false}) {
    FetchPair pair;
    std::atomic<bool> over = false;
    Side& one = gives_source ? pair.a : pair.b;
    Side& other = gives_source ? pair.b : pair.a;
    REQUIRE(pair.put(0, 0, kBytes).outcome == QueueOutcome::done);
    // Until it has begun.
    REQUIRE(soon([&] {
      pair.a.nic.progress();
      pair.b.nic.progress();
      return pair.fetches() != 0;
    }));
    std::thread drives([&] {
      while (!over) other.nic.progress();
    });
    CHECK(one.nic.deregister_memory(one.key).ok());
    over = true;
    drives.join();
    CHECK(pair.wire_a->status().ok());
    CHECK(pair.wire_b->status().ok());
    // What had begun is there.
    CHECK(pair.arrived(0, 0, std::size_t{1} << 20));
  }
}

TEST_CASE("3.13 a wire is cut rather than memory kept that was given back") {
  FetchPair pair;
  REQUIRE(pair.put(0, 0, kBytes).outcome == QueueOutcome::done);
  REQUIRE(soon([&] {
    pair.a.nic.progress();
    pair.b.nic.progress();
    return pair.fetches() != 0;
  }));
  pair.b.nic.stop();  // so that nobody makes any progress
  CHECK(pair.b.nic.deregister_memory(pair.b.key).ok());
  const Status status = pair.wire_b->status();
  REQUIRE_FALSE(status.ok());
  CHECK(status.error().to_string().find("cut") != std::string::npos);
  CHECK_FALSE(pair.wire_b->is_fetching(bytes_of(pair.b), kBytes));
  CHECK(pair.wire_b->wait_descriptor() == -1);
  CHECK(pair.wire_b->flush(Deadline::after(std::chrono::seconds(1))).ok());
  fill(pair.b, 9);
  const auto kept = pair.b.memory;
  pair.b.nic.resume();
  for (int i = 0; i < 200; ++i) {
    pair.a.nic.progress();
    pair.b.nic.progress();
  }
  CHECK(pair.b.memory == kept);
}
