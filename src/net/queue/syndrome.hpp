// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace oriel::net {

/// Reason why a WQE was not executed: the syndrome in mlx5's error CQEs.
enum class Syndrome : std::uint8_t {
  none = 0,
  local_length = 0x01,      ///< longer than a message can be, or wrong for the operation
  local_operation = 0x02,   ///< the WQE is malformed
  local_protection = 0x04,  ///< key, range or right of the local buffer
  flushed = 0x05,           ///< not executed: the queue had failed before
  remote_invalid = 0x12,    ///< the peer cannot do this; an unaligned atomic, for example
  remote_access = 0x13,     ///< key, range or right at the peer
  remote_operation = 0x14,
  transport_retry = 0x15,  ///< the peer did not answer
  receiver_retry = 0x16,   ///< the peer had no receive posted
  /// Between software NICs only: remote_access to a key that was valid and has been deregistered.
  /// Reported as remote_access with Complaint::deregistered.
  remote_gone = 0x93,
};

/// Detail of a syndrome, in the vendor's byte: the check of the software NIC that failed. 0 if the
/// syndrome is sufficient.
enum class Complaint : std::uint8_t {
  none = 0,
  wrong_index = 1,      ///< the WQE has another index: not written, or written too late
  wrong_queue = 2,      ///< the WQE is for another queue
  wrong_size = 3,       ///< a size that the operation does not have
  not_rung = 4,         ///< the WQE extends beyond what the doorbell announced
  wrong_opcode = 5,     ///< an operation that this NIC does not have
  wrong_modifier = 6,   ///< invalid modifier of the opcode
  wrong_flags = 7,      ///< fence or completion flags that do not exist
  reserved_bits = 8,    ///< bits that the format reserves are not zero
  inline_length = 9,    ///< inline bytes do not match the WQE's size
  data_length = 10,     ///< wrong for an atomic's result, or longer than a message can be
  record_behind = 11,   ///< the doorbell was rung before the record was written
  wrong_doorbell = 12,  ///< the doorbell announces more than the ring holds
  no_copies = 14,       ///< the GPU's copy engine has failed
  deregistered = 15,    ///< the peer has deregistered the key, which was valid before
};

}  // namespace oriel::net
