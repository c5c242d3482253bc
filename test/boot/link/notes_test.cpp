// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "boot/link/notes.hpp"

#include <atomic>
#include <chrono>
#include <numeric>
#include <vector>

#include <catch2/catch.hpp>

#include "base/try.hpp"
#include "boot/session/rendezvous.hpp"
#include "boot/support/loopback.hpp"
#include "support/process_state.hpp"

// Tests notes between any two ranks over the existing links (3.14: how the ends of a queue agree).
namespace oriel::boot {
namespace {

using namespace std::chrono_literals;

Bytes note_of(int from, int to) {
  return {static_cast<std::byte>(from), static_cast<std::byte>(to)};
}

/// Sends notes to all ranks and waits for all. Ranks stay until every rank has its notes, because
/// they forward notes of others.
Status exchange_notes(Peers& peers, int rank, int size, std::atomic<int>& done) {
  for (int peer = 0; peer < size; ++peer) {
    ORIEL_CHECK(peers.send_note(peer, note_of(rank, peer)));
  }
  if (peers.send_note(size, note_of(0, 0)).ok() ||
      peers.send_note(0, Bytes(kMaxNoteBytes + 1)).ok()) {
    return Error(ErrorCode::internal, "a note that is too long or to nobody was sent");
  }
  std::vector<int> got(static_cast<std::size_t>(size));
  bool is_right = true;
  const bool all_done = test::eventually(
      [&] {
        static_cast<void>(peers.pump_idle());
        for (int peer = 0; peer < size; ++peer) {
          while (const auto note = peers.take_note(NoteTopic::failover, peer)) {
            is_right = is_right && note->text == note_of(peer, rank);
            ++got[static_cast<std::size_t>(peer)];
            if (std::accumulate(got.begin(), got.end(), 0) == size) ++done;
          }
        }
        return done >= size;
      },
      30s);
  if (!all_done) return Error(ErrorCode::timeout, "notes are missing");
  is_right = is_right && got == std::vector<int>(got.size(), 1);
  return is_right ? Status() : Error(ErrorCode::internal, "a wrong note, or one that came twice");
}

}  // namespace

TEST_CASE("a note reaches each of n ranks in at most ceil(log2 n) hops", "[req:3.14]") {
  for (const int size : {2, 3, 4, 5, 8, 17, 100, 1000}) {
    int most = 0;
    for (int from = 0; from < size; from += 1 + size / 50) {
      for (int to = 0; to < size; ++to) {
        if (from == to) continue;
        int at = from, hops = 0;
        while (at != to) {
          at = next_hop(at, to, size, link_neighbours(at, size));
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
  // If no link is closer to the target, the note is dropped rather than sent in a circle.
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
  CHECK(decode_note(encode_note({1, 2, {}, NoteTopic::split}), 4)->topic == NoteTopic::split);
  CHECK_FALSE(decode_note(encode_note({1, 2, {}, static_cast<NoteTopic>(0)}), 4).ok());
  CHECK_FALSE(decode_note(encode_note({1, 2, {}, static_cast<NoteTopic>(4)}), 4).ok());
  CHECK_FALSE(decode_note(encode_note({1, 2, Bytes(kMaxNoteBytes + 1)}), 4).ok());
}

TEST_CASE("a note box that nobody reads drops the oldest notes", "[req:3.14]") {
  NoteBox box;
  for (int i = 0; i < 100; ++i) box.put({3, 0, {static_cast<std::byte>(i)}});
  box.put({4, 0, {std::byte{200}}});
  CHECK(box.take(NoteTopic::failover, 3)->text == Bytes{std::byte{36}});
  CHECK(box.take(NoteTopic::failover, 4)->text == Bytes{std::byte{200}});
  CHECK_FALSE(box.take(NoteTopic::failover, 4).has_value());
  CHECK_FALSE(box.take(NoteTopic::last_call, kAnyRank).has_value());
  const auto next = box.take(NoteTopic::failover, kAnyRank);
  REQUIRE(next.has_value());
  CHECK(next->from == 3);
  CHECK(next->text == Bytes{std::byte{37}});
  CHECK_FALSE(box.take(NoteTopic::failover, 5).has_value());
}

TEST_CASE("every rank has a note from every other, linked or not", "[req:3.14]") {
  constexpr int kRanks = 8;  // each rank has a link to 5 others
  std::atomic<int> done = 0;
  CHECK(run_thread_sessions(kRanks, [&](EventLoop&, Session& session) {
          return exchange_notes(session.peers(), session.rank(), kRanks, done);
        }) == all_ok(kRanks));
}

}  // namespace oriel::boot
