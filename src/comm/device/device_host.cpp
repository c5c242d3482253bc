// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <mutex>
#include <vector>

#include <fmt/format.h>
#include <unistd.h>

#include "oriel/device/wait.hpp"
#include "oriel/device/window.hpp"

#include "base/system_table.hpp"
#include "base/try.hpp"
#include "comm/device/device.hpp"
#include "comm/device/window_sink.hpp"
#include "kernels/host/all_reduce_host.hpp"
#include "topo/choice/gpu_rank_info.hpp"
#include "topo/choice/placement.hpp"
#include "topo/machine/process_machine.hpp"
#include "window/memory/memory_host.hpp"

namespace oriel::comm {
namespace {

class HostNoticeMemory final : public NoticeMemory {
 public:
  Notices& host() override { return notices_; }
  Notices* on_device() override { return &notices_; }

 private:
  alignas(64) Notices notices_;
};

/// Records a collective and puts its number into the signatures of its messages.
void number_messages(ExchangeCall& call) {
  const std::uint64_t number = kernels::record_call(*call.record, call.collective);
  const auto add_number = [number](kernels::Message& message) {
    message.signature = kernels::numbered_signature(message.signature, number);
  };
  for (kernels::ExchangeArguments& launch : call.launches) {
    std::for_each(launch.message, launch.message + launch.messages, add_number);
  }
  if (call.short_exchange == nullptr) return;
  for (kernels::Message& message : call.short_exchange->sends) add_number(message);
  for (kernels::Message& message : call.short_exchange->receives) add_number(message);
}

/// Lets one thread at a time run calls of a communicator, which share its scratch memory. Takes one
/// read-modify-write, where a mutex takes two. A second thread polls.
class CallLock {
 public:
  void lock() {
    if (!is_taken_.test_and_set(std::memory_order_acquire)) return;
    const auto is_free = [this] { return !is_taken_.test_and_set(std::memory_order_acquire); };
    static_cast<void>(device::wait_until(is_free, {}, {}));  // without end, as for a mutex
  }
  void unlock() { is_taken_.clear(std::memory_order_release); }

 private:
  std::atomic_flag is_taken_;
};

class HostExecutor final : public Executor {
 public:
  Status check_stream(void* stream) override {
    if (stream == nullptr) return {};
    return Error(ErrorCode::invalid_argument, "the stream is not null, but there is no GPU")
        .with_hint("pass a null stream: without a GPU a collective ends when its call returns");
  }
  Status run(const kernels::Plan& plan, const kernels::AllReduceArguments& arguments,
             void* /*stream*/) override {
    const std::lock_guard lock(call_lock_);
    if (kernels::run_all_reduce_on_host(plan.algorithm, arguments)) return {};
    return Error(ErrorCode::internal, "a wait of an all-reduce was given up for no known reason");
  }
  Status run_hierarchy(const kernels::HierarchyArguments& arguments, void* /*stream*/) override {
    const std::lock_guard lock(call_lock_);
    if (kernels::run_hierarchy_on_host(arguments)) return {};
    return Error(ErrorCode::internal,
                 fmt::format("a wait of an {} was given up for no known reason",
                             name_of(arguments.collective)));
  }
  Status check_joined(const std::vector<void*>& /*streams*/) override { return {}; }
  Status join_streams(void* /*first*/, const std::vector<void*>& /*streams*/) override {
    return {};
  }
  Status release_streams(void* /*last*/, const std::vector<void*>& /*streams*/) override {
    return {};
  }
  Status run_exchange(ExchangeCall& call) override {
    const std::lock_guard lock(call_lock_);
    ORIEL_CHECK(move_messages(call));
    if (call.fold.output != nullptr) kernels::fold_pair_on_host(call.fold);
    return {};
  }
  void pass_over(kernels::CallRecord& record, const kernels::CollectiveCall& call) override {
    const std::lock_guard lock(call_lock_);
    kernels::record_call(record, call);
  }
  Status drain(Deadline /*deadline*/) override { return {}; }
  bool is_in_use() override { return false; }

