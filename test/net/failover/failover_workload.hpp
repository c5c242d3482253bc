// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <deque>
#include <random>
#include <vector>

#include <catch2/catch.hpp>

#include "net/failover/failover_pair.hpp"

namespace oriel::net::test {

/// Random work of one rank for the other, and a model of its result that executes every WQE once,
/// in order. Words of each rank's memory:
///     [0, 1024)      constant: source of writes and reads;
///     [1024, 2048)   target of the peer's writes;
///     [2048, 2064)   target of the peer's atomics;
///     [2560, 4096)   results of this rank's reads and atomics.
class Workload {
 public:
  static constexpr std::uint64_t kTarget = 1024, kAtomics = 2048, kBack = 2560, kBackWords = 1536;
  static constexpr std::uint64_t kWords = 4096;

  Workload(FailoverQueue& queue, FailoverQueue& peer_queue, FailoverRank& from, FailoverRank& to,
           std::uint64_t seed)
      : queue_(queue),
        peer_queue_(peer_queue),
        from_(from),
        to_(to),
        raw_(queue.view(), queue.view().indexes->completed),
        random_(seed) {
    fill(from, seed);
    fill(to, seed + 1);
    model_.assign(to.memory.begin() + kTarget, to.memory.begin() + kBack);
    for (std::uint64_t i = 0; i < 64; ++i) REQUIRE(post_receives(peer_queue.queue(), 1));
  }
  /// Posts one operation, or none if there is no room. Rings if `ring`.
  void post(bool ring = true) {
    check_done();
    const std::uint64_t used = raw_.next() - FailoverPair::completed(queue_.view());
    if (used + 8 > queue_.view().depth || immediates_open_ >= 48) return;
    std::uint64_t wanted = 0;
    for (const Result& result : results_) wanted += result.words.size();
    if (wanted > kBackWords / 2) return;
    switch (random_() % 8) {
      case 0:
      case 1:
        return write(false), finish(ring);
      case 2:
        return write(true), finish(ring);
      case 3:
        return write_inline(), finish(ring);
      case 4:
        return fetch_add(), finish(ring);
      case 5:
        return swap4(), finish(ring);
      case 6:
        return swap8(), finish(ring);
      default:
        return read(), finish(ring);
    }
  }
  /// Posts a signalled no-op and rings the doorbell, so that all posted WQEs complete.
  void ring() {
    raw_.add(dq::nop_wqe(raw_.place(), dq::kSignalled));
    raw_.ring();
  }
  std::uint64_t posted() const { return raw_.next(); }
  std::uint64_t wqes() const { return wqes_; }
  bool is_done() const { return FailoverPair::completed(queue_.view()) >= raw_.next(); }

  /// Checks the results of completed WQEs. Takes immediates and checks them.
  void check_done() {
    const std::uint64_t completed = FailoverPair::completed(queue_.view());
    while (!results_.empty() && results_.front().end <= completed) {
      const Result& result = results_.front();
      for (std::size_t i = 0; i < result.words.size(); ++i) {
        const std::uint64_t seen = from_.memory[result.at + i];
        const std::uint64_t mask = result.narrow ? 0xffffffffu : ~std::uint64_t{0};
        REQUIRE((seen & mask) == (result.words[i] & mask));
      }
      results_.pop_front();
    }
    Immediate immediate;
    while (take_immediate(peer_queue_.queue(), immediate)) {
      REQUIRE_FALSE(immediates_.empty());
      REQUIRE(immediate.value == immediates_.front());
      immediates_.pop_front();
      --immediates_open_;
      REQUIRE(post_receives(peer_queue_.queue(), 1));
    }
  }
  /// Checks, once is_done(), that nothing was lost and nothing was executed twice.
  void check_all() {
    check_done();
    REQUIRE(results_.empty());
    REQUIRE(immediates_.empty());
    REQUIRE(std::equal(model_.begin(), model_.end(), to_.memory.begin() + kTarget));
  }

