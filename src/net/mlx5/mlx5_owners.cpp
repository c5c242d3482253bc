// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "net/mlx5/mlx5_owners.hpp"

#include <fmt/format.h>

namespace oriel::net {
namespace {

const char* hint_for(int status) {
  switch (status) {
    case EPERM:
    case EACCES:
      return "the process needs access to /dev/infiniband/uverbs* (in a container: the device and "
             "its permissions)";
    case ENOMEM:
      return "raise the limit on locked memory (ulimit -l unlimited), or use fewer or shorter "
             "queues";
    case EFAULT:
      return "for memory of a GPU load nvidia-peermem, or use a kernel and driver with dma-buf";
    case EOPNOTSUPP:
      return "install a newer rdma-core and kernel; DevX has to be enabled for the adapter";
    case ENODEV:
    case EIO:
      return "the adapter is gone or was reset; see the kernel's log";
    case EREMOTEIO:
    case EINVAL:
      return "the adapter's firmware refused the command: mind its status and syndrome, and "
             "whether "
             "its firmware is up to date";
    case ETIMEDOUT:
    case EHOSTUNREACH:
    case ENETUNREACH:
      return "the peer's address does not answer: are both ports in one network, with the same "
             "kind "
             "of GID?";
    default:
      return "";
  }
}

}  // namespace

Error mlx5_error(const Mlx5Place& place, std::string_view call, std::string_view purpose,
                 int status, const mlx5::Answer& answer) {
  std::string what = fmt::format("{} port {}: {} ({})", place.device, place.port, call, purpose);
  if (!answer.good()) {
    what +=
        fmt::format(" with status {:#04x} and syndrome {:#010x}", answer.status, answer.syndrome);
  }
  Error error = status != 0 ? system_error(what, status)
                            : Error(ErrorCode::system, what + " was refused by the adapter");
  const std::string_view hint = hint_for(status != 0 ? status : EREMOTEIO);
  if (!hint.empty()) return std::move(error).with_hint(std::string(hint));
  return error;
}

}  // namespace oriel::net
