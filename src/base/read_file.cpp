// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "base/read_file.hpp"

#include <algorithm>
#include <cerrno>

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include "base/deadline.hpp"
#include "base/fd.hpp"
#include "base/system_table.hpp"

namespace oriel {
namespace {

/// Returns the poll() events of a pipe that has yielded no bytes. There are none while no process
/// has opened it for writing; POLLHUP comes once all writers have closed it.
short events_of(int fd) {
  pollfd ready{fd, POLLIN, 0};
  static_cast<void>(sys().poll(&ready, 1, 0));
  return ready.revents;
}

}  // namespace

Result<std::string> read_file(const std::string& path, const ReadLimits& limits) {
  const Deadline deadline = Deadline::after(limits.timeout);
  // O_NONBLOCK: a pipe without a writer, or a terminal, must not block forever.
  const OwnedFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  if (!fd) return system_error(fmt::format("opening {}", path));
  struct stat facts {};
  if (sys().fstat(fd.get(), &facts) != 0) return system_error(fmt::format("asking about {}", path));
  const bool known_as_too_large =
      S_ISREG(facts.st_mode) && static_cast<std::uintmax_t>(facts.st_size) > limits.bytes;
  std::size_t came = 0;
  std::size_t line = 1;  // line in which the received bytes end
  const auto too_large = [&] {
    const std::string size = known_as_too_large ? fmt::format("{}", facts.st_size)
                                                : fmt::format("more than {}", limits.bytes);
    return Error(ErrorCode::invalid_argument,
                 fmt::format("line {}: {} has {} bytes, at most {} are read", line, path, size,
                             limits.bytes))
        .with_hint("name a smaller file");
  };
  std::string text;
  std::string part(std::size_t{64} << 10, '\0');
  for (;;) {
    const ssize_t got = ::read(fd.get(), part.data(), part.size());
    const int status = errno;
    if (got == 0 && known_as_too_large) return too_large();  // the file has shrunk meanwhile
    const bool may_begin = limits.no_writer != NoWriter::means_empty && got == 0 && came == 0 &&
                           S_ISFIFO(facts.st_mode);
    const short there = may_begin ? events_of(fd.get()) : short{0};
    if (may_begin && there == 0 && limits.no_writer == NoWriter::is_refused) {
      return Error(ErrorCode::invalid_argument,
                   fmt::format("{} is a pipe that nobody has open to write", path))
          .with_hint("open the pipe to write before it is read, or name a file");
    }
    const bool nobody_left = there != 0 && (there & POLLIN) == 0;
    if (got == 0 && (!may_begin || nobody_left)) return text;
    if (got < 0 && status != EAGAIN && status != EINTR) {
      return system_error(fmt::format("reading {}", path), status);
    }
    if (got > 0) {
      const std::size_t fit = std::min(static_cast<std::size_t>(got), limits.bytes - came);
      const auto end = part.begin() + static_cast<std::ptrdiff_t>(fit);
      line += static_cast<std::size_t>(std::count(part.begin(), end, '\n'));
      came += fit;
      if (fit < static_cast<std::size_t>(got)) return too_large();
      if (!known_as_too_large) text.append(part, 0, fit);
    }
    const TimePoint now = std::chrono::steady_clock::now();
    if (deadline.expired(now)) {
      return Error(ErrorCode::timeout, fmt::format("{} has not ended within {} ms; {} bytes came",
                                                   path, limits.timeout.count(), came));
    }
    if (got > 0 || there != 0) continue;
    pollfd ready{fd.get(), POLLIN, 0};
    const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline.remaining(now));
    static_cast<void>(sys().poll(&ready, 1, static_cast<int>(left.count())));
  }
}

}  // namespace oriel
