// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "net/mlx5/nic_mlx5.hpp"

#include <utility>

#include <fmt/format.h>

#include "base/try.hpp"

namespace oriel::net {

NicMlx5::NicMlx5(std::shared_ptr<const Mlx5Device> device, const Options& options)
    : device_(std::move(device)),
      doorbells_(std::make_shared<Mlx5Doorbells>(device_)),
      begin_(options.begin),
      mutex_(std::make_unique<std::mutex>()) {}

Result<NicMlx5> NicMlx5::open(const Options& options) {
  ORIEL_TRY(std::shared_ptr<const Mlx5Device> device, Mlx5Device::open(options.device));
  const char* layer =
      device->port().link_layer() == LinkLayer::ethernet ? "Ethernet" : "InfiniBand";
  Log().info("opened {} port {} ({}, GID {})", device->place().device, device->place().port, layer,
             device->port().gid_index());
  return NicMlx5(std::move(device), options);
}

Result<Mlx5Region> NicMlx5::register_memory(Mlx5Memory& memory, void* address, std::size_t bytes,
                                            std::uint8_t access) const {
  if (bytes == 0 || bytes > UINT64_MAX - reinterpret_cast<std::uint64_t>(address)) {
    return Error(ErrorCode::invalid_argument,
                 fmt::format("{} port {}: registering {} bytes at {}: 1 byte up to the end of the "
                             "address space are possible",
                             device_->place().device, device_->place().port, bytes, address))
        .with_hint("pass the size of the memory in bytes");
  }
  ORIEL_TRY(const Mlx5Export at, memory.export_range(address, bytes));
  ORIEL_TRY(Mlx5RegionOwner region, device_->register_memory(address, bytes, at, access));
  return Mlx5Region(device_, std::move(region));
}

Result<std::vector<Mlx5Queue>> NicMlx5::create_queues(Mlx5Memory& memory,
                                                      std::span<const Mlx5Queue::Options> options) {
  std::vector<Mlx5Queue> queues;
  queues.reserve(options.size());
  for (const Mlx5Queue::Options& each : options) {
    ORIEL_TRY(Mlx5Queue queue, Mlx5Queue::create(device_, memory, *doorbells_, each));
    queues.push_back(std::move(queue));
  }
  ORIEL_CHECK(start_thread_if_needed());
  return queues;
}

Status NicMlx5::start_thread_if_needed() {
  if (!doorbells_->need_processor()) return {};
  const std::lock_guard lock(*mutex_);
  if (thread_) return {};
  NicThread::Options options;
  options.progress = [doorbells = doorbells_] { return doorbells->progress(); };
  options.begin = begin_;
  ORIEL_TRY(thread_, NicThread::start(std::move(options)));
  return {};
}

}  // namespace oriel::net