 private:
  static Status move_messages(ExchangeCall& call) {
    if (call.record != nullptr) number_messages(call);
    if (call.short_exchange != nullptr) {
      if (kernels::run_short_exchange_on_host(*call.short_exchange, *call.facts)) return {};
      kernels::plan_exchange(*call.short_exchange, *call.facts, call.launches);
    }
    for (const kernels::ExchangeArguments& launch : call.launches) {
      if (kernels::run_exchange_on_host(launch)) continue;
      return Error(ErrorCode::internal,
                   fmt::format("a wait of {} was given up for no known reason",
                               call.record != nullptr ? name_of(call.collective.collective)
                                                      : "sends and receives"));
    }
    return {};
  }

  CallLock call_lock_;
};

class HostDevice final : public Device {
 public:
  kernels::Backend backend() const override { return kernels::Backend::host; }
  int ordinal() const override { return -1; }
  window::Memory& memory() override { return window::host_memory(); }

  Result<topo::RankInfo> rank_info(const topo::NodeIdentity& node, const Settings& settings,
                                   topo::Wanted wanted) override {
    const long pages = sys().sysconf(_SC_PHYS_PAGES);
    const long page_bytes = sys().sysconf(_SC_PAGESIZE);
    if (pages < 0 || page_bytes < 0) return system_error("asking for the size of the memory");
    ORIEL_TRY(const auto machine, topo::process_machine().for_communicators(false, settings));
    topo::RankInfo info = topo::host_rank_info(node, *machine, topo::cpus_of_this_thread());
    topo::add_network(info, settings, wanted);
    info.memory_bytes = static_cast<std::uint64_t>(pages) * static_cast<std::uint64_t>(page_bytes);
    return info;
  }
  Task<Result<void*>> make_scratch(EventLoop& /*loop*/, kernels::ScratchLayout layout,
                                   kernels::HierarchyLayout /*hierarchy*/,
                                   std::vector<kernels::ChannelLayout> /*channels*/,
                                   Deadline /*deadline*/) override {
    // Not made present in advance: few calls use all of it, and that would dominate a rank's start.
    // A fresh memfd is zero, the initial value of flagged lines and counters.
    co_return memory().allocate(layout.total_bytes, window::Backing::on_demand);
  }
  Task<Result<void*>> make_control(EventLoop& /*loop*/, std::size_t bytes, std::size_t offset,
                                   std::vector<std::byte> part, Deadline /*deadline*/) override {
    ORIEL_CO_TRY(void* const made, memory().allocate(bytes));
    std::memcpy(static_cast<std::byte*>(made) + offset, part.data(), part.size());
    co_return made;
  }
  Result<std::unique_ptr<NoticeMemory>> make_notice_memory() override {
    return std::unique_ptr<NoticeMemory>(std::make_unique<HostNoticeMemory>());
  }
  Result<std::unique_ptr<Executor>> make_executor(const CtaBudget::Facts& /*facts*/,
                                                  GraphOrder /*order*/, bool /*marks*/) override {
    return std::unique_ptr<Executor>(std::make_unique<HostExecutor>());
  }
  Result<std::unique_ptr<PooledWindowSink>> make_window_sink(const TeamFacts& facts) override {
    auto windows = shadow::host_pool(sizeof(device::WindowObject), alignof(device::WindowObject));
    auto tables = shadow::host_pool(PooledWindowSink::table_bytes(facts.world_size), 64);
    return PooledWindowSink::make(std::move(windows), std::move(tables), facts);
  }
  Result<std::shared_ptr<shadow::ShadowPool>> object_pool(std::size_t bytes,
                                                          std::size_t alignment) override {
    return shadow::host_pool(bytes, alignment);
  }
  Result<std::unique_ptr<net::Mlx5Memory>> make_adapter_memory() override {
    return std::unique_ptr<net::Mlx5Memory>(std::make_unique<net::Mlx5HostMemory>());
  }
  Result<NicMemory> make_nic_memory(std::shared_ptr<net::NicProcess> /*process*/) override {
    return NicMemory();
  }
};

}  // namespace

Device& host_device() {
  static HostDevice* const device =
      new HostDevice;  // never destroyed: communicators may outlive static objects
  return *device;
}

}  // namespace oriel::comm
