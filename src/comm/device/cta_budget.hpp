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

/// Default maximum number of CTAs per call, without ORIEL_MAX_CTAS and ORIEL_CTAS.
inline constexpr int kDefaultMostCtas = 32;

/// Number of ranks that share a GPU, over all nodes (ORIEL_HOSTID) and containers.
struct Sharers {
  int all = 0;         ///< at least RankInfo::known_sharers
  int in_process = 0;  ///< ranks in the rank's own process
};
/// Counts the ranks of `infos` that share the GPU of the rank `own`, itself included.
Sharers sharers_of(const std::vector<topo::RankInfo>& infos, const topo::RankInfo& own);

/// Returns whether all ranks of `infos`, two or more, share one GPU and are `members` of one team.
/// False for CPUs. The result is the same on all ranks. With several teams it is false, since a
/// rank with peers in other teams does not copy out of a sender's window.
bool are_on_one_gpu(const std::vector<topo::RankInfo>& infos, const std::vector<int>& members);

/// Returns whether no rank of `infos` is a CPU or shares its GPU. The result is the same on all
/// ranks.
bool have_own_gpus(const std::vector<topo::RankInfo>& infos);

/// Returns the maximum number of CTAs of one call on GPUs, without the CTA that carries signatures.
/// The result is the same on all ranks, since all ranks have the same `infos`. If several ranks
/// share a GPU, their calls fit on the GPU together, each with its programmatic dependent. The
/// exception is a result of 1, the least that is returned. `forced` (ORIEL_CTAS, 0 for none) may
/// use the CTAs of the dependents.
int most_ctas_of_gpus(const std::vector<topo::RankInfo>& infos, int forced);

/// Returns the minimum number of CTAs of one call on GPUs: the largest that a rank's user wishes,
/// at most `most`; 0 if none does. The result is the same on all ranks.
int least_ctas_of_gpus(const std::vector<topo::RankInfo>& infos, int most);

/// Budget of the CTAs that launches of this process may occupy on one GPU.
///
/// A kernel waits on the GPU for its peers. If kernels fill the GPU, a peer's kernel cannot become
/// resident: two communicators may deadlock. While the calls in flight of all communicators fit on
/// the GPU together, launches are free. Beyond that, launches form a chain: each launch waits for
/// earlier launches of other communicators, in host order.
///
/// If a communicator has several ranks on the GPU in this process, each thread has its own chain
/// and its share of the CTAs. A chain over all threads would make a rank wait for its own peer. A
/// call in a thread's chain waits for earlier calls only. So no cycle of waiting ranks forms if all
/// ranks issue their calls in one order. Thread-safe. Calls nothing that waits for the GPU. If the
/// GPU is full, begin() waits for launches of other threads, which may block.
class CtaBudget {
 public:
  struct Facts {
    std::uint64_t communicator = 0;  ///< unique number, the same on its ranks
    int ctas = 1;                    ///< maximum per call, without the CTA of signatures
    Sharers sharers{1, 1};
  };
  /// One rank of a communicator on the GPU.
  class Member {
   public:
    explicit Member(const Facts& facts) : facts_(facts) {}
    virtual ~Member() = default;
    /// Returns whether the member's last launch has completed. Called only when the GPU is full.
    virtual bool has_ended() const = 0;
    const Facts& facts() const { return facts_; }

   private:
    friend class CtaBudget;
    Facts facts_;
    // Set only while the member is in `common_->running` and `common_` is not chained.
    mutable std::atomic<bool> is_free_{false};
    // Set while the member launches without a lock, or is about to read is_free_.
    mutable std::atomic<bool> is_launching_{false};
  };
  using MemberRef = std::shared_ptr<const Member>;

 private:
  struct Entry {
    std::uint64_t communicator = 0;
    int weight = 0;
    std::vector<MemberRef> members;
  };
  struct Chain {
    std::shared_mutex order;     // free launches hold it shared
    bool is_chained = false;     // guarded by mutex_, like `running`
    std::vector<Entry> running;  // if chained: the last launch and those it waits for
  };

 public:
  /// One launch. Destroy it once the end of the launch has been recorded.
  class Turn {
   public:
    /// Returns the members whose last launch must complete before this launch.
    const std::vector<MemberRef>& waits() const { return waits_; }

   private:
    friend class CtaBudget;
    struct EndFree {
      void operator()(const Member* member) const {
        member->is_launching_.store(false, std::memory_order_release);
      }
    };
    std::unique_ptr<const Member, EndFree> quick_;  // set if the launch needs no lock
    std::shared_ptr<Chain> chain_;                  // outlives the locks
    std::shared_lock<std::shared_mutex> free_;
    std::unique_lock<std::shared_mutex> alone_;
    std::vector<MemberRef> waits_;
  };

  explicit CtaBudget(int resident_ctas) : resident_(resident_ctas) {}

  void join(const MemberRef& member);
  /// Removes a member whose launches have completed.
  void leave(const MemberRef& member);
  /// Begins a launch. A member has at most one at a time. Blocks on launches of other threads only
  /// if the GPU is full. Takes no lock if the member's last launch was free and no launch has been
  /// chained since. If threads have their own chains, always takes a lock.
  Turn begin(const MemberRef& member);
  /// Returns the maximum of Sharers::all over the live communicators of this GPU.
  int most_sharers() const;

 private:
  std::shared_ptr<Chain> chain_of_thread();
  /// Returns whether the launch is free, that is, waits for no other launch.
  bool admit(Chain& chain, const MemberRef& member) const;
  bool reserve(Chain& chain, const MemberRef& member) const;
  /// Makes the members of `chain` take locks again, and waits for launches without a lock to end.
  /// The caller holds the chain's `order` exclusively.
  void end_free_launches(Chain& chain);
  /// Returns the members that the launch has to wait for. The caller holds the chain's `order`
  /// exclusively.
  std::vector<MemberRef> enqueue(Chain& chain, const MemberRef& member) const;
  bool fits(const Chain& chain, int weight) const;

  const int resident_;
  mutable std::mutex mutex_;
  std::vector<MemberRef> members_;
  int most_sharers_ = 1;
  std::atomic<bool> by_thread_{false};  // once true, stays true
  std::shared_ptr<Chain> common_ = std::make_shared<Chain>();
  std::map<std::thread::id, std::shared_ptr<Chain>> chains_;
};

}  // namespace oriel::comm
