// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/device/cta_budget.hpp"

#include <algorithm>
#include <chrono>

#include "kernels/plan/layout.hpp"

namespace oriel::comm {
namespace {

constexpr int kSignatures = static_cast<int>(kernels::kSignatureCtas);

/// Returns the CTAs of a call and of its programmatic dependent, which may be resident together.
int weight_of(const CtaBudget::Member& member) {
  return 2 * (member.facts().ctas + kSignatures);
}

/// Maximum number of CTAs per call on GPUs, and therefore of ScratchLayout::max_ctas.
constexpr int kMostCtasOfGpu = 144;

}  // namespace

Sharers sharers_of(const std::vector<topo::RankInfo>& infos, const topo::RankInfo& own) {
  Sharers sharers;
  for (const topo::RankInfo& other : infos) {
    if (other.kind != own.kind || other.uuid != own.uuid) continue;
    ++sharers.all;
    if (other.process == own.process) ++sharers.in_process;
  }
  sharers.all = std::max<int>(sharers.all, own.known_sharers);
  return sharers;
}

bool are_on_one_gpu(const std::vector<topo::RankInfo>& infos, const std::vector<int>& members) {
  const auto info_of = [&](int rank) -> const topo::RankInfo& {
    return infos[static_cast<std::size_t>(rank)];
  };
  const bool is_one_team = members.size() > 1 && members.size() == infos.size();
  return is_one_team && std::all_of(members.begin(), members.end(), [&](int rank) {
           return info_of(rank).kind == topo::DeviceKind::cuda &&
                  info_of(rank).uuid == info_of(members.front()).uuid;
         });
}

bool have_own_gpus(const std::vector<topo::RankInfo>& infos) {
  return std::all_of(infos.begin(), infos.end(), [&](const topo::RankInfo& info) {
    return info.kind == topo::DeviceKind::cuda && sharers_of(infos, info).all == 1;
  });
}

int most_ctas_of_gpus(const std::vector<topo::RankInfo>& infos, int forced) {
  int most = kMostCtasOfGpu;
  for (const topo::RankInfo& info : infos) {
    if (info.kind == topo::DeviceKind::host) continue;
    const int sharers = sharers_of(infos, info).all;
    const int share = info.resident_ctas / sharers;
    // Alone on its GPU, a rank becomes resident as a whole before its dependent begins.
    const int fitting = (sharers > 1 ? share / 2 : share) - kSignatures;
    const int wanted = info.cta_limit > 0 ? info.cta_limit : kDefaultMostCtas;
    const int allowed =
        std::max(std::min(wanted, fitting), std::min({wanted, forced, share - kSignatures}));
    most = std::min(most, allowed);
  }
  return std::max(1, most);
}

int least_ctas_of_gpus(const std::vector<topo::RankInfo>& infos, int most) {
  int least = 0;
  for (const topo::RankInfo& info : infos) least = std::max<int>(least, info.cta_least);
  return std::min(least, most);
}

void CtaBudget::join(const MemberRef& member) {
  const std::lock_guard lock(mutex_);
  members_.push_back(member);
  most_sharers_ = std::max(most_sharers_, member->facts().sharers.all);
  if (member->facts().sharers.in_process <= 1) return;
  by_thread_.store(true, std::memory_order_relaxed);
  for (const MemberRef& each : members_) each->is_free_.store(false);
}

void CtaBudget::leave(const MemberRef& member) {
  const std::lock_guard lock(mutex_);
  std::erase(members_, member);
  member->is_free_.store(false);
  most_sharers_ = 1;
  for (const MemberRef& each : members_) {
    most_sharers_ = std::max(most_sharers_, each->facts().sharers.all);
  }
  const auto forget = [&](Chain& chain) {
    for (Entry& entry : chain.running) std::erase(entry.members, member);
    std::erase_if(chain.running, [](const Entry& entry) { return entry.members.empty(); });
    if (chain.running.empty()) chain.is_chained = false;
  };
  forget(*common_);
  for (auto& [thread, chain] : chains_) forget(*chain);
  // Drops chains that are empty, as their threads may have ended. A thread that launches holds its
  // chain.
  std::erase_if(chains_, [](const auto& item) {
    return item.second->running.empty() && item.second.use_count() == 1;
  });
}

int CtaBudget::most_sharers() const {
  const std::lock_guard lock(mutex_);
  return most_sharers_;
}

std::shared_ptr<CtaBudget::Chain> CtaBudget::chain_of_thread() {
  if (!by_thread_.load(std::memory_order_relaxed)) return common_;
  const std::lock_guard lock(mutex_);
  std::shared_ptr<Chain>& chain = chains_[std::this_thread::get_id()];
  if (chain == nullptr) {
    chain = std::make_shared<Chain>();
    // Launches from before the threads had their own chains precede each new chain.
    chain->running = common_->running;
    chain->is_chained = common_->is_chained;
  }
  return chain;
}

CtaBudget::Turn CtaBudget::begin(const MemberRef& member) {
  Turn turn;
  // Both accesses are sequentially consistent, as in end_free_launches(). Either this thread sees
  // that the member is no longer free, or the other thread sees is_launching_.
  member->is_launching_.store(true);
  turn.quick_.reset(member.get());
  if (member->is_free_.load()) return turn;
  turn.quick_.reset();
  turn.chain_ = chain_of_thread();
  Chain& chain = *turn.chain_;
  turn.free_ = std::shared_lock(chain.order);
  {
    const std::lock_guard lock(mutex_);
    if (admit(chain, member)) return turn;
  }
  turn.free_.unlock();
  turn.alone_ = std::unique_lock(chain.order);
  end_free_launches(chain);
  const std::lock_guard lock(mutex_);
  turn.waits_ = enqueue(chain, member);
  return turn;
}

void CtaBudget::end_free_launches(Chain& chain) {
  if (&chain != common_.get()) return;  // members of other chains always take locks
  std::vector<MemberRef> members;
  {
    const std::lock_guard lock(mutex_);
    for (const Entry& entry : chain.running) {
      members.insert(members.end(), entry.members.begin(), entry.members.end());
    }
    for (const MemberRef& each : members) each->is_free_.store(false);
  }
  for (const MemberRef& each : members) {
    // May take long: a launch blocks while the queue of its stream is full.
    while (each->is_launching_.load()) std::this_thread::sleep_for(std::chrono::microseconds(10));
  }
}

bool CtaBudget::fits(const Chain& chain, int weight) const {
  for (const Entry& entry : chain.running) weight += entry.weight;
  return weight <= resident_ / most_sharers_;
}

bool CtaBudget::admit(Chain& chain, const MemberRef& member) const {
  if (!reserve(chain, member)) return false;
  const bool is_common = &chain == common_.get() && !by_thread_.load(std::memory_order_relaxed);
  if (is_common) member->is_free_.store(true);
  return true;
}

bool CtaBudget::reserve(Chain& chain, const MemberRef& member) const {
  if (chain.is_chained) return false;
  const std::uint64_t communicator = member->facts().communicator;
  for (Entry& entry : chain.running) {
    if (entry.communicator != communicator) continue;
    const bool is_known =
        std::find(entry.members.begin(), entry.members.end(), member) != entry.members.end();
    if (!is_known) entry.members.push_back(member);
    return true;
  }
  const int weight = weight_of(*member);
  if (!chain.running.empty() && !fits(chain, weight)) return false;
  chain.running.push_back({communicator, weight, {member}});
  return true;
}

std::vector<CtaBudget::MemberRef> CtaBudget::enqueue(Chain& chain, const MemberRef& member) const {
  std::vector<Entry>& running = chain.running;
  const std::uint64_t communicator = member->facts().communicator;
  std::vector<MemberRef> waits;
  const auto wait_for = [&](const Entry& entry) {
    waits.insert(waits.end(), entry.members.begin(), entry.members.end());
  };
  const auto has_ended = [](const Entry& entry) {
    return std::all_of(entry.members.begin(), entry.members.end(),
                       [](const MemberRef& each) { return each->has_ended(); });
  };
  if (chain.is_chained && running.back().communicator == communicator) {
    std::vector<MemberRef>& last = running.back().members;
    if (std::find(last.begin(), last.end(), member) != last.end()) return {};
    last.push_back(member);
    std::for_each(running.begin(), running.end() - 1, wait_for);
    return waits;
  }
  if (chain.is_chained && !has_ended(running.back())) {
    running.erase(running.begin(), running.end() - 1);  // the last entry waits for them
  } else {
    std::erase_if(running, has_ended);
    if (running.empty()) chain.is_chained = false;
    if (admit(chain, member)) return {};
  }
  std::for_each(running.begin(), running.end(), wait_for);
  running.push_back({communicator, weight_of(*member), {member}});
  chain.is_chained = true;
  return waits;
}

}  // namespace oriel::comm
