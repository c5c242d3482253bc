// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <chrono>
#include <cstddef>
#include <future>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <catch2/catch.hpp>
#include <fmt/format.h>

#include "comm/support/direct_copies.hpp"
#include "comm/support/network_of.hpp"
#include "comm/support/network_ranks.hpp"
#include "net/support/nic_faults.hpp"
#include "support/fabric_provider_name.hpp"
#include "support/sanitized.hpp"

/// Effects on the remaining ranks when a rank of another node leaves (3.19).
namespace oriel::test {
namespace {

using namespace std::chrono_literals;

constexpr int kWaits = 0, kLeaves = 1, kSignals = 2;         // ranks
constexpr std::size_t kProbed = 0, kFailed = 1, kTried = 2;  // indices of SharedState::words

/// Sets kProbed when the leaving rank has been probed, and kFailed when the probe has failed.
void watch_probe(TestRanks& test_ranks, const NetworkInside& network) {
  const device::queue::QueueView& queue = network.view().queues[kLeaves];
  const std::atomic_ref reserved(queue.indexes->reserved);
  const std::uint64_t before = reserved.load();
  // A probe is a WQE of the queue with backup paths, and a request of the NIC without.
  while (reserved.load() == before && net::test::traffic(network.nic()).probes < 2) {
    std::this_thread::sleep_for(1ms);
  }
  test_ranks.word(kProbed) = 1;
  const std::atomic_ref error(*const_cast<std::uint64_t*>(queue.nic_error));
  while (error.load() == 0) std::this_thread::sleep_for(1ms);
  test_ranks.word(kFailed) = 1;
}

/// Kind of request to the departed rank.
enum class Asked : std::uint8_t { signal, collective };

/// Makes requests that must fail. From now on the queue refuses posts.
void ask_in_vain(Communicator& comm, const DeviceComm& kernels, Asked asked) {
  const device::Thread self;
  if (asked == Asked::signal) {
    static_cast<void>(device::world_signal(self, kernels.view(), kLeaves, 0));
    require_outcome(device::world_flush(self, kernels.view()), device::WorldOutcome::failed,
                    "the probe had no answer");
    const auto error = error_of(comm);
    test::require(error.has_value(), "an error that tells of the signal that has failed");
    test::require(error->origin_rank() == kLeaves, error->to_string());
  }
  std::vector<float> data(100, 1);
  const Status done =
      comm.all_reduce({.input = data.data(), .output = data.data(), .count = data.size()});
  must_fail(done, ErrorCode::remote, {"rank 1"});
  test::require(done.error().origin_rank() == kLeaves, done.error().to_string());
}

/// Rank 1 leaves while it is probed, without an answer.
std::unique_ptr<RankFixture> leave_unanswered(const Variables& settings, Asked asked) {
  const Environment common(settings);
  return std::make_unique<RankFixture>(LaunchMode::processes, 3, [=](TestRanks& test_ranks) {
    const Environment environment(on_node({{1, 1, 1}}, test_ranks.first()));
    {
      auto comm = join(test_ranks);
      auto kernels = must(comm.device_comm(kWorld));
      test_ranks.barrier();
      const device::Thread self;
      if (test_ranks.first() == kWaits) {
        {
          const std::jthread watcher([&] { watch_probe(test_ranks, network_of(comm)); });
          require(device::wait_signal(self, kernels.view(), 0, 1, kSignals), "the wait");
        }
        test::require(!comm.async_error().has_value(), "nothing was asked of the rank that left");
        ask_in_vain(comm, kernels, asked);
        test_ranks.word(kTried) = 1;
      } else if (test_ranks.first() == kLeaves) {
        const NetworkInside network = network_of(comm);
        net::test::stop_nic(network.nic());
        if (network.failover(kWaits) != nullptr) net::test::stop_nic(network.nic(1));
        test_ranks.await(kProbed);
      } else {
        test_ranks.await(kFailed);
        require(device::world_signal(self, kernels.view(), kWaits, 0).outcome, "the signal");
        test_ranks.await(kTried);
      }
    }
    test_ranks.barrier();
  });
}

/// One rank's part of one of several communicators, with a window.
struct Member {
  Member(TestRanks& test_ranks, std::size_t count)
      : comm(join(test_ranks)),
        memory(must(comm.allocate(count * sizeof(float)))),
        window(must(comm.register_window(memory))) {}
  Status sum(std::size_t count) {
    auto* const data = static_cast<float*>(memory.data());
    return comm.all_reduce({.input = data, .output = data, .count = count});
  }

