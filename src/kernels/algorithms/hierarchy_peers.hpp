// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>

#include "oriel/device/comm.hpp"
#include "oriel/device/config.hpp"
#include "oriel/device/network.hpp"
#include "oriel/device/queue.hpp"
#include "oriel/device/wait.hpp"

#include "kernels/algorithms/far_word.hpp"
#include "kernels/algorithms/hierarchy_places.hpp"
#include "kernels/algorithms/report_failure.hpp"
#include "kernels/plan/hierarchy_plan.hpp"

// Keeps the stages out of line: inlined into each other, they overload compilers. Hierarchy uses
// the macro too.
#if defined(__CUDACC__)
#define ORIEL_STAGE_FN __host__ __device__ __noinline__
#else
#define ORIEL_STAGE_FN __attribute__((noinline))
#endif

namespace oriel::kernels {

/// Communication of a rank with its peers in a call of Hierarchy. Puts data at ranks of other
/// nodes, sends words that report progress, and waits for the peers' words. Detects a peer in
/// another call. Owns the group of threads and its failure state.
///
/// Group, M: see Hierarchy. If the leading threads fail, they keep the failure until the group next
/// agrees (await_all).
template <class Group, class M>
class HierarchyPeers : protected HierarchyPlaces {
 protected:
  ORIEL_DEVICE_FN HierarchyPeers(const HierarchyArguments& arguments, Group group)
      : HierarchyPlaces(arguments), group_(group) {}

  /// Reads how many rounds came before this call.
  ORIEL_DEVICE_FN void begin() {
    base_ = device::Memory::load<device::Order::weak>(counter(kind_));
    other_base_ = device::Memory::load<device::Order::weak>(counter(1 - kind_));
    // Mixes in the number of earlier rounds: with another number, an equal call does not match.
    signature_ = (arguments_.signature + base_ * 0x9e3779b1u) & kSignatureMask;
  }

  /// Sends bytes to a peer of another node, from this rank's scratch memory or from a buffer that
  /// the NIC can read. They must stay unchanged until the peer has received them.
  ORIEL_DEVICE_FN void put(std::int32_t peer, std::uint64_t to, std::uint64_t from,
                           std::uint64_t bytes) {
    put_from(comm_.control_network->local, peer, to, from, bytes);
  }
  ORIEL_DEVICE_FN void put(std::int32_t peer, std::uint64_t to, const NicSource& buffer,
                           std::uint64_t first, std::uint64_t count) {
    put_from(buffer.window->local, peer, to, buffer.offset + first * shape_.element_bytes,
             count * shape_.element_bytes);
  }

  /// Sends a word to each peer in `each`, after all data sent to that peer before. If the peer is
  /// on another node, sends the data of `ahead(peer)` together with the word.
  template <class Each, class AheadOf = NothingAhead>
  ORIEL_STAGE_FN void signal(const Each& each, std::uint64_t word_offset, std::uint64_t rounds,
                             const AheadOf& ahead = {}) {
    const std::uint64_t word = rounds << kSignatureBits | signature_;
    const std::uint64_t offset =
        arguments_.layout.lines[kind_] +
        static_cast<std::uint64_t>(comm_.world_rank) * sizeof(HierarchyLine) + word_offset;
    group_.sync();
    if (failed_ || !group_.leads()) return;
    bool near = false;
    each([&](std::int32_t peer) {
      if (!is_near(peer)) return signal_far(peer, offset, word, ahead(peer));
      near = true;
      if (group_.rank() == 0) {
        M::template store<device::Order::release>(
            reinterpret_cast<std::uint64_t*>(at(peer, offset)), word);
      }
      return true;
    });
    if (!near || group_.rank() != 0) return;
    device::ring_fence();
    each([&](std::int32_t peer) {
      if (is_near(peer)) comm_.ring_lsa_peer_fenced(comm_.lsa_index_of[peer]);
      return true;
    });
  }

  /// Waits until each peer in `each` has reported `rounds` or more. Returns false, for all threads,
  /// if the wait was given up or a peer is in another call. Also if an earlier post of the leading
  /// threads has failed.
  template <class Each>
  ORIEL_STAGE_FN bool await_all(const Each& each, std::uint64_t word_offset, std::uint64_t rounds) {
    bool alive = !failed_;
    if (alive && group_.rank() == 0) {
      alive = each([&](std::int32_t peer) { return await(peer, word_offset, rounds); });
    }
    return !group_.any(!alive);
  }

  /// Waits until the peers in `each` have free slots for `round`.
  template <class Each>
  ORIEL_DEVICE_FN bool await_free_slots(const Each& each, std::uint64_t round) {
    const std::uint64_t absolute = base_ + round;
    if (arguments_.plan.grouped_by == GroupedBy::rank || absolute < kHierarchyDepth) return true;
    return await_all(each, offsetof(HierarchyLine, done), absolute - kHierarchyDepth + 1);
  }
  ORIEL_DEVICE_FN void signal_done(std::uint64_t rounds) {
    if (arguments_.plan.grouped_by == GroupedBy::rank) return;
    if (size_ > 1) signal(group_peers(), offsetof(HierarchyLine, done), rounds);
    if (grouping_.groups > 1) signal(across_peers(), offsetof(HierarchyLine, done), rounds);
  }
  ORIEL_DEVICE_FN auto group_peers() const {
    return [this](const auto& action) { return this->each_of_group(action); };
  }
  ORIEL_DEVICE_FN auto across_peers() const {
    return [this](const auto& action) { return this->each_across(action); };
  }

