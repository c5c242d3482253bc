// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "boot/link/notes.hpp"

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include <catch2/catch.hpp>

#include "base/try.hpp"
#include "boot/session/served_id.hpp"
#include "boot/session/session.hpp"

// Notes between any two ranks, over the links that there are (3.14: how the ends of a queue agree).
using namespace oriel;
using namespace oriel::boot;
using namespace std::chrono_literals;

namespace {

std::vector<int> links_of(int rank, int size) {
  std::vector<int> linked;
  for (int distance = 1; distance < size; distance *= 2) {
    linked.push_back((rank + distance) % size);
    linked.push_back((rank + size - distance) % size);
  }
  return linked;
}

Bytes text_of(int from, int to) {
  return {static_cast<std::byte>(from), static_cast<std::byte>(to)};
}

/// Joins, and sends notes to all until all have come.
Status exchange_notes(const UniqueId& id, int rank, int size, std::atomic<int>& done) {
  ORIEL_TRY(EventLoop loop, EventLoop::create());
  const Deadline deadline = Deadline::after(30s);
  ORIEL_TRY(const auto session,
            loop.run(Session::join(loop, id, rank, size, {.socket = {.ifname = "lo"}}, deadline)));
  for (int peer = 0; peer < size; ++peer) {
    ORIEL_CHECK(session->peers().send_note(peer, text_of(rank, peer)));
  }
  if (session->peers().send_note(size, text_of(0, 0)).ok() ||
      session->peers().send_note(0, Bytes(kMaxNoteBytes + 1)).ok()) {
    return Error(ErrorCode::internal, "a note that is too long or to nobody was sent");
  }
  std::vector<int> got(static_cast<std::size_t>(size));
  bool told = false;
  // Those between have to stay until all have theirs.
  while (done.load() < size) {
    if (deadline.expired(SteadyClock::instance().now())) {
      return Error(ErrorCode::timeout, "notes are missing");
    }
    static_cast<void>(session->peers().pump_idle());
    int all = 0;
    for (int peer = 0; peer < size; ++peer) {
      int& count = got[static_cast<std::size_t>(peer)];
      while (const auto note = session->peers().take_note(peer)) {
        if (*note != text_of(peer, rank)) return Error(ErrorCode::internal, "wrong note");
        ++count;
      }
      all += count;
      if (count > 1) return Error(ErrorCode::internal, "a note came twice");
    }
    if (all == size && !told) {
      told = true;
      ++done;
    }
    std::this_thread::sleep_for(100us);
  }
  return {};
}

}  // namespace

TEST_CASE("a note finds its way to every rank in few hops", "[req:3.14]") {
  for (const int size : {2, 3, 4, 5, 8, 17, 100, 1000}) {
    int most = 0;
    for (int from = 0; from < size; from += 1 + size / 50) {
      for (int to = 0; to < size; ++to) {
        if (from == to) continue;
        int at = from, hops = 0;
        while (at != to) {
          at = next_hop(at, to, size, links_of(at, size));
          REQUIRE(at >= 0);
          REQUIRE(++hops <= 10);
        }
        most = std::max(most, hops);
      }
    }
    int log = 0;
    while (1 << log < size) ++log;
    CHECK(most <= std::max(log, 1));
  }
  // Without a link that comes nearer it is lost rather than sent round.
  CHECK(next_hop(0, 5, 16, {1, 15}) == 1);
  CHECK(next_hop(0, 5, 16, {15}) == -1);
  CHECK(next_hop(0, 5, 16, {}) == -1);
}

TEST_CASE("a note that is not well formed is refused", "[req:3.23]") {
  const Bytes good = encode_note({1, 2, Bytes(10, std::byte{7})});
  REQUIRE(decode_note(good, 4).ok());
  CHECK(decode_note(good, 4)->text == Bytes(10, std::byte{7}));
  CHECK_FALSE(decode_note(good, 2).ok());
  for (std::size_t size = 0; size < good.size(); ++size) {
    CHECK_FALSE(decode_note(ByteView(good).first(size), 4).ok());
  }
  CHECK_FALSE(decode_note(encode_note({-1, 2, {}}), 4).ok());
  CHECK_FALSE(decode_note(encode_note({1, 2, Bytes(kMaxNoteBytes + 1)}), 4).ok());
}

TEST_CASE("who takes no notes loses the oldest", "[req:3.14]") {
  NoteBox box;
  for (int i = 0; i < 100; ++i) box.put({3, 0, {static_cast<std::byte>(i)}});
  box.put({4, 0, {std::byte{200}}});
  CHECK(box.take(3) == Bytes{std::byte{36}});
  CHECK(box.take(4) == Bytes{std::byte{200}});
  CHECK_FALSE(box.take(4).has_value());
  CHECK_FALSE(box.take(5).has_value());
}

TEST_CASE("every rank has a note from every other, linked or not", "[req:3.14]") {
  constexpr int kRanks = 8;  // of which each has a link to 5
  const ServedId id;
  std::atomic<int> done = 0;
  std::vector<std::string> verdicts(kRanks);
  {
    std::vector<std::jthread> threads;
    for (int rank = 0; rank < kRanks; ++rank) {
      threads.emplace_back([&, rank] {
        const Status status = exchange_notes(id.value(), rank, kRanks, done);
        if (!status.ok()) done = kRanks;
        verdicts[static_cast<std::size_t>(rank)] = status.ok() ? "ok" : status.error().to_string();
      });
    }
  }
  for (const std::string& verdict : verdicts) CHECK(verdict == "ok");
}