  Communicator comm;
  oriel::Buffer memory;
  Window window;
};

/// All ranks make some calls. Then rank `leaver` destroys the communicator, and the other ranks
/// continue.
void call_until_one_leaves(std::unique_ptr<Member> self, int rank, int leaver, std::size_t count) {
  constexpr int kCalls = 20;
  for (int call = 0; call < kCalls; ++call) must(self->sum(count));
  if (rank == leaver) return;
  Status done;
  while (done.ok()) done = self->sum(count);
  const std::string text = done.error().to_string();
  test::require(done.error().origin_rank() == leaver,
                fmt::format("rank {} names another than rank {}: {}", rank, leaver, text));
  const auto is_said = [&](const char* what) {
    return text.find(fmt::format("rank {} has {} ", leaver, what)) != std::string::npos;
  };
  test::require(is_said("finalized or destroyed its") || is_said("left the"), text);
}

/// Each communicator loses one rank while the other ranks are in the next call, or about to start
/// it.
void lose_a_rank_each(const Variables& settings, const Nodes& nodes, std::size_t count) {
  const std::size_t communicators = kSanitized ? 3 : 9;
  const Environment common(settings);
  check_all_ok(run_ranks(LaunchMode::processes, nodes.ranks(), [&](TestRanks& test_ranks) {
    const Environment environment(on_node(nodes, test_ranks.first()));
    std::vector<std::unique_ptr<Member>> members;
    for (std::size_t i = 0; i < communicators; ++i) {
      members.push_back(std::make_unique<Member>(test_ranks, count));
    }
    test_ranks.barrier();
    std::vector<std::future<void>> calls;
    for (std::size_t i = 0; i < communicators; ++i) {
      const int leaver = static_cast<int>(i) % test_ranks.size();
      calls.push_back(std::async(std::launch::async, call_until_one_leaves, std::move(members[i]),
                                 test_ranks.first(), leaver, count));
    }
    for (auto& call : calls) call.wait();
    for (auto& call : calls) call.get();
  }));
}

/// Adds settings for libfabric over the loopback. Returns false if libfabric has no tcp provider.
bool with_fabric(Variables& settings) {
  const auto wire =
      net::WireFabric::create({.provider = fabric_provider(), .socket = {.ifname = "lo"}});
  if (!wire.ok()) {
    WARN("no fabric: " << wire.error().to_string());
    return false;
  }
  const Variables more = {{"ORIEL_FABRIC_PROVIDER", fabric_provider()},
                          {"ORIEL_SOCKET_IFNAME", "lo"},
                          {"ORIEL_WIRE", "fabric"}};
  settings.insert(settings.end(), more.begin(), more.end());
  return true;
}

}  // namespace

TEST_CASE("a rank that destroys its communicator is named by all that call on", "[req:3.19]") {
  SECTION("over rings") {
    lose_a_rank_each({}, {{1, 1, 1}}, 1000);
    const WithDirectCopies copies(false);
    lose_a_rank_each({}, {{2, 1}}, 1000);
  }
  SECTION("by libfabric") {
    Variables settings;
    if (with_fabric(settings)) lose_a_rank_each(settings, {{1, 1, 1}}, 75'000);
  }
  SECTION("by two paths") {
    Variables settings = {{"ORIEL_PATHS", "lo,lo"}};
    if (with_fabric(settings)) lose_a_rank_each(settings, {{1, 1, 1}}, 1000);
  }
}

// Runs in parallel, because each test waits for a peer timeout: a third of the collective timeout.
// With backups, the timeout of one path is slightly more than an eighth of it. Rank 2's NIC must
// get its turn within that time even on a busy machine.
TEST_CASE(
    "a collective or signal for a rank that has left names it, though its timeout was ignored",
    "[req:3.14][req:3.15][req:3.19]") {
  const Variables by_rings = {{"ORIEL_COLLECTIVE_TIMEOUT", "12s"}};
  std::vector<std::unique_ptr<RankFixture>> fixtures;
  fixtures.push_back(leave_unanswered(by_rings, Asked::collective));
  fixtures.push_back(leave_unanswered(by_rings, Asked::signal));
  Variables by_two_paths = {{"ORIEL_COLLECTIVE_TIMEOUT", "15s"}, {"ORIEL_PATHS", "lo,lo"}};
  if (with_fabric(by_two_paths)) fixtures.push_back(leave_unanswered(by_two_paths, Asked::signal));
  for (const auto& fixture : fixtures) check_all_ok(fixture->collect(60s));
}

}  // namespace oriel::test
