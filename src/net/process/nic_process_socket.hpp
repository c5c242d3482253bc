// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include <sys/types.h>

#include "oriel/error.hpp"

#include "base/bytes.hpp"
#include "base/deadline.hpp"
#include "base/fd.hpp"

/// Messages with at most one descriptor over a SOCK_SEQPACKET socket between two processes.
namespace oriel::net {

/// Has the kernel attach the sender to every message received from now on.
Status show_senders(const OwnedFd& socket);

/// Sends a message and waits until it is sent. The caller keeps the descriptor.
Status send_nic_message(const OwnedFd& socket, ByteView message, const OwnedFd* descriptor,
                        Deadline deadline);

struct NicMessage {
  enum class Outcome : std::uint8_t { none, arrived, closed };
  Outcome outcome = Outcome::none;
  Bytes bytes;
  OwnedFd descriptor;
  pid_t sender = 0;              ///< from the kernel, after show_senders(); 0: unknown
  bool cut = false;              ///< too long, more than one descriptor, or a lost descriptor
  bool lost_descriptor = false;  ///< this process had no room for the descriptor
};
/// Receives a message if there is one; does not wait.
Result<NicMessage> receive_nic_message(const OwnedFd& socket);

/// Waits until there is a message, or the other end is closed.
Status await_nic_message(const OwnedFd& socket, Deadline deadline);

}  // namespace oriel::net
