// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "base/read_file.hpp"

#include <cerrno>

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include "base/deadline.hpp"
#include "base/fd.hpp"
#include "base/system_table.hpp"

namespace oriel {

Result<std::string> read_file(const std::string& path, const ReadLimits& limits) {
  const Deadline deadline = Deadline::after(limits.patience);
  // So that a pipe which nobody writes to, or a terminal, does not hold this up for ever.
  const OwnedFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (!fd) return system_error(fmt::format("opening {}", path));
  struct stat facts {};
  if (sys().fstat(fd.get(), &facts) != 0) return system_error(fmt::format("asking about {}", path));
  const auto too_large = [&](const std::string& size) {
    return Error(ErrorCode::invalid_argument,
                 fmt::format("{} has {} bytes, at most {} are read", path, size, limits.bytes));
  };
  if (S_ISREG(facts.st_mode) && static_cast<std::uintmax_t>(facts.st_size) > limits.bytes) {
    return too_large(fmt::format("{}", facts.st_size));
  }
  std::string text;
  std::string part(std::size_t{64} << 10, '\0');
  for (;;) {
    const ssize_t got = ::read(fd.get(), part.data(), part.size());
    const int status = errno;
    if (got == 0) return text;
    if (got < 0 && status != EAGAIN && status != EINTR) {
      return system_error(fmt::format("reading {}", path), status);
    }
    if (got > 0) {
      text.append(part, 0, static_cast<std::size_t>(got));
      if (text.size() > limits.bytes) return too_large(fmt::format("more than {}", limits.bytes));
    }
    const TimePoint now = std::chrono::steady_clock::now();
    if (deadline.expired(now)) {
      return Error(ErrorCode::timeout, fmt::format("{} has not ended within {} ms; {} bytes came",
                                                   path, limits.patience.count(), text.size()));
    }
    if (got > 0) continue;
    pollfd ready{fd.get(), POLLIN, 0};
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline.remaining(now));
    static_cast<void>(sys().poll(&ready, 1, static_cast<int>(left.count())));
  }
}

}  // namespace oriel
