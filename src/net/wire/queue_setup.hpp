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

/// Where a queue lies, as raw addresses of this process: the memory may be its own, pinned for a
/// GPU, or shared with the process that fills it. All of it outlives the queue.
struct QueueMemory {
  std::byte* ring = nullptr;                 ///< depth blocks of 64 bytes, 64-byte aligned
  std::uint32_t depth = 0;                   ///< a power of two, 128 to 32768
  const std::uint32_t* record = nullptr;     ///< two words: receives, sends
  const std::uint64_t* doorbell = nullptr;   ///< of this queue alone
  std::byte* completions = nullptr;          ///< for sends: one element, see CompletionWriter
  std::byte* receive_completions = nullptr;  ///< may be null
  std::uint32_t receive_count = 0;           ///< a power of two, or 0 without any
  std::uint64_t* first_error = nullptr;      ///< may be null; see first_error_word
};

struct QueueSetup {
  QueueMemory memory;
  /// Of 24 bits, and of no queue that the NIC has; 0: it chooses one that it has not used lately.
  std::uint32_t number = 0;
  DoorbellMode mode = DoorbellMode::strict;
  std::uint64_t first_index = 0;  ///< of the first block that will be rung
  /// How long a request may stay without a response before it is repeated, and how often.
  Duration answer_timeout = std::chrono::milliseconds(4295);
  std::uint32_t repeats_most = 7;
  /// How long to wait when the peer has no room for an immediate. Repeated without end.
  Duration not_ready_pause = std::chrono::microseconds(640);
  /// Entries cross the wire in pieces of this size.
  std::uint32_t piece_bytes = std::uint32_t{256} << 10;

  /// For a queue that can go on at another NIC (docs/failover.md). It then begins where the records
  /// say whenever it gets its peer, and keeps an error there instead of completing entries with it.
  /// What these point to outlives the queue.
  QueueRecords* records = nullptr;
  const KeyAliases* aliases = nullptr;  ///< of the keys in entries; null: they are this NIC's
  /// What entries, doorbell and completions call the queue; 0: its own number.
  std::uint32_t named = 0;
  /// When the latest of the requests that the peer has answered was sent: the peer was there then,
  /// or later. Outlives the queue, and is of all NICs that it is at; null: nobody asks.
  std::atomic<TimePoint>* answered = nullptr;
};

/// A queue moves along these one by one; to `error` and `reset` from everywhere.
enum class QueueState : std::uint8_t { reset, init, ready_to_receive, ready_to_send, error };

/// How a queue is getting on.
struct QueueReport {
  QueueState state{};
  std::uint64_t completed = 0;            ///< of its records
  std::optional<CompletionRecord> error;  ///< of its records
  Syndrome refused = Syndrome::none;      ///< of its records
  TimePoint heard{};                      ///< when the peer last answered any part of an entry
};

/// The other end of a queue.
struct QueuePeer {
  std::uint32_t wire = 0;  ///< which of the NIC's wires
  WireAddress address;
  std::uint32_t queue = 0;
  std::uint32_t epoch = 0;  ///< of the connection: what both ends have agreed on
  /// Who it is, by whatever path, to PeerMemory; 0: no memory of it is mapped here.
  std::uint64_t process = 0;
};

/// Reads and atomics of one queue that wait for their response, and hence the responses that its
/// peer has to keep.
inline constexpr std::size_t kReadsInFlightMost = 16;
/// What an error says of a probe (NicSoft::probe). It is that of an entry which does nothing, and
/// which therefore never waits for an answer.
inline constexpr std::uint8_t kProbeOpcode = 0x00;
inline constexpr std::uint32_t kPieceBytesMost = std::uint32_t{4} << 20;

}  // namespace oriel::net
