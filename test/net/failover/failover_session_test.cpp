// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <chrono>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include <catch2/catch.hpp>

#include "base/try.hpp"
#include "boot/session/served_id.hpp"
#include "boot/session/session.hpp"
#include "net/failover/failover_pair.hpp"

// The ends of a queue agree over the links of the bootstrap (3.14), which know no NIC: ranks 0 and
// 3 of 8 have no link to each other, so ranks between them pass on what they say.
using namespace oriel;
using namespace oriel::net;
using namespace oriel::net::test;
using namespace std::chrono_literals;

namespace {

constexpr int kRanks = 8, kOne = 0, kOther = 3;

struct World {
  std::vector<std::unique_ptr<LocalExchange>> exchanges = FailoverPair::make_exchanges(2);
  FailoverRank a{exchanges, SteadyClock::instance(), 1024};
  FailoverRank b{exchanges, SteadyClock::instance(), 1024};
  std::vector<FailoverQueue::End> ends[2];
  std::atomic<int> made = 0, connected = 0;
  std::atomic<bool> over = false;
};

std::unique_ptr<FailoverQueue> make(FailoverRank& rank, FailoverChannel& channel, int peer) {
  FailoverQueue::Options options;
  options.queue.peer = peer;
  options.health.suspect_after = 100s;  // errors only: this machine may be busy
  options.health.fail_after = 200s;
  options.health.retry_first = 1ms;
  options.health.probe_every = 1ms;
  options.agreement.give_up_after = 100s;
  options.channel = &channel;
  for (std::size_t i = 0; i < 2; ++i) {
    options.paths.push_back({rank.nics[i].get(), 0, "nic" + std::to_string(i)});
  }
  return FailoverQueue::create(std::move(options)).value();
}

/// What one of the two ends does in its thread; `turn` pumps the links.
template <class Turn>
Status use_queue(World& shared, boot::Session& session, int self, const Turn& turn) {
  const bool first = self == kOne;
  FailoverRank &mine = first ? shared.a : shared.b, &theirs = first ? shared.b : shared.a;
  SessionFailoverChannel link(session, first ? kOther : kOne);
  WatchedChannel channel(link);
  const auto queue = make(mine, channel, first ? kOther : kOne);
  queue->aliases(1).add_local(mine.keys[0], mine.keys[1]);
  queue->aliases(1).add_remote(theirs.keys[0], theirs.keys[1]);
  shared.ends[first ? 0 : 1] = queue->ends();
  for (++shared.made; shared.made < 2;) ORIEL_CHECK(turn());
  ORIEL_CHECK(queue->connect(shared.ends[first ? 1 : 0]));
  for (++shared.connected; shared.connected < 2;) ORIEL_CHECK(turn());
  const auto drive = [&] {
    for (const auto& nic : mine.nics) nic->progress();
    queue->progress();
    return turn();
  };
  if (!first) {
    while (!shared.over) ORIEL_CHECK(drive());
    return {};
  }
  RawPoster raw(queue->view());
  for (int flap = 0; flap < 4; ++flap) {
    const auto before = channel.epoch();
    NicFaults faults;
    faults.fails = {{{}, Syndrome::transport_retry, flap % 2 == 0}};
    set_faults(*mine.nics[static_cast<std::size_t>(queue->pace().path)], std::move(faults));
    for (std::uint64_t i = 0; i < 10; ++i) {
      raw.add(dq::fetch_add_entry(raw.place(), dq::kSignalled, theirs.region.remote(0), 1,
                                  {mine.region.address + 800, mine.keys[0], 8}));
    }
    raw.ring();
    while (channel.epoch() == before) ORIEL_CHECK(drive());
    for (const auto& nic : mine.nics) set_faults(*nic, {});
    while (FailoverPair::completed(queue->view()) < raw.next()) ORIEL_CHECK(drive());
    while (queue->pace().path != 0 || !channel.is_running()) {
      ORIEL_CHECK(drive());
    }
  }
  shared.over = true;
  return {};
}

Status live(const boot::UniqueId& id, int rank, World& shared) {
  ORIEL_TRY(EventLoop loop, EventLoop::create());
  const Deadline deadline = Deadline::after(60s);
  ORIEL_TRY(const auto session,
            loop.run(boot::Session::join(loop, id, rank, kRanks, {.socket = {.ifname = "lo"}},
                                         deadline)));
  const auto turn = [&]() -> Status {
    if (deadline.expired(SteadyClock::instance().now())) {
      return Error(ErrorCode::timeout, "the ends of the queue have not agreed");
    }
    static_cast<void>(session->peers().pump_idle());
    std::this_thread::sleep_for(50us);
    return {};
  };
  if (rank == kOne || rank == kOther) return use_queue(shared, *session, rank, turn);
  while (!shared.over) ORIEL_CHECK(turn());
  return {};
}

}  // namespace

TEST_CASE("both ends agree over the bootstrap's links, which no NIC carries", "[req:3.14][F12]") {
  const ServedId id;
  World shared;
  std::vector<std::string> verdicts(kRanks);
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < kRanks; ++rank) {
      threads.emplace_back([&, rank] {
        const Status status = live(id.value(), rank, shared);
        if (!status.ok()) shared.over = true;
        verdicts[static_cast<std::size_t>(rank)] = status.ok() ? "ok" : status.error().to_string();
      });
    }
  }
  for (const std::string& verdict : verdicts) CHECK(verdict == "ok");
  CHECK(shared.b.memory[0] == 40);
}
