// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
// oriel-nic: copies data for the software NICs of a rank in a separate process, started by the
// library.
#include <cstdio>
#include <cstring>

#include <fcntl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/log.hpp"
#include "common/command_line.hpp"
#include "net/process/nic_server_cuda.hpp"

namespace oriel {
namespace {

constexpr int kSocket = 3;  // descriptor that NicProcess passes on (kChildSocket)

bool is_unix_socket(int fd) {
  int domain = 0;
  socklen_t bytes = sizeof domain;
  return ::getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &bytes) == 0 && domain == AF_UNIX;
}

int run(int argc, char** argv) {
  if (argc != 2 || std::strcmp(argv[1], "serve") != 0 || !is_unix_socket(kSocket)) {
    tools::CommandLine line(
        "oriel-nic",
        "Copies for the software NICs of a rank on a GPU. The library starts it "
        "(ORIEL_NIC_PROGRAM); it is of no use by itself.");
    if (const auto status = line.parse(argc, argv)) return *status;
    return line.misuse("only the library starts this program");
  }
  // Forks, so that the server is no child of the application, which may wait for any child.
  const pid_t other = ::fork();
  if (other < 0) return tools::kExitFailure;
  if (other > 0) ::_exit(0);
  static_cast<void>(::fcntl(kSocket, F_SETFD, FD_CLOEXEC));
  net::NicServer server{OwnedFd(kSocket)};
  const Status ended = server.run();
  if (ended.ok()) return 0;
  Log().info("a software NIC's process ends: {}", ended.error().to_string());
  return tools::kExitFailure;
}

}  // namespace
}  // namespace oriel

int main(int argc, char** argv) {
  return oriel::tools::guarded_main("oriel-nic", [&] { return oriel::run(argc, argv); });
}
