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

/// Says, once in this process, that and why the NICs of GPUs have no process of their own.
void warn_of_no_nic_process(const Error& why);

/// The process that copies for the NICs of one GPU: there is one while anybody holds it.
/// Thread-safe.
class NicProcessStarter {
 public:
  /// The one that runs, or a new one, which may have yet to become ready. Null where the settings
  /// want none, or none can be started, of which it warns.
  std::shared_ptr<net::NicProcess> begin(int device, std::vector<int> cpus,
                                         const Settings& settings);

 private:
  static Result<std::shared_ptr<net::NicProcess>> start(int device, std::vector<int> cpus,
                                                        const Settings& settings);
  std::mutex mutex_;
  std::weak_ptr<net::NicProcess> process_;
};

}  // namespace oriel::comm
