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

/// Records which offsets of the slots are taken on this rank's side. All slots of one reservation
/// have the same layout, so one set of intervals serves all of them. Thread-safe.
///
/// Ranks agree on an offset by a fixed-point iteration. Every rank proposes the first place at or
/// after a floor that is free on its side. All take the largest proposal as the next floor. Once
/// all proposals are equal and held, the place is free everywhere. Each rank needs only its own
/// state, so ranks may release in any order. Ranks of one process that share the space propose for
/// one token and get one hold.
///
/// Several agreements may run at once, in a different order on every process. Tokens have an order
/// that is equal everywhere. A proposal is held at least until its agreement's next round, and
/// nobody takes a hold from its token. A lower token has priority over a higher one. If a higher
/// token holds the place, the lower one waits; the higher one moves to another place in its next
/// round. The higher token avoids the lower one's place whether the lower one holds it or waits.
/// The lowest token is therefore blocked only by kept ranges, and waits at most one round of each
/// other agreement.
///
/// An eager pass skips the places of lower tokens. It is quick, but may reach the end of the slot
/// although those tokens later choose other places or fail. A waiting pass waits for lower tokens
/// instead and skips only kept ranges. If a waiting pass ends without a place, then no place was
/// free on all sides for its whole duration.
///
/// Places are multiples of `granularity`, and of 2 MiB if `bytes` is at least 2 MiB, so that the
/// host can map huge pages. A range kept by several ranks is counted. A rank that gives up may
/// release or drop only when the other ranks of its process no longer propose or keep.
class SlotSpace {
 public:
  /// `granularity` is a power of two and divides `slot_bytes`.
  SlotSpace(std::size_t slot_bytes, std::size_t granularity);

  /// Names one agreement; equal on all ranks that take part in it.
  struct Token {
    std::uint64_t communicator = 0;
    std::uint64_t sequence = 0;
    auto operator<=>(const Token&) const = default;
  };

  enum class Pass : std::uint8_t { eager, waiting };

  struct Proposal {
    enum class Kind : std::uint8_t {
      none = 0,   ///< no place at or after the floor; nothing is held
      held = 1,   ///< the place is this token's until it proposes again, keeps or drops
      waits = 2,  ///< another token is at the place: propose again
    };
    Kind kind = Kind::none;
    std::size_t offset = 0;
    bool operator==(const Proposal&) const = default;
  };

  /// Proposes the first free `bytes` at or after `floor` for `token`, replacing its previous
  /// proposal. invalid_usage: no slot could hold the place. internal: `token` has been kept.
  Result<Proposal> propose(Token token, std::size_t bytes, std::size_t floor, Pass pass);
  /// Turns the hold into a taken range and counts each caller as a keeper; call release() once for
  /// each. internal: there is no hold.
  Status keep(Token token);
  /// Removes the token's proposal; no effect if it was kept or has proposed nothing.
  void drop(Token token);
  /// Releases [offset, offset + bytes), all or part of a kept range. The part stays taken if the
  /// bookkeeping runs out of memory.
  void release(std::size_t offset, std::size_t bytes) noexcept;

  /// Returns the error for a waiting pass that ended without a place for `bytes`.
  Error out_of_space(std::size_t bytes) const;

  std::size_t slot_bytes() const { return slot_bytes_; }
  /// Returns the number of bytes in kept ranges.
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
  TakenMap taken_;               // disjoint, by first offset
  std::map<Token, Hold> holds_;  // proposals, held or waiting
  std::map<Token, Range> kept_;  // kept until the range is first released
};

}  // namespace oriel::window
