// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <mutex>
#include <vector>

#include "oriel/error.hpp"

#include "base/settings.hpp"
#include "net/process/nic_process.hpp"

namespace oriel::comm {

/// Warns, once per process, that GPU NICs have no separate process, and why.
void warn_of_no_nic_process(const Error& why);

/// Starts the process that copies for the NICs of one GPU. The process lives while it has a holder.
/// Thread-safe.
class NicProcessStarter {
 public:
  /// Returns the running process, or a new one, which may not be ready yet. Returns null if the
  /// settings disable it. Returns null after a warning if the process cannot be started.
  std::shared_ptr<net::NicProcess> begin(int device, std::vector<int> cpus,
                                         const Settings& settings);

 private:
  static Result<std::shared_ptr<net::NicProcess>> start(int device, std::vector<int> cpus,
                                                        const Settings& settings);
  std::mutex mutex_;
  std::weak_ptr<net::NicProcess> process_;
};

}  // namespace oriel::comm