 private:
  struct Result {
    std::uint64_t end;
    std::uint64_t at;
    bool narrow;
    std::vector<std::uint64_t> words;
  };
  static void fill(FailoverRank& rank, std::uint64_t seed) {
    std::mt19937_64 random(seed * 31 + 7);
    for (std::uint64_t i = 0; i < 1024; ++i) {
      if (rank.memory[i] == 0) rank.memory[i] = random() | 1;
    }
  }
  std::uint32_t flags() { return random_() % 3 == 0 ? 0 : dq::kSignalled; }
  dq::LocalRange local(std::uint64_t word, std::uint64_t bytes) const {
    return {from_.region.address + word * 8, from_.keys[0], static_cast<std::uint32_t>(bytes)};
  }
  /// Returns the first of `words` words for a result, which is checked before the words are reused.
  std::uint64_t take_back(std::uint64_t words) {
    if (back_ + words > kBackWords) back_ = 0;
    const std::uint64_t at = kBack + back_;
    back_ += words;
    return at;
  }
  void write(bool immediate) {
    const std::uint64_t bytes = random_() % 4 == 0 ? 1 + random_() % 4000 : 1 + random_() % 64;
    const std::uint64_t from = random_() % (1024 * 8 - bytes), to = random_() % (8192 - bytes);
    const auto opcode = immediate ? dq::Opcode::write_immediate : dq::Opcode::write;
    const std::uint32_t value = immediate ? static_cast<std::uint32_t>(++last_immediate_) : 0;
    dq::LocalRange range = local(0, bytes);
    range.address += from;
    raw_.add(dq::transfer_wqe(opcode, raw_.place(), flags(), to_.region.remote(kTarget * 8 + to),
                              range, value));
    std::memcpy(reinterpret_cast<std::byte*>(model_.data()) + to,
                reinterpret_cast<const std::byte*>(from_.memory.data()) + from, bytes);
    if (!immediate) return;
    immediates_.push_back(value);
    ++immediates_open_;
  }
  void write_inline() {
    const std::uint64_t value = random_(), bytes = 1 + random_() % 8, to = random_() % 8184;
    raw_.add(dq::inline_write_wqe(raw_.place(), flags(), to_.region.remote(kTarget * 8 + to),
                                  dq::InlineBytes(reinterpret_cast<const unsigned char*>(&value),
                                                  static_cast<std::uint32_t>(bytes))));
    std::memcpy(reinterpret_cast<std::byte*>(model_.data()) + to, &value, bytes);
  }
  std::uint64_t& model_word(std::uint64_t which) { return model_[kAtomics - kTarget + which]; }
  void fetch_add() {
    const std::uint64_t which = random_() % 4, by = random_() % 1000, at = take_back(1);
    raw_.add(dq::fetch_add_wqe(raw_.place(), flags(), to_.region.remote((kAtomics + which) * 8), by,
                               local(at, 8)));
    results_.push_back({raw_.next(), at, false, {model_word(which)}});
    model_word(which) += by;
  }
  void swap4() {
    const std::uint64_t which = 4 + random_() % 4, at = take_back(1);
    const auto old = static_cast<std::uint32_t>(model_word(which));
    const auto next = static_cast<std::uint32_t>(random_());
    raw_.add(dq::masked_compare_swap_wqe(
        raw_.place(), flags(), to_.region.remote((kAtomics + which) * 8),
        dq::MaskedSwap<std::uint32_t>{next, old, 0xffffffff, 0xffffffff}, local(at, 4)));
    results_.push_back({raw_.next(), at, true, {dq::big_endian(old)}});
    model_word(which) = next;
  }
  void swap8() {
    const std::uint64_t which = 8 + random_() % 4, at = take_back(1), next = random_();
    const std::uint64_t mask = random_();
    raw_.add(dq::masked_compare_swap_wqe(raw_.place(), 0, to_.region.remote((kAtomics + which) * 8),
                                         dq::MaskedSwap<std::uint64_t>{next, 0, mask, 0},
                                         local(at, 8)));
    raw_.add(dq::nop_wqe(raw_.place(), flags()));
    results_.push_back({raw_.next(), at, false, {model_word(which)}});
    model_word(which) = (model_word(which) & ~mask) | (next & mask);
  }
  void read() {
    const std::uint64_t words = random_() % 4 == 0 ? 1 + random_() % 200 : 1;
    const std::uint64_t from = random_() % (1024 - words), at = take_back(words);
    raw_.add(dq::transfer_wqe(dq::Opcode::read, raw_.place(), flags(), to_.region.remote(from * 8),
                              local(at, words * 8)));
    const auto first = to_.memory.begin() + static_cast<std::ptrdiff_t>(from);
    results_.push_back(
        {raw_.next(), at, false, {first, first + static_cast<std::ptrdiff_t>(words)}});
  }
  void finish(bool ring) {
    ++wqes_;
    // Signals completions now and then, because unsignalled WQEs yield none.
    if (wqes_ % 4 == 0 || ring) raw_.add(dq::nop_wqe(raw_.place(), dq::kSignalled));
    if (ring) raw_.ring();
  }

  FailoverQueue& queue_;
  FailoverQueue& peer_queue_;
  FailoverRank& from_;
  FailoverRank& to_;
  RawPoster raw_;
  std::mt19937_64 random_;
  std::vector<std::uint64_t> model_;
  std::deque<Result> results_;
  std::deque<std::uint32_t> immediates_;
  std::uint64_t last_immediate_ = 0, immediates_open_ = 0, back_ = 0, wqes_ = 0;
};

inline dq::LocalRange word_of(const FailoverRank& rank, std::uint64_t word) {
  return {rank.region.address + word * 8, rank.keys[0], 8};
}

/// Posts `count` additions of 1 to the peer's word 0; addition i fetches into word 100 + i.
inline void post_adds(const FailoverPair& pair, RawPoster& raw, std::uint64_t count) {
  for (std::uint64_t i = 0; i < count; ++i) {
    raw.add(dq::fetch_add_wqe(raw.place(), dq::kSignalled, pair.b.region.remote(0), 1,
                              word_of(pair.a, 100 + i)));
  }
}
inline void ring_adds(const FailoverPair& pair, RawPoster& raw, std::uint64_t count) {
  post_adds(pair, raw, count);
  raw.ring();
}

}  // namespace oriel::net::test
