// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/device/nic_process_starter.hpp"

#include <atomic>

#include "base/log.hpp"

namespace oriel::comm {

void warn_of_no_nic_process(const Error& why) {
  static std::atomic<bool> said{false};
  if (said.exchange(true)) return;
  Log().warn(
      "a thread of this process copies bytes of GPUs between nodes ({}). While a kernel waits for "
      "them, a call that frees memory or waits for the device may deadlock; hint: "
      "remove the cause in parentheses; ORIEL_NIC_PROCESS=0 chooses this without a warning",
      why.to_string());
}

}  // namespace oriel::comm
