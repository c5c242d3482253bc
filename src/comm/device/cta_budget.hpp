// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <thread>
#include <vector>

#include "topo/choice/rank_info.hpp"

namespace oriel::comm {

/// Most CTAs of a call unless ORIEL_MAX_CTAS or ORIEL_CTAS says otherwise.
inline constexpr int kDefaultMostCtas = 32;

/// Ranks that share a GPU, in all nodes (ORIEL_HOSTID) and containers.
struct Sharers {
  int all = 0;         ///< at least as many as the rank's process knew before
  int in_process = 0;  ///< of the rank's process
};
/// Returns who of `infos` shares the GPU of the rank `own`, itself included.
Sharers sharers_of(const std::vector<topo::RankInfo>& infos, const topo::RankInfo& own);

/// Returns the most CTAs of one call among GPUs, without the CTA that carries signatures. It is the
/// same on all ranks, since all know the same `infos`. The calls of all ranks that share a GPU fit
/// on it together, each with its programmatic dependent. `forced` (ORIEL_CTAS, 0 for none) may use
/// the room of the dependents.
int most_ctas_of_gpus(const std::vector<topo::RankInfo>& infos, int forced);

/// The CTAs of one GPU that launches of this process may take.
///
/// A launch waits on the GPU for its peers. Kernels that fill the GPU keep a peer's kernel out, so
/// two communicators may wait for each other for ever. While the calls of all communicators in
/// flight fit on the GPU together, launches are free. Beyond that, a launch waits for the launches
/// of other communicators before it in host order: they form a chain.
///
/// Where a communicator has several ranks on the GPU in this process, each thread has a chain of
/// its own and its share of the CTAs: a chain over threads would make a rank wait for its own peer.
/// Each call of one thread's chain waits for earlier calls only. So no ranks wait in a circle if
/// all issue their calls in one order. Thread-safe; never waits for the GPU.
class CtaBudget {
 public:
  struct Facts {
    std::uint64_t communicator = 0;  ///< the same for its ranks, and no other's
    int ctas = 1;                    ///< of a call at most, without the one of signatures
    Sharers sharers{1, 1};
  };
  /// One rank of a communicator on the GPU.
  class Member {
   public:
    explicit Member(const Facts& facts) : facts_(facts) {}
    virtual ~Member() = default;
    /// Returns whether its last launch has ended. Asked only when the GPU is full.
    virtual bool has_ended() const = 0;
    const Facts& facts() const { return facts_; }

   private:
    friend class CtaBudget;
    Facts facts_;
    // Set while the member is among the running ones of `common_` and nobody is chained there.
    mutable std::atomic<bool> is_free_{false};
    mutable std::atomic<bool> is_launching_{false};  // without a lock, or about to read is_free_
  };
  using MemberRef = std::shared_ptr<const Member>;

 private:
  struct Entry {
    std::uint64_t communicator = 0;
    int weight = 0;
    std::vector<MemberRef> members;
  };
  struct Chain {
    std::shared_mutex order;     // shared by launches that are free
    bool is_chained = false;     // under mutex_, as `running`
    std::vector<Entry> running;  // chained: what the last one waited for, and the last one
  };

 public:
  /// A launch: destroyed once its end has been recorded.
  class Turn {
   public:
    /// Returns the members whose last launch this one has to wait for.
    const std::vector<MemberRef>& waits() const { return waits_; }

   private:
    friend class CtaBudget;
    struct EndFree {
      void operator()(const Member* member) const {
        member->is_launching_.store(false, std::memory_order_release);
      }
    };
    std::unique_ptr<const Member, EndFree> quick_;  // a launch that needs no lock
    std::shared_ptr<Chain> chain_;                  // outlives the locks
    std::shared_lock<std::shared_mutex> free_;
    std::unique_lock<std::shared_mutex> alone_;
    std::vector<MemberRef> waits_;
  };

  explicit CtaBudget(int resident_ctas) : resident_(resident_ctas) {}

  void join(const MemberRef& member);
  /// Forgets a member, whose launches have ended.
  void leave(const MemberRef& member);
  /// Begins a launch; a member has one at a time. Waits for launches of other threads only where
  /// the GPU is full. Takes no lock if the member's last launch was free and nobody has been
  /// chained since, unless threads have chains.
  Turn begin(const MemberRef& member);
  /// Returns the most ranks that share the GPU, as its live communicators know.
  int most_sharers() const;

 private:
  std::shared_ptr<Chain> chain_of_thread();
  /// Returns whether the launch is free.
  bool admit(Chain& chain, const MemberRef& member) const;
  bool find_room(Chain& chain, const MemberRef& member) const;
  /// Makes the members of `chain` take locks again, and waits until none launches without. Needs
  /// the chain's order alone.
  void end_free_launches(Chain& chain);
  /// Returns what the launch has to wait for. Nobody else launches in the chain.
  std::vector<MemberRef> enqueue(Chain& chain, const MemberRef& member) const;
  bool fits(const Chain& chain, int weight) const;

  const int resident_;
  mutable std::mutex mutex_;
  std::vector<MemberRef> members_;
  int most_sharers_ = 1;
  std::atomic<bool> by_thread_{false};  // never false again
  std::shared_ptr<Chain> common_ = std::make_shared<Chain>();
  std::map<std::thread::id, std::shared_ptr<Chain>> chains_;
};

}  // namespace oriel::comm
