// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <cstring>
#include <map>
#include <mutex>

#include <unistd.h>

#include "oriel/device/window.hpp"

#include "comm/device.hpp"
#include "kernels/all_reduce_host.hpp"
#include "window/memory_host.hpp"

namespace oriel::comm {
namespace {

class HostNoticeBoard final : public NoticeBoard {
 public:
  Notices& host() override { return notices_; }
  Notices* on_device() override { return &notices_; }

 private:
  alignas(64) Notices notices_;
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
    // Two calls of one communicator share its scratch; the second thread waits here.
    const std::lock_guard lock(mutex_);
    kernels::run_all_reduce_on_host(plan.algorithm, arguments);
    return {};
  }
  Status drain(Deadline /*deadline*/) override { return {}; }

 private:
  std::mutex mutex_;
};

/// Window objects in host memory. They share one table of LSA indices.
class HostWindowSink final : public window::WindowSink {
 public:
  explicit HostWindowSink(const TeamFacts& facts)
      : facts_(facts), lsa_index_of_(static_cast<std::size_t>(facts.world_size), -1) {
    for (std::size_t i = 0; i < facts.members.size(); ++i) {
      lsa_index_of_[static_cast<std::size_t>(facts.members[i])] = static_cast<std::int32_t>(i);
    }
  }

  Result<void*> create(const window::WindowFacts& facts) override {
    auto object = std::make_unique<device::WindowObject>();
    object->flat_base = reinterpret_cast<char*>(facts.window.flat_base) + facts.window.slot_offset;
    object->lsa_rank = facts_.index;
    object->world_rank = facts_.world_rank;
    object->stride_4g = static_cast<std::uint32_t>(facts.slot_bytes >> 32);
    object->magic = device::kWindowMagic;
    object->version = device::kWindowVersion;
    object->size_bytes = facts.window.bytes;
    object->world_size = facts_.world_size;
    object->lsa_size = static_cast<std::int32_t>(facts_.members.size());
    object->lsa_index_of = lsa_index_of_.data();
    const std::lock_guard lock(mutex_);
    void* const handle = object.get();
    objects_.emplace(handle, std::move(object));
    return handle;
  }
  void destroy(void* handle) noexcept override {
    const std::lock_guard lock(mutex_);
    objects_.erase(handle);
  }

 private:
  TeamFacts facts_;
  std::vector<std::int32_t> lsa_index_of_;
  std::mutex mutex_;
  std::map<void*, std::unique_ptr<device::WindowObject>> objects_;
};

class HostDevice final : public Device {
 public:
  kernels::Backend backend() const override { return kernels::Backend::host; }
  int ordinal() const override { return -1; }
  window::Memory& memory() override { return window::host_memory(); }
  std::size_t memory_bytes() const override {
    const long pages = ::sysconf(_SC_PHYS_PAGES);
    const long page_bytes = ::sysconf(_SC_PAGESIZE);
    return static_cast<std::size_t>(pages) * static_cast<std::size_t>(page_bytes);
  }
  int max_ctas(int /*ranks_here*/) const override { return 1; }

  Result<topo::RankInfo> rank_info(const topo::NodeIdentity& node) override {
    return topo::host_rank_info(node);
  }
  Status prepare_scratch(std::byte* /*scratch*/, const kernels::ScratchLayout&) override {
    return {};  // a fresh memfd is zero, which is what flagged lines and counters begin with
  }
  Result<std::unique_ptr<NoticeBoard>> make_notice_board() override {
    return std::unique_ptr<NoticeBoard>(std::make_unique<HostNoticeBoard>());
  }
  Result<std::unique_ptr<Executor>> make_executor() override {
    return std::unique_ptr<Executor>(std::make_unique<HostExecutor>());
  }
  Result<std::unique_ptr<window::WindowSink>> make_window_sink(const TeamFacts& facts) override {
    return std::unique_ptr<window::WindowSink>(std::make_unique<HostWindowSink>(facts));
  }
};

}  // namespace

Device& host_device() {
  static HostDevice* const device =
      new HostDevice;  // never destroyed: communicators may outlive us
  return *device;
}

}  // namespace oriel::comm
