// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "oriel/device/queue.hpp"

/// Body for CPU and GPU threads: executes operations on queues and checks their results (3.1).
/// Values behind other data (put_with_value, put_bytes_with_value) are not among them.
namespace oriel::net::test {

namespace dq = device::queue;

#if defined(__CUDACC__)
#define ORIEL_STEP_FN __host__ __device__ __noinline__
#else
#define ORIEL_STEP_FN
#endif

/// Data shared by all groups of a run. Both regions have kGroupBytes for each group, zero at first.
struct OperationsPath {
  dq::QueueView queue;
  dq::Region local;
  dq::Region remote;
  device::WaitControl control;
};
inline constexpr std::uint64_t kGroupBytes = 1024;

enum class OperationsStep : std::uint32_t {
  words_of_8_bytes,
  words_of_4_bytes,
  neighbours,  ///< the words beside the target words
  put_and_get,
  fence,
  immediate,
  signal_added,
  signal_set,
  bytes_in_wqes,
  pieces,
};

template <dq::AtomicOp kOp, class T>
constexpr ORIEL_DEVICE_FN T applied(T old, T operand, T compare) {
  using dq::AtomicOp;
  if (kOp == AtomicOp::add) return static_cast<T>(old + operand);
  if (kOp == AtomicOp::bit_and) return old & operand;
  if (kOp == AtomicOp::bit_or) return old | operand;
  if (kOp == AtomicOp::bit_xor) return old ^ operand;
  return kOp == AtomicOp::swap || old == compare ? operand : old;
}

/// Work of one group, which has an index of its own. The peer receives one immediate: the index.
template <class Group, class M = device::Memory>
class OperationsBody {
 public:
  ORIEL_DEVICE_FN OperationsBody(const OperationsPath& path, std::uint32_t index)
      : path_(path), index_(index), base_(index * kGroupBytes), random_(index + 1) {}

  /// Runs all steps. Returns one bit for each step that failed, the same in all threads of the
  /// group.
  ORIEL_DEVICE_FN std::uint32_t run() {
    for (int i = 0; i < 3; ++i) {
      all_atomics<std::uint64_t>(kWord8, word8_, OperationsStep::words_of_8_bytes);
      all_atomics<std::uint32_t>(kWord4, word4_, OperationsStep::words_of_4_bytes);
    }
    move_bytes();
    fence();
    signal<dq::SignalOp::add>(kAdded, OperationsStep::signal_added, 3);
    signal<dq::SignalOp::add>(kAdded, OperationsStep::signal_added, 7);
    signal<dq::SignalOp::set>(kSet, OperationsStep::signal_set, 5);
    signal<dq::SignalOp::set>(kSet, OperationsStep::signal_set, 5);
    bytes_in_wqes<dq::SignalOp::add>(kAdded, 11);
    bytes_in_wqes<dq::SignalOp::set>(kSet, 6);
    for (std::uint64_t round = 0; round < kPieceRounds; ++round) pieces(round);
    check_words();
    return wrong_;
  }

 private:
  using QueueOutcome = dq::QueueOutcome;

  // Offsets in a group's part of the peer's memory.
  static constexpr std::uint64_t kWord8 = 8;  // the words on either side stay zero
  static constexpr std::uint64_t kWord4 = 28;
  static constexpr std::uint64_t kAdded = 40;
  static constexpr std::uint64_t kSet = 48;
  static constexpr std::uint64_t kWords = 64;  // bytes with words
  static constexpr std::uint64_t kSpare = 72;
  static constexpr std::uint64_t kThere = 128;
  static constexpr std::uint64_t kBytes = 256;  // bytes of data
  // Offsets in a group's part of the local memory.
  static constexpr std::uint64_t kSource = 0;
  static constexpr std::uint64_t kOther = 256;
  static constexpr std::uint64_t kSink = 512;
  static constexpr std::uint64_t kPiece = 64;
  static constexpr std::uint64_t kPieceRounds = 3;

  ORIEL_DEVICE_FN std::uint64_t next() {
    random_ = random_ * 6364136223846793005u + 1442695040888963407u;
    return random_ >> 20;
  }
  ORIEL_DEVICE_FN void expect(bool good, OperationsStep step) {
    if (group_.any(!good)) wrong_ |= 1u << static_cast<std::uint32_t>(step);
  }
  ORIEL_DEVICE_FN void expect_done(QueueOutcome outcome, OperationsStep step) {
    expect(outcome == QueueOutcome::done, step);
  }

