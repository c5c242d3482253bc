// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <sys/types.h>

#include "oriel/error.hpp"

#include "base/bytes.hpp"
#include "base/deadline.hpp"
#include "base/fd.hpp"

/// Messages with a descriptor or none, by a SOCK_SEQPACKET socket between two processes.
namespace oriel::net {

/// Has every message that is received from now on say who has sent it.
Status show_senders(const OwnedFd& socket);

/// Waits until it is sent. The descriptor, if there is one, stays the caller's too.
Status send_nic_message(const OwnedFd& socket, ByteView message, const OwnedFd* descriptor,
                        Deadline deadline);

struct NicMessage {
  enum class Outcome : std::uint8_t { none, arrived, closed };
  Outcome outcome = Outcome::none;
  Bytes bytes;
  OwnedFd descriptor;
  pid_t sender = 0;              ///< as the kernel says, after show_senders(); 0: it has not said
  bool cut = false;              ///< it was longer, or brought more descriptors
  bool lost_descriptor = false;  ///< this process had no room for the one that it brought
};
/// Does not wait.
Result<NicMessage> receive_nic_message(const OwnedFd& socket);

/// Waits until there is something to receive, or the other end has gone.
Status await_nic_message(const OwnedFd& socket, Deadline deadline);

}  // namespace oriel::net
