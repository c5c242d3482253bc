// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

namespace oriel::net {

/// Why an entry was not executed, as mlx5's completions with an error say it.
enum class Syndrome : std::uint8_t {
  none = 0,
  local_length = 0x01,      ///< longer than a message can be, or not what the operation takes
  local_operation = 0x02,   ///< the entry makes no sense
  local_protection = 0x04,  ///< key, range or right of the local buffer
  flushed = 0x05,           ///< not executed: the queue had failed before
  remote_invalid = 0x12,    ///< the peer cannot do this, as with an atomic that is not aligned
  remote_access = 0x13,     ///< key, range or right at the peer
  remote_operation = 0x14,
  transport_retry = 0x15,  ///< the peer did not answer
  receiver_retry = 0x16,   ///< the peer had no room for what it must be told of
  /// Between software NICs alone: remote_access, as the key was good and has been given back. Told
  /// as remote_access with Complaint::given_back.
  remote_gone = 0x93,
};

/// What the software NIC has to say beside a syndrome, in the byte for the vendor: which of its
/// checks failed. 0 where the syndrome says it all.
enum class Complaint : std::uint8_t {
  none = 0,
  wrong_index = 1,      ///< the entry is that of another index: not written, or written too late
  wrong_queue = 2,      ///< the entry is that of another queue
  wrong_size = 3,       ///< a number of parts that the operation does not have
  not_rung = 4,         ///< the entry goes on behind what the doorbell told of
  wrong_opcode = 5,     ///< not an operation of this NIC
  wrong_modifier = 6,   ///< of the opcode
  wrong_flags = 7,      ///< fence and completion flags that do not exist
  reserved_bits = 8,    ///< not zero where the format has nothing
  inline_length = 9,    ///< of bytes in the entry: not as many as its size says
  data_length = 10,     ///< of an atomic's result, or longer than a message can be
  record_behind = 11,   ///< the doorbell was rung before the record was written
  wrong_doorbell = 12,  ///< the doorbell tells of more than the ring holds
  no_copies = 14,       ///< the GPU's copy engine does not work any more
  given_back = 15,      ///< the peer has given back the key, which was good before
};

}  // namespace oriel::net
