// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <optional>

#include "base/deadline.hpp"
#include "net/queue/completion_writer.hpp"
#include "net/queue/doorbell_reader.hpp"
#include "net/queue/syndrome.hpp"
#include "net/wire/wire.hpp"

namespace oriel::net {

class KeyAliases;
struct QueueRecords;

/// Addresses of a queue's memory in this process. The memory may be private, pinned for a GPU, or
/// shared with the producer's process. All of it outlives the queue.
struct QueueMemory {
  std::byte* ring = nullptr;                 ///< depth WQEBBs of 64 bytes, 64-byte aligned
  std::uint32_t depth = 0;                   ///< a power of two, 128 to 32768
  const std::uint32_t* record = nullptr;     ///< doorbell record: two words, receives and sends
  const std::uint64_t* doorbell = nullptr;   ///< not shared with other queues
  std::byte* completions = nullptr;          ///< send CQ of one element, see CompletionWriter
  std::byte* receive_completions = nullptr;  ///< may be null
  std::uint32_t receive_count = 0;           ///< a power of two, or 0 without receive completions
  std::uint64_t* first_error = nullptr;      ///< may be null; see first_error_word
};

struct QueueSetup {
  QueueMemory memory;
  /// Queue number of 24 bits that no other queue of the NIC has. If 0, the NIC chooses a number
  /// that it has not used lately.
  std::uint32_t number = 0;
  DoorbellMode mode = DoorbellMode::strict;
  std::uint64_t first_index = 0;  ///< index of the first WQEBB that will be rung
  /// Response timeout of a request and retry count, as in InfiniBand. See Retransmission for what
  /// counts as a retry.
  Duration answer_timeout = std::chrono::milliseconds(4295);
  std::uint32_t retransmissions_most = 7;
  /// Pause before a retransmission if the peer has no receive posted for an immediate (RNR). The
  /// number of such retransmissions is unlimited.
  Duration not_ready_pause = std::chrono::microseconds(640);
  /// Size of the requests into which a WQE is split on the wire.
  std::uint32_t piece_bytes = std::uint32_t{256} << 10;

  /// Records of a queue that can continue on another NIC (docs/failover.md). Such a queue starts
  /// where the records say each time that it connects. It stores an error in the records instead of
  /// completing WQEs with it. The targets of these pointers outlive the queue.
  QueueRecords* records = nullptr;
  const KeyAliases* aliases = nullptr;  ///< aliases of keys in WQEs; null: they are this NIC's
  /// Queue number in WQEs, doorbell and send completions; 0: the queue's own number.
  std::uint32_t named = 0;
  /// Send time of the latest request that the peer has answered: the peer was alive at that time or
  /// later. Outlives the queue and is shared by all NICs that the queue is on. If null, the time is
  /// not kept.
  std::atomic<TimePoint>* answered = nullptr;
};

/// States in the order in which a queue passes them; `error` and `reset` are reachable from every
/// state.
enum class QueueState : std::uint8_t { reset, init, ready_to_receive, ready_to_send, error };

/// Progress of a queue.
struct QueueReport {
  QueueState state{};
  std::uint64_t completed = 0;            ///< from the queue's records
  std::optional<CompletionRecord> error;  ///< from the queue's records
  Syndrome refused = Syndrome::none;      ///< from the queue's records
  TimePoint last_received{};              ///< when the peer last answered any request
};

/// The other end of a queue.
struct QueuePeer {
  std::uint32_t wire = 0;  ///< index of the wire in the NIC
  WireAddress address;
  std::uint32_t queue = 0;
  std::uint32_t epoch = 0;  ///< connection's epoch, agreed on by both ends
  /// Number of the peer in PeerMemory, the same on every path. If 0, none of its memory is mapped
  /// here.
  std::uint64_t process = 0;
};

/// Limit of a queue's reads and atomics without a response, and hence of the responses that its
/// peer has to keep.
inline constexpr std::size_t kReadsInFlightMost = 16;
/// Opcode in the error completion of a probe (NicSoft::probe). It is the opcode of a NOP, which
/// never waits for a response.
inline constexpr std::uint8_t kProbeOpcode = 0x00;
inline constexpr std::uint32_t kPieceBytesMost = std::uint32_t{4} << 20;

}  // namespace oriel::net