  template <class T>
  ORIEL_STEP_FN void all_atomics(std::uint64_t at, T& expected, OperationsStep step) {
    each_form<dq::AtomicOp::add, T>(at, expected, step);
    each_form<dq::AtomicOp::bit_and, T>(at, expected, step);
    each_form<dq::AtomicOp::bit_or, T>(at, expected, step);
    each_form<dq::AtomicOp::bit_xor, T>(at, expected, step);
    each_form<dq::AtomicOp::swap, T>(at, expected, step);
    each_form<dq::AtomicOp::compare_swap, T>(at, expected, step);
  }
  /// Applies the operation without its old value, waiting for the old value, and with another
  /// operation before the wait.
  template <dq::AtomicOp kOp, class T>
  ORIEL_STEP_FN void each_form(std::uint64_t at, T& expected, OperationsStep step) {
    const std::uint64_t place = base_ + at;
    auto operand = static_cast<T>(next());
    T compare = next() % 2 == 0 ? expected : static_cast<T>(next());
    expect_done(dq::atomic<kOp, Group, T, M>(group_, path_.queue, path_.remote, place, operand,
                                             path_.control, compare)
                    .outcome,
                step);
    expected = applied<kOp>(expected, operand, compare);

    operand = static_cast<T>(next());
    compare = next() % 2 == 0 ? expected : static_cast<T>(next());
    T old = 0;
    expect_done(dq::fetch_atomic<kOp, Group, T, M>(group_, path_.queue, path_.remote, place,
                                                   operand, old, path_.control, compare),
                step);
    expect(old == expected, step);
    expected = applied<kOp>(expected, operand, compare);

    operand = static_cast<T>(next());
    compare = next() % 2 == 0 ? expected : static_cast<T>(next());
    const dq::Fetch<T> fetch = dq::begin_fetch<kOp, Group, T, M>(
        group_, path_.queue, path_.remote, place, operand, path_.control, compare);
    put_something(step);
    expect(await_fetch(fetch, step) == expected, step);
    expected = applied<kOp>(expected, operand, compare);
  }
  // These two are out of line, because they do not depend on the operation.
  ORIEL_STEP_FN void put_something(OperationsStep step) {
    expect_done(dq::put_value<Group, std::uint64_t, M>(group_, path_.queue, random_, path_.remote,
                                                       base_ + kSpare, path_.control)
                    .outcome,
                step);
  }
  template <class T>
  ORIEL_STEP_FN T await_fetch(const dq::Fetch<T>& fetch, OperationsStep step) {
    T old = 0;
    expect_done(dq::end_fetch<Group, T, M>(group_, path_.queue, fetch, old, path_.control), step);
    return old;
  }

  // Returns data specific to each group and `salt`.
  ORIEL_DEVICE_FN std::uint64_t pattern(std::uint64_t salt, std::uint64_t word) const {
    return (index_ + 1) * 0x9e3779b97f4a7c15u + salt * 1'000'003 + word;
  }
  ORIEL_DEVICE_FN std::uint64_t* here(std::uint64_t at) const {
    return reinterpret_cast<std::uint64_t*>(path_.local.address + base_ + at);
  }
  ORIEL_DEVICE_FN void fill(std::uint64_t at, std::uint64_t salt) {
    for (std::uint64_t i = group_.rank(); i < kBytes / 8; i += group_.size()) {
      M::template store<device::Order::relaxed>(here(at) + i, pattern(salt, i));
    }
  }
  ORIEL_DEVICE_FN dq::Transfer between(std::uint64_t near, std::uint64_t far,
                                       std::uint64_t bytes) const {
    return {path_.local, base_ + near, path_.remote, base_ + far, bytes};
  }
  ORIEL_DEVICE_FN std::uint64_t word_here(std::uint64_t at) const {
    return M::template load<device::Order::relaxed>(here(at));
  }
  ORIEL_DEVICE_FN void expect_in_sink(std::uint64_t salt, OperationsStep step) {
    bool good = true;
    for (std::uint64_t i = group_.rank(); i < kBytes / 8; i += group_.size()) {
      good = good && word_here(kSink + i * 8) == pattern(salt, i);
    }
    expect(good, step);
  }
  /// Reads the peer's data from `far` on into the sink.
  ORIEL_STEP_FN void get_to_sink(std::uint64_t far, std::uint64_t bytes, OperationsStep step) {
    expect_done(
        dq::get_and_wait<Group, M>(group_, path_.queue, between(kSink, far, bytes), path_.control),
        step);
  }
  ORIEL_STEP_FN void expect_there(std::uint64_t salt, OperationsStep step) {
    get_to_sink(kThere, kBytes, step);
    expect_in_sink(salt, step);
  }
  ORIEL_STEP_FN void put(const dq::Transfer& transfer, OperationsStep step) {
    expect_done(dq::put<Group, M>(group_, path_.queue, transfer, path_.control).outcome, step);
  }

