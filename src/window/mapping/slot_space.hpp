// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <map>
#include <mutex>

#include "oriel/error.hpp"

namespace oriel::window {

/// Which offsets of the slots are taken on this rank's side. All slots of one reservation have the
/// same layout, so one set of intervals serves them all. Thread-safe.
///
/// Offsets are agreed by a fixed point: every rank proposes the first place that is free on its
/// side at or after a floor, all take the largest proposal as the next floor, and once all
/// proposals are equal and held the place is free everywhere. Only local truth is needed, so ranks
/// may release in any order. Ranks of one process that share the space propose for one token and
/// get one hold.
///
/// Several agreements may run at once, and meet in a different order on every process. Tokens have
/// an order, which is the same everywhere. A proposal is held until its agreement's next round at
/// least, and nobody takes a hold from its token; but the token with the lower number has the
/// better claim: it waits where a higher one holds the place, and the higher one moves on in its
/// next round, while it stays out of the lower one's way whether that holds or waits. So the lowest
/// token finds only kept ranges to be real obstacles, and waits one round of each other agreement
/// at most.
///
/// A pass that goes around the places of lower tokens (eager) is quick but may end at the end of
/// the slot although those tokens end elsewhere or fail. A patient pass waits for them instead: it
/// passes over kept ranges alone, so if it ends without a place, none was free on all sides from
/// its begin to its end.
///
/// Places are multiples of `granularity`, and of 2 MiB for `bytes` of 2 MiB or more, so that the
/// host can map huge pages. A range that several ranks keep is counted; a rank that gives up
/// releases or drops only when the other ranks of its process propose and keep no more.
class SlotSpace {
 public:
  /// `granularity` is a power of two and divides `slot_bytes`.
  SlotSpace(std::size_t slot_bytes, std::size_t granularity);

  /// Names one agreement: equal on all ranks that take part in it.
  struct Token {
    std::uint64_t communicator = 0;
    std::uint64_t sequence = 0;
    auto operator<=>(const Token&) const = default;
  };

  enum class Pass : std::uint8_t { eager, patient };

  struct Proposal {
    enum class Kind : std::uint8_t {
      none = 0,   ///< no place at or after the floor; nothing is held
      held = 1,   ///< the place is this token's until it proposes anew, keeps or drops
      waits = 2,  ///< another token is at the place: ask again
    };
    Kind kind = Kind::none;
    std::size_t offset = 0;
    bool operator==(const Proposal&) const = default;
  };

  /// Proposes the first `bytes` at or after `floor` for `token`, in place of what it proposed
  /// before. invalid_usage for what no slot could hold; internal if `token` has been kept.
  Result<Proposal> propose(Token token, std::size_t bytes, std::size_t floor, Pass pass);
  /// Turns the hold into a taken range, counted once for each caller; release() each. internal if
  /// there is no hold.
  Status keep(Token token);
  /// Forgets what the token has proposed; no effect if it was kept or has proposed nothing.
  void drop(Token token);
  /// Gives back [offset, offset + bytes) of a kept range: all of it or a part. A part stays taken
  /// if there is no memory to note what remains.
  void release(std::size_t offset, std::size_t bytes) noexcept;

  /// The error for a patient pass that has ended without a place for `bytes`.
  Error no_room(std::size_t bytes) const;

  std::size_t slot_bytes() const { return slot_bytes_; }
  /// Bytes of kept ranges.
  std::size_t taken_bytes() const;

 private:
  struct Taken {
    std::size_t end;
    int keepers;
  };
  struct Range {
    std::size_t begin;
    std::size_t end;
    bool overlaps(std::size_t other_begin, std::size_t other_end) const {
      return begin < other_end && end > other_begin;
    }
  };
  struct Hold {
    Range range;
    bool waits;
  };
  using TakenMap = std::map<std::size_t, Taken>;

  std::size_t first_free(Token token, std::size_t bytes, std::size_t floor, Pass pass) const;
  bool must_wait(Token token, std::size_t begin, std::size_t end) const;
  void count(std::size_t begin, std::size_t end, int change);
  void split_at(std::size_t offset);
  void add_taken(std::size_t begin, Taken range);
  void join_around(std::size_t begin, std::size_t end);

  std::size_t slot_bytes_;
  std::size_t granularity_;
  mutable std::mutex mutex_;
  TakenMap taken_;               // disjoint, by first byte
  std::map<Token, Hold> holds_;  // proposed
  std::map<Token, Range> kept_;  // until the range is first released
};

}  // namespace oriel::window
