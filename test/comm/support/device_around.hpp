// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "comm/device/device.hpp"
#include "comm/device/window_sink.hpp"

/// A device whose executor runs nothing and logs each request.
namespace oriel::test {

/// Log of the requests to executors, and the simulated state of their device.
struct ExecutorScript {
  std::atomic<bool> is_busy{false};    ///< enqueued work has not ended
  std::atomic<bool> has_graph{false};  ///< a graph holds a call

  void note(std::string text) {
    const std::lock_guard lock(mutex_);
    notes_.push_back(std::move(text));
  }
  std::vector<std::string> take_notes() {
    const std::lock_guard lock(mutex_);
    return std::exchange(notes_, {});
  }

 private:
  std::mutex mutex_;
  std::vector<std::string> notes_;
};

/// Executor that only logs. A stream's name is the character whose code its pointer holds.
class ScriptedExecutor final : public comm::Executor {
 public:
  ScriptedExecutor(ExecutorScript& script, std::string name)
      : script_(script), name_(std::move(name)) {}

  Status check_stream(void* /*stream*/) override { return {}; }
  Status check_joined(const std::vector<void*>& /*streams*/) override { return {}; }
  Status join_streams(void* first, const std::vector<void*>& streams) override {
    return note(fmt::format("joins {} at {}", names_of(streams), names_of({first})));
  }
  Status release_streams(void* last, const std::vector<void*>& streams) override {
    return note(fmt::format("releases {} from {}", names_of(streams), names_of({last})));
  }
  Status run(const kernels::Plan&, const kernels::AllReduceArguments&, void* stream) override {
    return note("reduces on " + names_of({stream}));
  }
  Status run_hierarchy(const kernels::HierarchyArguments&, void* stream) override {
    return note("gathers on " + names_of({stream}));
  }
  Status run_exchange(comm::ExchangeCall& call) override {
    return note("exchanges on " + names_of({call.stream}));
  }
  void pass_over(kernels::CallRecord&, const kernels::CollectiveCall&) override {}
  Status drain(Deadline deadline) override {
    while (script_.is_busy) {
      if (deadline.expired(SteadyClock::instance().now())) {
        return Error(ErrorCode::timeout, "the device is busy");
      }
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    return {};
  }
  bool is_in_use() override { return script_.is_busy || script_.has_graph; }

 private:
  static std::string names_of(const std::vector<void*>& streams) {
    std::string names;
    for (void* const stream : streams) {
      names += static_cast<char>(reinterpret_cast<std::uintptr_t>(stream));
    }
    return names;
  }
  Status note(const std::string& what) {
    script_.note(name_ + " " + what);
    return {};
  }

  ExecutorScript& script_;
  std::string name_;
};

/// Forwards calls to `below`, except that its executors are scripted. begin_nic_process() is not
/// forwarded, and returns null.
class DeviceAround final : public comm::Device {
 public:
  DeviceAround(comm::Device& below, ExecutorScript& script, std::string name)
      : below_(below), script_(script), name_(std::move(name)) {}

  kernels::Backend backend() const override { return below_.backend(); }
  int ordinal() const override { return below_.ordinal(); }
  window::Memory& memory() override { return below_.memory(); }
  Result<topo::RankInfo> rank_info(const topo::NodeIdentity& node, const Settings& settings,
                                   topo::Wanted wanted) override {
    return below_.rank_info(node, settings, wanted);
  }
  Task<Result<void*>> make_scratch(EventLoop& loop, kernels::ScratchLayout layout,
                                   kernels::HierarchyLayout hierarchy,
                                   std::vector<kernels::ChannelLayout> channels,
                                   Deadline deadline) override {
    return below_.make_scratch(loop, layout, hierarchy, std::move(channels), deadline);
  }
  Task<Result<void*>> make_control(EventLoop& loop, std::size_t bytes, std::size_t offset,
                                   std::vector<std::byte> part, Deadline deadline) override {
    return below_.make_control(loop, bytes, offset, std::move(part), deadline);
  }
  Result<std::unique_ptr<comm::NoticeMemory>> make_notice_memory() override {
    return below_.make_notice_memory();
  }
  Result<std::unique_ptr<comm::Executor>> make_executor(const comm::CtaBudget::Facts& /*facts*/,
                                                        comm::GraphOrder /*order*/,
                                                        bool /*marks*/) override {
    return std::unique_ptr<comm::Executor>(std::make_unique<ScriptedExecutor>(script_, name_));
  }
  Result<std::unique_ptr<comm::PooledWindowSink>> make_window_sink(
      const comm::TeamFacts& facts) override {
    return below_.make_window_sink(facts);
  }
  Result<std::shared_ptr<shadow::ShadowPool>> object_pool(std::size_t bytes,
                                                          std::size_t alignment) override {
    return below_.object_pool(bytes, alignment);
  }
  Result<comm::NicMemory> make_nic_memory(std::shared_ptr<net::NicProcess> process) override {
    return below_.make_nic_memory(std::move(process));
  }
  Result<std::unique_ptr<net::Mlx5Memory>> make_adapter_memory() override {
    return below_.make_adapter_memory();
  }

 private:
  comm::Device& below_;
  ExecutorScript& script_;
  std::string name_;
};

}  // namespace oriel::test
