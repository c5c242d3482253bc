// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include <catch2/catch.hpp>
#include <fmt/format.h>
#include <unistd.h>

#include "comm/support/held.hpp"
#include "comm/support/network_players.hpp"
#include "net/fabric/wire_fabric.hpp"
#include "support/fabric_provider_name.hpp"
#include "support/failing_memory.hpp"
#include "support/fair_timer.hpp"
#include "support/sanitized.hpp"

/// Memory runs out in the threads of one rank's NIC, or in waits of its that drive the NIC, at each
/// allocation in turn, while collectives, puts and gets are under way: for a moment, which is
/// waited out, or for good, which all ranks learn of long before ORIEL_TIMEOUT.
namespace oriel::test {
namespace {

using namespace std::chrono_literals;

constexpr std::chrono::minutes kPatience{10};
constexpr std::chrono::milliseconds kPromptly{kSanitized ? 10'000 : 3000};
constexpr long kForGood = std::numeric_limits<long>::max();
constexpr int kRounds = 6;
constexpr std::size_t kPutBytes[] = {8, 3000, 100'000};  // the last is fetched, or in two parts
constexpr std::size_t kRegion = 100'000;
constexpr std::size_t kCounts[] = {300, 60'000};  // of elements that are summed

struct Case {
  int failing;     // rank
  Whose whose;     // allocations
  long burst;      // that fail
  bool is_fabric;  // or by rings
  bool has_backup = false;
};

/// One of two ranks of two nodes.
class Rank2 {
 public:
  Rank2(Players& players, const ncclUniqueId& id)
      : me_(players.first()),
        comm_(join(id, me_, players.size())),
        memory_(must(comm_.allocate(3 * kRegion + 3 * 8))),
        window_(must(comm_.register_window(memory_))),
        kernels_(must(comm_.device_comm(kWorld))),
        sums_(kCounts[1]) {}
  Communicator& comm() { return comm_; }

  /// Whether all went well; what has arrived is right in any case. Allocates nothing itself.
  bool play(bool also_collectives, bool naps) {
    for (std::uint64_t round = 1; round <= kRounds; ++round) {
      if (naps) std::this_thread::sleep_for(2ms);  // so that the NIC's own thread has the work
      if (!put_and_get(round)) return false;
      for (const std::size_t count : kCounts) {
        if (also_collectives && !sum(count, round)) return false;
      }
    }
    return true;
  }

 private:
  static Communicator join(const ncclUniqueId& bytes, int rank, int size) {
    UniqueId id;
    std::memcpy(id.bytes.data(), bytes.internal, id.bytes.size());
    return must(Communicator::init(id, rank, size));
  }
  static bool is_done(device::WorldOutcome outcome) {
    return outcome == device::WorldOutcome::done;
  }
  std::uint8_t* at(std::size_t offset) const {
    return static_cast<std::uint8_t*>(memory_.data()) + offset;
  }
  static bool has_pattern(const std::uint8_t* at, int rank, std::uint64_t salt, std::size_t bytes) {
    for (std::size_t i = 0; i < bytes; ++i) {
      if (at[i] != pattern(rank, salt, i)) return false;
    }
    return true;
  }
  /// To where the peer looks, from there back, and both are at rest.
  bool put_and_get(std::uint64_t round) {
    const device::Thread self;
    const auto view = kernels_.view();
    const auto window = window_.view();
    const int peer = 1 - me_;
    const std::size_t bytes = kPutBytes[round % std::size(kPutBytes)];
    for (std::size_t i = 0; i < bytes; ++i) *at(i) = pattern(me_, round, i);
    const auto put =
        device::world_put_signal(self, view, peer, window, kRegion, window, 0, bytes, 0, 1);
    if (!is_done(put.outcome)) return false;
    if (!is_done(device::wait_signal(self, view, 0, round, peer))) return false;
    if (!has_pattern(at(kRegion), peer, round, bytes)) require(false, "what a put has brought");
    const auto get = device::world_get(self, view, peer, window, 0, window, 2 * kRegion, bytes);
    if (!is_done(device::world_wait(self, view, get))) return false;
    if (!has_pattern(at(2 * kRegion), peer, round, bytes)) require(false, "what a get has brought");
    device::WorldBarrier<device::Thread> barrier({}, kernels_.view(), 0);
    return is_done(barrier.sync());
  }
  bool sum(std::size_t count, std::uint64_t round) {
    const auto own = static_cast<float>(round + static_cast<std::uint64_t>(me_));
    std::fill_n(sums_.begin(), count, own);
    const Status done =
        comm_.all_reduce({.input = sums_.data(), .output = sums_.data(), .count = count});
    if (!done.ok()) return false;
    const auto right = [round](float value) { return value == static_cast<float>(2 * round + 1); };
    const auto end = sums_.begin() + static_cast<std::ptrdiff_t>(count);
    require(std::all_of(sums_.begin(), end, right), "the sum");
    return true;
  }

  int me_;
  Communicator comm_;
  oriel::Buffer memory_;
  Window window_;
  DeviceComm kernels_;
  std::vector<float> sums_;
};

class Walk {
 public:
  Walk(Players& players, const Case& of) : players_(players), of_(of) {}

  void run() {
    static_cast<void>(step(-1));
    players_.barrier();
    const Held before = settled();
    players_.barrier();
    const char* const given = std::getenv("ORIEL_TEST_STRIDE");
    const long stride = given != nullptr ? std::max(std::atol(given), 1L) : 0;
    // Steps that grow: what each message needs comes first, and again and again.
    const long growth = of_.is_fabric ? 3 : 1;
    for (long k = stride != 0 ? 0 : ::getppid() % 3; step(k);) {
      k += stride != 0 ? stride : 3 + growth * k;
      require(k < 100'000, "allocations without end");
    }
    players_.barrier();
    if (!of_.is_fabric) require_held(before, "after all of them");
    require(hits_ >= 3, fmt::format("memory has run out {} times", hits_));
    require(of_.burst != kForGood || failures_ >= 2, fmt::format("{} failures", failures_));
  }

 private:
  /// Whether there were as many allocations.
  bool step(long k) {
    const std::string where = fmt::format("allocation {} of rank {}", k, of_.failing);
    const bool fails = players_.first() == of_.failing;
    const ncclUniqueId id = players_.next_id();
    mark_new_threads();
    Rank2 rank(players_, id);
    players_.barrier();
    timer_.restart();
    const bool in_waits = of_.whose == Whose::callers;
    bool done = false;
    {
      std::optional<FailingMemory> failing;
      if (fails && k >= 0) failing.emplace(k, of_.whose, of_.burst);
      done = rank.play(!in_waits, fails && !in_waits);
      if (failing.has_value()) players_.word(kHit) = FailingMemory::hit() ? 1 : 0;
      // Until the others know, for those that have no memory for good.
      while (failing.has_value() && !in_waits && !done && !rank.comm().async_error()) {
        std::this_thread::sleep_for(1ms);
      }
    }
    players_.word(kDone + static_cast<std::size_t>(players_.first())) = done ? 1 : 0;
    players_.barrier();
    const bool hit = k >= 0 && players_.word(kHit) != 0;
    if (players_.word(kDone) == 0 || players_.word(kDone + 1) == 0) {
      // How the ends of a path agree on another one is no step that can be made again.
      require(hit && (of_.burst == kForGood || of_.has_backup), where + ": " + text_of(rank));
      expect_reason(rank, where);
      ++failures_;
    } else if (!hit || of_.burst != kForGood) {
      require(!rank.comm().async_error().has_value(), where + ": " + text_of(rank));
    }
    players_.barrier();
    if (hit) ++hits_;
    return hit;
  }
  static std::string text_of(const Rank2& rank) {
    const auto error = const_cast<Rank2&>(rank).comm().async_error();
    return error ? error->to_string() : "no error";
  }
  void expect_reason(Rank2& rank, const std::string& where) {
    const auto error = error_of(rank.comm());
    const auto took = timer_.spent();
    require(error.has_value(), where + ": no error");
    const std::string text = error->to_string();
    require(error->origin_rank() == of_.failing, where + ": " + text);
    require(text.find("memory") != std::string::npos, where + ": " + text);
    require(took < kPromptly, fmt::format("{}: {} ms: {}", where, took.count(), text));
  }

  static constexpr std::size_t kHit = 0, kDone = 1;  // words
  Players& players_;
  Case of_;
  FairTimer timer_;
  long hits_ = 0;
  long failures_ = 0;
};

void check_walk(const Case& of) {
  const Environment common({{"ORIEL_TIMEOUT", "30s"},
                            {"ORIEL_WIRE", of.is_fabric ? "fabric" : ""},
                            {"ORIEL_FABRIC_PROVIDER", of.is_fabric ? fabric_provider() : ""},
                            {"ORIEL_SOCKET_IFNAME", "lo"},
                            {"ORIEL_PATHS", of.has_backup ? "lo,lo" : ""}});
  const Nodes nodes{{1, 1}};
  CAPTURE(of.failing, static_cast<int>(of.whose), of.burst, of.is_fabric, of.has_backup);
  check_all_ok(play(
      Cast::processes, 2,
      [&](Players& players) {
        const Environment environment(on_node(nodes, players.first()));
        // The monitor's thread, which tells of what the NIC's cannot, is not among those that fail.
        ncclComm_t alone = init_alone();
        Walk(players, of).run();
        require(ncclCommDestroy(alone), "ncclCommDestroy");
      },
      kPatience));
}

bool has_fabric() {
  const auto wire =
      net::WireFabric::create({.provider = fabric_provider(), .socket = {.ifname = "lo"}});
  if (!wire.ok()) WARN("no fabric: " << wire.error().to_string());
  return wire.ok();
}

TEST_CASE("memory that runs out in a NIC ends no process, by rings", "[req:1.38][req:3.15]") {
  const Whose whose = GENERATE(Whose::marked_threads, Whose::callers);
  check_walk({0, whose, 1, false});
  check_walk({1, whose, kForGood, false});
}

TEST_CASE("memory that runs out in a NIC ends no process, by libfabric", "[req:1.38][req:3.13]") {
  if (!has_fabric()) return;
  const Whose whose = GENERATE(Whose::marked_threads, Whose::callers);
  check_walk({0, whose, 1, true});
  check_walk({1, whose, kForGood, true});
}

TEST_CASE("memory that runs out beside backup paths ends no process", "[req:1.38][req:3.14]") {
  if (!has_fabric()) return;
  const long burst = GENERATE(1L, kForGood);
  check_walk({0, Whose::marked_threads, burst, true, true});
}

}  // namespace
}  // namespace oriel::test
