// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "net/queue/syndrome.hpp"
#include "net/queue/work_request.hpp"

namespace oriel::net {

/// Decodes WQEs of a send queue as an adapter does, but more strictly: anything outside the format
/// is an error. It is written from the format's description alone. It shares no code with the
/// device headers that produce WQEs.
///
/// Each WQEBB is copied once, and only the copy is parsed. Hence a hostile or broken producer that
/// changes the ring meanwhile cannot make two checks see different bytes. The caller has acquired
/// the doorbell. Not thread-safe. Never fails, and allocates only for inline bytes.
class WorkReader {
 public:
  /// The WQE at an index, or the reason why it is invalid.
  struct Wqe {
    Syndrome syndrome = Syndrome::none;
    Complaint complaint = Complaint::none;
    /// Index, opcode and `wqebbs` are set even if there is a syndrome. If so, `wqebbs` is the WQE's
    /// apparent size, from 1 to the number that was rung.
    WorkRequest work;
  };

  /// `ring` has `depth` WQEBBs (a power of two) and outlives the reader.
  WorkReader(const std::byte* ring, std::uint32_t depth, std::uint32_t queue)
      : ring_(ring), depth_(depth), queue_(queue) {}

  /// Decodes the WQE at `index`. `rung` is one past the last WQEBB that the doorbell announced;
  /// index < rung.
  Wqe read(std::uint64_t index, std::uint64_t rung);

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

  void copy_wqebb(std::uint64_t index, std::uint32_t to);
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
