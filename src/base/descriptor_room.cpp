// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "base/descriptor_room.hpp"

#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/single_threaded.h>

#include "base/fd.hpp"
#include "base/system_table.hpp"

namespace oriel {

void make_room_for_descriptors() {
  if (!__libc_single_threaded) return;
  constexpr int kLastDescriptor = 511;
  const OwnedFd any(sys().eventfd(0, EFD_CLOEXEC));
  if (!any) return;
  // Closed at once; the table keeps its size. Refused where RLIMIT_NOFILE is lower.
  static_cast<void>(OwnedFd(sys().fcntl_int(any.get(), F_DUPFD_CLOEXEC, kLastDescriptor)));
}

}  // namespace oriel
