// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <array>
#include <chrono>
#include <csignal>
#include <cstring>
#include <thread>

#include <catch2/catch.hpp>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/try.hpp"
#include "boot/session/forked_ranks.hpp"
#include "net/fabric/fabric_pair.hpp"

// NICs of two processes over libfabric (3.13), one of which is killed.
using namespace oriel;
using namespace oriel::net;
using namespace oriel::net::test;
using device::Thread;
using dq::QueueOutcome;
using std::chrono::milliseconds;
using std::chrono::seconds;

namespace {

/// Channel between the two ranks, in place of the bootstrap.
struct Meeting {
  Meeting() { REQUIRE(::socketpair(AF_UNIX, SOCK_STREAM, 0, ends.data()) == 0); }
  ~Meeting() {
    for (const int end : ends) ::close(end);
  }
  // Sends `bytes` bytes and receives as many.
  Status trade(int rank, const void* give, void* take, std::size_t bytes) const {
    const int fd = ends[static_cast<std::size_t>(rank)];
    const bool done = ::send(fd, give, bytes, MSG_NOSIGNAL) == static_cast<ssize_t>(bytes) &&
                      ::recv(fd, take, bytes, MSG_WAITALL) == static_cast<ssize_t>(bytes);
    if (done) return {};
    return Error(ErrorCode::remote, "the other rank has gone");
  }
  std::array<int, 2> ends{-1, -1};
};

Error failure(const std::string& what) {
  return Error(ErrorCode::internal, what);
}

/// One rank: NIC, wire, and a queue to the other rank.
struct FabricRank {
  LocalWires exchange;
  Side side{exchange, SteadyClock::instance(), 100'000};
  WireFabric* wire = nullptr;
  WireAddress peer;
  std::optional<SendQueue> queue;
  dq::Region theirs;
  device::WaitControl control;

  Status meet(const Meeting& meeting, int rank, const SendQueue::Options& options) {
    ORIEL_TRY(auto made, WireFabric::create(fabric_options()));
    struct ConnectionData {
      std::uint64_t bytes;
      std::array<std::byte, 512> address;
      std::uint32_t queue;
      dq::Region region;
    };
    queue.emplace(side.make_queue(options));
    const Bytes address = made->local_address();
    ConnectionData mine{address.size(), {}, queue->number(), side.region};
    ConnectionData other{};
    std::copy(address.begin(), address.end(), mine.address.begin());
    ORIEL_CHECK(meeting.trade(rank, &mine, &other, sizeof mine));
    ORIEL_TRY(peer, made->add_peer(ByteView(other.address).first(other.bytes),
                                   "rank " + std::to_string(1 - rank)));
    wire = made.get();
    const std::uint32_t number = side.nic.add_wire(std::move(made));
    ORIEL_CHECK(queue->connect({number, peer, other.queue}));
    theirs = other.region;
    control.timeout_ns = 20'000'000'000;
    // Waits until both ranks have added each other, before either sends.
    return meeting.trade(rank, &mine, &other, 1);
  }
  QueueOutcome wait(dq::Posted posted) {
    if (posted.outcome != QueueOutcome::done) return posted.outcome;
    return dq::wait_complete<DrivingMemory>(queue->view(), posted.end, control);
  }
};

}  // namespace

TEST_CASE("a peer that is killed is named, and what is meant for it ends with an error",
          "[req:3.13]") {
  const Meeting meeting, killed;
  ForkedRanks ranks(2, [&](int number) -> Status {
    FabricRank rank;
    ORIEL_CHECK(rank.meet(meeting, number, {}));
    const std::array<NicSoft*, 1> nics = {&rank.side.nic};
    const DrivingScope scope(nics);
    if (number == 1) {  // serves until it is killed
      for (;;) DrivingScope::drive();
    }
    const auto put = [&](SendQueue& queue) {
      return dq::put<Thread, DrivingMemory>(
          Thread(), queue.view(), {rank.side.region, 0, rank.theirs, 0, 400'000}, rank.control);
    };
    if (rank.wait(put(*rank.queue)) != QueueOutcome::done) return failure("the first write");
    // These writes are in flight when the peer dies.
    for (int i = 0; i < 5; ++i) {
      if (put(*rank.queue).outcome != QueueOutcome::done) return failure("another write");
    }
    DrivingScope::drive();
    char byte = 0;
    ORIEL_CHECK(killed.trade(0, &byte, &byte, 1));
    SendQueue::Options options;
    options.answer_timeout = milliseconds(20);
    options.retransmissions_most = 3;
    SendQueue queue = rank.side.make_queue(options);
    ORIEL_CHECK(queue.connect({1, rank.peer, 1}));
    const auto posted = put(queue);
    if (dq::wait_complete<DrivingMemory>(queue.view(), posted.end, rank.control) !=
        QueueOutcome::failed) {
      return failure("another outcome than an error");
    }
    const dq::QueueError error = dq::decode_error(*queue.memory().first_error);
    if (error.syndrome != static_cast<std::uint8_t>(Syndrome::transport_retry)) {
      return failure("another syndrome");
    }
    // The wire has noticed the peer's end, or does when more is sent.
    const bool reported = soon([&] {
      WireMessage message = numbered(1, 8);
      rank.wire->send(rank.peer, message);
      DrivingScope::drive();
      return !rank.wire->peer_status(rank.peer).ok();
    });
    if (!reported) return failure("no error of the peer");
    const std::string text = rank.wire->peer_status(rank.peer).error().to_string();
    if (text.find("sending to rank 1") == std::string::npos) return failure(text);
    return {};
  });
  const timeval timeout{.tv_sec = 30, .tv_usec = 0};
  REQUIRE(::setsockopt(killed.ends[1], SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof timeout) == 0);
  char byte = 0;
  CHECK(::recv(killed.ends[1], &byte, 1, MSG_WAITALL) == 1);
  ranks.kill(1, SIGKILL);
  siginfo_t ended{};
  REQUIRE(::waitid(P_PID, static_cast<id_t>(ranks.pid(1)), &ended, WEXITED | WNOWAIT) == 0);
  CHECK(::send(killed.ends[1], &byte, 1, MSG_NOSIGNAL) == 1);
  CHECK(ranks.collect(seconds(60))[0] == "ok");
}
