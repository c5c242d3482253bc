// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "common/process.hpp"

#include <cstring>
#include <random>

#include <fmt/format.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "base/fd.hpp"

namespace oriel::tools {

std::string signal_name(int signal) {
  const char* abbreviation = sigabbrev_np(signal);
  return abbreviation ? fmt::format("SIG{}", abbreviation) : fmt::format("signal {}", signal);
}

std::string describe_end(int wait_status) {
  if (WIFSIGNALED(wait_status)) {
    const int signal = WTERMSIG(wait_status);
    return fmt::format("was killed by signal {} ({})", signal, signal_name(signal));
  }
  return fmt::format("exited with status {}", WEXITSTATUS(wait_status));
}

int shell_status(int wait_status) {
  return WIFSIGNALED(wait_status) ? 128 + WTERMSIG(wait_status) : WEXITSTATUS(wait_status);
}

Result<std::uint16_t> find_free_port() {
  // Picks a port below Linux's ephemeral ports (32768 on, see ip(7)), which outgoing connections
  // may take before the caller listens. Picks at random because other processes search too.
  constexpr std::uint32_t kFirst = 20'000;
  constexpr std::uint32_t kCount = 12'000;
  std::random_device random;
  for (int attempt = 0; attempt < 100; ++attempt) {
    const OwnedFd fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
    if (!fd) return system_error("finding a free port");
    const auto port = static_cast<std::uint16_t>(kFirst + random() % kCount);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_ANY);
    address.sin_port = htons(port);
    if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0) {
      return port;
    }
  }
  return system_error("finding a free port");
}

Result<std::int64_t> seconds_to_nanoseconds(double seconds, const std::string& option) {
  constexpr double kYear = 365.0 * 86400;
  if (!(seconds >= 0 && seconds <= kYear)) {
    return Error(
        ErrorCode::invalid_argument,
        fmt::format("{} must be between 0 and {} seconds, not {}", option, kYear, seconds));
  }
  return static_cast<std::int64_t>(seconds * 1e9);
}

}  // namespace oriel::tools