  Group group_;
  bool failed_ = false;  // failure of the leading threads

 private:
  using Lead = typename Group::Lead;

  ORIEL_STAGE_FN void put_from(const device::queue::Region& local, std::int32_t peer,
                               std::uint64_t to, std::uint64_t from, std::uint64_t bytes) {
    group_.sync();
    if (failed_ || !group_.leads()) return;
    const device::queue::Region& there = comm_.control_network->peers[peer];
    const device::queue::Transfer transfer{local, from, there, to, bytes};
    const auto posted =
        device::queue::put<Lead, M>(Lead(), comm_.network->queues[peer], transfer, comm_.wait);
    failed_ = posted.outcome != device::queue::QueueOutcome::done;
  }

  /// Posts the word, by the leading threads. Returns false, for all of them, if the queue has
  /// failed.
  ORIEL_DEVICE_FN bool signal_far(std::int32_t peer, std::uint64_t offset, std::uint64_t word,
                                  const Ahead& ahead) {
    const FarScratch far{*comm_.network, *comm_.control_network, comm_.wait};
    failed_ = !post_word<Lead, M>(far, peer, ahead, word, offset);
    return !failed_;
  }

  ORIEL_DEVICE_FN const HierarchyLine& line_of(int kind, std::int32_t peer) const {
    return *reinterpret_cast<const HierarchyLine*>(here(
        arguments_.layout.lines[kind] + static_cast<std::uint64_t>(peer) * sizeof(HierarchyLine)));
  }

  /// Returns whether a word belongs to a call that this rank is not in.
  ORIEL_DEVICE_FN bool is_of_other_call(const std::uint64_t* word, std::uint64_t base,
                                        bool same) const {
    const std::uint64_t value = M::template load<device::Order::acquire>(word);
    if (value >> kSignatureBits <= base) return false;  // belongs to an earlier call
    return !same || (value & kSignatureMask) != signature_;
  }
  ORIEL_DEVICE_FN bool is_elsewhere(std::int32_t peer) const {
    for (int kind = 0; kind < 2; ++kind) {
      const HierarchyLine& line = line_of(kind, peer);
      const bool same = kind == kind_;
      const std::uint64_t base = same ? base_ : other_base_;
      if (is_of_other_call(&line.inputs, base, same) ||
          is_of_other_call(&line.partials, base, same) ||
          is_of_other_call(&line.results, base, same) ||
          is_of_other_call(&line.copies, base, same)) {
        return true;
      }
    }
    return false;
  }

  /// Returns whether a peer was in another call when it sent `value` for data. If `value` is beyond
  /// the rounds of this call, the peer may be in a later call, or in a longer one. In the longer
  /// one, it has sent `done` since this call began, before its data, with another signature.
  ORIEL_DEVICE_FN bool was_elsewhere(std::int32_t peer, std::uint64_t value) const {
    const std::uint64_t end = base_ + rounds();
    if (value >> kSignatureBits <= end) return (value & kSignatureMask) != signature_;
    if (arguments_.plan.grouped_by == GroupedBy::rank) return false;
    const std::uint64_t done = M::template load<device::Order::acquire>(&line_of(kind_, peer).done);
    const std::uint64_t reported = done >> kSignatureBits;
    return reported >= base_ && reported < end && (done & kSignatureMask) != signature_;
  }

  /// Waits until the peer has reported `rounds` or more. One thread calls. Returns false if the
  /// wait was given up or the peer is in another call.
  ORIEL_STAGE_FN bool await(std::int32_t peer, std::uint64_t word_offset,
                            std::uint64_t rounds) const {
    const auto* const word = reinterpret_cast<const std::uint64_t*>(
        reinterpret_cast<const std::byte*>(&line_of(kind_, peer)) + word_offset);
    std::uint64_t value = 0;
    bool differs = false;
    const auto reached = [&] {
      value = M::template load<device::Order::acquire>(word);
      return value >> kSignatureBits >= rounds;
    };
    const auto over = [&] {
      if (reached()) return true;
      // Checks again: a peer sends words of its next call after those of this call.
      differs = is_elsewhere(peer) && !reached();
      return differs;
    };
    if (device::wait_until<M>(over, comm_.wait, {peer, rounds}) != device::WaitOutcome::ready) {
      return false;
    }
    const bool is_of_call = word_offset != offsetof(HierarchyLine, done);
    differs = differs || (is_of_call && was_elsewhere(peer, value));
    if (differs) report_failure(arguments_, FailureKind::world_signature, peer);
    return !differs;
  }

  static constexpr std::uint64_t kSignatureMask = (std::uint64_t{1} << kSignatureBits) - 1;

  std::uint64_t other_base_ = 0;  // rounds of earlier calls with the other kind of groups
  std::uint64_t signature_ = 0;   // signature of this call, mixed with base_
};

}  // namespace oriel::kernels
