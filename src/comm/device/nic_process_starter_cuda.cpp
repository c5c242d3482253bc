// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <cstring>
#include <utility>

#include "base/cuda_table.hpp"
#include "base/try.hpp"
#include "comm/device/nic_process_starter.hpp"

namespace oriel::comm {

Result<std::shared_ptr<net::NicProcess>> NicProcessStarter::start(int device, std::vector<int> cpus,
                                                                  const Settings& settings) {
  net::NicProcess::Options options;
  ORIEL_TRY(options.program, net::NicProcess::find_program(settings.nic_program));
  CUuuid uuid{};
  ORIEL_CHECK(cuda_status("reading a device's UUID", cuda().device_get_uuid(&uuid, device)));
  static_assert(sizeof uuid.bytes == std::tuple_size_v<net::GpuUuid>);
  std::memcpy(options.gpu.data(), uuid.bytes, options.gpu.size());
  options.cpus = std::move(cpus);
  return net::NicProcess::start(options);
}

std::shared_ptr<net::NicProcess> NicProcessStarter::begin(int device, std::vector<int> cpus,
                                                          const Settings& settings) {
  if (!settings.nic_process) return nullptr;
  const std::lock_guard lock(mutex_);
  // Replaces a process that has died.
  auto running = process_.lock();
  if (running != nullptr && running->poll().ok()) return running;
  auto started = start(device, std::move(cpus), settings);
  if (!started.ok()) {
    warn_of_no_nic_process(started.error());
    return nullptr;
  }
  process_ = started.value();
  return std::move(started).value();
}

}  // namespace oriel::comm