  ORIEL_STEP_FN void move_bytes() {
    fill(kSource, 1);
    put(between(kSource, kThere, kBytes), OperationsStep::put_and_get);
    expect_there(1, OperationsStep::put_and_get);
    fill(kSource, 2);
    expect_done(dq::put_immediate<Group, M>(group_, path_.queue, between(kSource, kThere, kBytes),
                                            index_, path_.control)
                    .outcome,
                OperationsStep::immediate);
    expect_there(2, OperationsStep::immediate);
  }
  /// Checks that the read returns the data from before the write behind the fence.
  ORIEL_STEP_FN void fence() {
    fill(kOther, 3);
    const OperationsStep step = OperationsStep::fence;
    expect_done(
        dq::get<Group, M>(group_, path_.queue, between(kSink, kThere, kBytes), path_.control)
            .outcome,
        step);
    expect_done(dq::fence<Group, M>(group_, path_.queue, path_.control).outcome, step);
    put(between(kOther, kThere, kBytes), step);
    QueueOutcome outcome = QueueOutcome::done;
    if (group_.rank() == 0) outcome = dq::wait_visible<M>(path_.queue, path_.control);
    expect_done(outcome, step);
    expect_in_sink(2, step);
    expect_there(3, step);
  }
  template <dq::SignalOp kSignal>
  ORIEL_STEP_FN void signal(std::uint64_t at, OperationsStep step, std::uint64_t value) {
    fill(kOther, value);
    expect_done(
        dq::put_signal<kSignal, Group, M>(group_, path_.queue, between(kOther, kThere, kBytes),
                                          path_.remote, base_ + at, value, path_.control)
            .outcome,
        step);
    expect_there(value, step);
  }

  /// Puts bytes that start in the middle of a word, over the data that `signal` has left there.
  template <dq::SignalOp kSignal>
  ORIEL_STEP_FN void bytes_in_wqes(std::uint64_t at, std::uint64_t value) {
    const OperationsStep step = OperationsStep::bytes_in_wqes;
    constexpr std::uint64_t kFirst = 12, kCount = 17;
    fill(kSource, value);
    const auto* const from = reinterpret_cast<const unsigned char*>(here(kSource));
    expect_done(dq::put_bytes<Group, M>(group_, path_.queue, from, kCount, path_.remote,
                                        base_ + kThere + kFirst, path_.control)
                    .outcome,
                step);
    expect_done(dq::put_bytes_signal<kSignal, Group, M>(
                    group_, path_.queue, from + 32, 8, path_.remote, base_ + kThere + 64,
                    path_.remote, base_ + at, value, path_.control)
                    .outcome,
                step);
    get_to_sink(kThere, kBytes, step);
    bool good = word_here(kSink + 64) == pattern(value, 4);
    const auto* const source = reinterpret_cast<const volatile unsigned char*>(here(kSource));
    const auto* const sink = reinterpret_cast<const volatile unsigned char*>(here(kSink));
    for (std::uint64_t i = 0; i < kCount; ++i) good = good && sink[kFirst + i] == source[i];
    expect(good, step);
    expect(dq::put_bytes<Group, M>(group_, path_.queue, from, dq::kInlineBytesMost + 1,
                                   path_.remote, base_ + kThere, path_.control)
                   .outcome == QueueOutcome::refused,
           step);
  }

