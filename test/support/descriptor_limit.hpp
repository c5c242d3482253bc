// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>

#include <sys/resource.h>

namespace oriel::test {

/// Sets the soft limit of open descriptors to `wanted`, at most the hard limit; restored when
/// destroyed.
class DescriptorLimit {
 public:
  explicit DescriptorLimit(rlim_t wanted) {
    static_cast<void>(::getrlimit(RLIMIT_NOFILE, &before_));
    const rlimit now = {std::min(before_.rlim_max, wanted), before_.rlim_max};
    static_cast<void>(::setrlimit(RLIMIT_NOFILE, &now));
  }
  ~DescriptorLimit() { static_cast<void>(::setrlimit(RLIMIT_NOFILE, &before_)); }
  DescriptorLimit(const DescriptorLimit&) = delete;
  DescriptorLimit& operator=(const DescriptorLimit&) = delete;

 private:
  rlimit before_{};
};

}  // namespace oriel::test
