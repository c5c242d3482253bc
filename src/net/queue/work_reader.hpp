// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "net/queue/syndrome.hpp"
#include "net/queue/work_request.hpp"

namespace oriel::net {

/// Takes entries of a send queue apart as an adapter does, and more strictly: whatever does not
/// stand in the format is an error here. Written from the format's description alone; it has no
/// line in common with the device headers that produce entries.
///
/// Every block is copied once and then looked at, so that a ring that changes meanwhile (a hostile
/// or broken producer) cannot be taken for two things. The caller has acquired the doorbell.
/// Not thread-safe; never fails, never allocates but for inline bytes.
class WorkReader {
 public:
  /// What stands at an index: `work`, or why it is none.
  struct Entry {
    Syndrome syndrome = Syndrome::none;
    Complaint complaint = Complaint::none;
    /// Index, opcode and blocks are set also where there is a syndrome; the blocks are then as many
    /// as the entry seems to have, 1 to those that were rung.
    WorkRequest work;
  };

  /// `ring` has `depth` blocks (a power of two) and outlives the reader.
  WorkReader(const std::byte* ring, std::uint32_t depth, std::uint32_t queue)
      : ring_(ring), depth_(depth), queue_(queue) {}

  /// `rung`: one past the last block that the doorbell told of; index < rung.
  Entry read(std::uint64_t index, std::uint64_t rung);

 private:
  static constexpr std::uint32_t kMostParts = 63;
  /// The fields of the control segment.
  struct Control {
    std::uint8_t modifier = 0;
    std::uint16_t index = 0;
    std::uint8_t opcode = 0;
    std::uint32_t queue = 0;
    std::uint32_t parts = 0;
    std::uint8_t flags = 0;
    std::uint32_t immediate = 0;
    bool has_strange_bits = false;
  };

  void copy_block(std::uint64_t index, std::uint32_t to);
  Control control() const;
  Complaint check_place(const Control& control, std::uint64_t index) const;
  static Complaint read_flags(const Control& control, WorkRequest& work);
  Complaint read_body(const Control& control, WorkRequest& work) const;
  Complaint read_remote(WorkRequest& work) const;
  Complaint read_transfer(const Control& control, WorkRequest& work) const;
  Complaint read_inline(const Control& control, WorkRequest& work) const;
  Complaint read_plain_atomic(const Control& control, WorkRequest& work) const;
  Complaint read_masked_atomic(const Control& control, WorkRequest& work) const;
  void read_local(std::uint32_t at, WorkRequest& work) const;

  const std::byte* ring_;
  std::uint32_t depth_;
  std::uint32_t queue_;
  std::array<std::byte, 1024> copy_{};
};

}  // namespace oriel::net