  /// Returns the region before kSink, split as if each piece had a registration of its own.
  ORIEL_DEVICE_FN dq::Region in_pieces(const dq::Region& whole) const {
    dq::Region part;
    part.address = whole.address + base_;
    part.bytes = kSink;
    part.chunk_shift = 6;
    static_assert(kPiece == 1 << 6 && kSink == kPiece * dq::Region::kKeysInside);
    for (std::uint64_t i = 0; i < dq::Region::kKeysInside; ++i) {
      part.keys[i] = whole.key_at(base_ + i * kPiece);
    }
    return part;
  }
  /// Puts twice, one to four WQEs each, the second with a signal behind it. Neighbouring groups
  /// mostly need different numbers of WQEBBs.
  ORIEL_STEP_FN void pieces(std::uint64_t round) {
    const OperationsStep step = OperationsStep::pieces;
    const dq::Region near = in_pieces(path_.local), far = in_pieces(path_.remote);
    const std::uint64_t first = kPiece * (1 + (index_ + round) % 4);
    const std::uint64_t second = kPiece * (1 + (index_ * 3 + round) % 4);
    fill(kSource, 20 + round);
    fill(kOther, 30 + round);
    put({near, kSource, far, kThere, first}, step);
    expect_done(dq::put_signal<dq::SignalOp::add, Group, M>(
                    group_, path_.queue, {near, kOther, far, kThere, second}, path_.remote,
                    base_ + kAdded, 1, path_.control)
                    .outcome,
                step);
    get_to_sink(kThere, kBytes, step);
    bool good = true;
    for (std::uint64_t i = group_.rank(); i * 8 < first || i * 8 < second; i += group_.size()) {
      const std::uint64_t salt = i * 8 < second ? 30 : 20;
      good = good && word_here(kSink + i * 8) == pattern(salt + round, i);
    }
    expect(good, step);
  }

  /// Checks all words, including the words beside them.
  ORIEL_STEP_FN void check_words() {
    get_to_sink(0, kWords, OperationsStep::neighbours);
    expect(word_here(kSink + kWord8) == word8_, OperationsStep::words_of_8_bytes);
    expect(word_here(kSink + kWord4 - 4) >> 32 == word4_, OperationsStep::words_of_4_bytes);
    expect(word_here(kSink + kAdded) == 21 + kPieceRounds, OperationsStep::signal_added);
    expect(word_here(kSink + kSet) == 6, OperationsStep::signal_set);
    const bool clean = (word_here(kSink + kWord4 - 4) & 0xffffffffu) == 0 &&
                       word_here(kSink) == 0 && word_here(kSink + 16) == 0 &&
                       word_here(kSink + 32) == 0 && word_here(kSink + 56) == 0;
    expect(clean, OperationsStep::neighbours);
  }

  const OperationsPath& path_;
  Group group_{};
  std::uint32_t index_;
  std::uint64_t base_;
  std::uint64_t random_;
  std::uint64_t word8_ = 0;
  std::uint32_t word4_ = 0;
  std::uint32_t wrong_ = 0;
};

#undef ORIEL_STEP_FN

/// Adds one to the word at `offset` `count` times in one thread, and stores the old values. The old
/// values of all threads together are each number once.
template <class M = device::Memory>
ORIEL_DEVICE_FN dq::QueueOutcome draw_tickets(const OperationsPath& path, std::uint64_t offset,
                                              std::uint32_t count, std::uint64_t* tickets) {
  for (std::uint32_t i = 0; i < count; ++i) {
    std::uint64_t old = 0;
    const dq::QueueOutcome outcome = dq::fetch_atomic<dq::AtomicOp::add, std::uint64_t, M>(
        path.queue, path.remote, offset, 1, old, path.control);
    if (outcome != dq::QueueOutcome::done) return outcome;
    tickets[i] = old;
  }
  return dq::QueueOutcome::done;
}

/// Returns true if these are the numbers from 0 on, each once, in any order.
inline bool is_permutation(std::vector<std::uint64_t> tickets) {
  std::sort(tickets.begin(), tickets.end());
  for (std::size_t i = 0; i < tickets.size(); ++i) {
    if (tickets[i] != i) return false;
  }
  return true;
}

}  // namespace oriel::net::test
