// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "base/process_memory.hpp"

#include "base/system_table.hpp"

namespace oriel {

bool read_process_memory(pid_t pid, std::byte* to, const std::byte* from, std::size_t bytes) {
  while (bytes > 0) {
    const iovec here{to, bytes};
    const iovec there{const_cast<std::byte*>(from), bytes};
    const ssize_t copied = sys().process_vm_readv(pid, &here, 1, &there, 1, 0);
    if (copied <= 0) return false;
    to += copied;
    from += copied;
    bytes -= static_cast<std::size_t>(copied);
  }
  return true;
}

}  // namespace oriel
