// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "base/write_file.hpp"

#include <cerrno>
#include <cstddef>
#include <cstdio>

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/fd.hpp"
#include "base/process_number.hpp"
#include "base/system_table.hpp"

namespace oriel {
namespace {

Status write_all(const OwnedFd& file, const std::string& path, const std::string& text) {
  for (std::size_t done = 0; done < text.size();) {
    const ssize_t put = ::write(file.get(), text.data() + done, text.size() - done);
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) return system_error(fmt::format("writing {}", path));
    done += static_cast<std::size_t>(put);
  }
  return {};
}

/// Writes to a link's target, or to a device such as /dev/stdout, in place. Refuses pipes and
/// sockets: if the reader had gone, a signal would end the process.
Status write_in_place(const std::string& path, const std::string& text) {
  struct stat facts {};
  const bool there = ::stat(path.c_str(), &facts) == 0;
  if (there && (S_ISFIFO(facts.st_mode) || S_ISSOCK(facts.st_mode))) {
    return Error(ErrorCode::invalid_usage, fmt::format("writing {}: it is a pipe or socket", path))
        .with_hint("name a file");
  }
  constexpr int kFlags = O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NONBLOCK | O_NOCTTY;
  const OwnedFd file(::open(path.c_str(), kFlags, 0666));
  if (!file) return system_error(fmt::format("writing {}", path));
  return write_all(file, path, text);
}

}  // namespace

Status replace_file(const std::string& path, const std::string& text) {
  // Not named by pid: writers in several PID namespaces, or on several hosts, may share the folder.
  const std::string draft = fmt::format("{}.{:016x}", path, process_number());
  constexpr int kFlags = O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC;
  const OwnedFd file(::open(draft.c_str(), kFlags, 0666));
  if (!file) return system_error(fmt::format("writing {}", path));
  Status written = write_all(file, path, text);
  if (written.ok() && std::rename(draft.c_str(), path.c_str()) != 0) {
    written = system_error(fmt::format("writing {}", path));
  }
  if (!written.ok()) static_cast<void>(std::remove(draft.c_str()));
  return written;
}

Status write_file(const std::string& path, const std::string& text) {
  struct stat facts {};
  const bool there = ::lstat(path.c_str(), &facts) == 0;
  return there && !S_ISREG(facts.st_mode) ? write_in_place(path, text) : replace_file(path, text);
}

}  // namespace oriel
