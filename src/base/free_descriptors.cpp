// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "base/free_descriptors.hpp"

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <iterator>
#include <system_error>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/eventfd.h>
#include <sys/resource.h>
#include <sys/single_threaded.h>

#include "base/fd.hpp"
#include "base/system_table.hpp"

namespace oriel {

void grow_descriptor_table() {
  if (!__libc_single_threaded) return;
  constexpr int kLastDescriptor = 511;
  const OwnedFd any(sys().eventfd(0, EFD_CLOEXEC));
  if (!any) return;
  // Closed at once; the table keeps its size. Fails if RLIMIT_NOFILE is lower.
  static_cast<void>(OwnedFd(sys().fcntl_int(any.get(), F_DUPFD_CLOEXEC, kLastDescriptor)));
}

std::optional<std::uint64_t> raise_descriptor_limit(std::uint64_t needed) {
  constexpr rlim_t kMost = 65'536;
  // Estimated descriptors of the application; its highest number does not give their count.
  constexpr rlim_t kForOthers = 128;
  rlimit files{};
  if (sys().getrlimit(RLIMIT_NOFILE, &files) != 0) return std::nullopt;
  const rlim_t before = files.rlim_cur;
  const rlim_t most = std::min(files.rlim_max, kMost);
  // All numbers below the next free one are in use.
  const OwnedFd next(sys().eventfd(0, EFD_CLOEXEC));
  const rlim_t taken = next.valid() ? static_cast<rlim_t>(next.get()) : before;
  const rlim_t wanted =
      std::max(static_cast<rlim_t>(OwnedFd::owned()) + kForOthers, taken) + needed;
  if (wanted <= before || before >= most) return std::nullopt;
  files.rlim_cur = most;
  if (sys().setrlimit(RLIMIT_NOFILE, &files) != 0) return std::nullopt;
  least_descriptor.store(static_cast<int>(before), std::memory_order_relaxed);
  return most;
}

Status check_free_descriptors(std::uint64_t needed) {
  raise_descriptor_limit(needed);
  rlimit files{};
  if (sys().getrlimit(RLIMIT_NOFILE, &files) != 0) return {};
  std::error_code failure;
  std::uint64_t open = 0;
  std::filesystem::directory_iterator at("/proc/self/fd", failure);
  for (; !failure && at != std::filesystem::directory_iterator(); at.increment(failure)) ++open;
  const bool fits = failure.value() != EMFILE && open + needed <= files.rlim_cur;
  if ((failure && failure.value() != EMFILE) || fits) return {};
  return system_error(fmt::format("making room for {} descriptors", needed), EMFILE);
}

}  // namespace oriel
