// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "base/bytes.hpp"
#include "net/mlx5/verbs_table.hpp"

namespace oriel::net::test {

/// Models libibverbs, libmlx5 and the adapters behind them; records all calls. The model is strict:
/// misuse of the libraries is noted in `violations`, though not each such call fails. Examples are
/// a call on a freed object, freeing an object that others still need, and a queue pair that skips
/// a state. The model decodes commands by byte offsets of its own. Use one at a time. Its calls may
/// come from any thread. A test must not access the members here while another thread makes a call,
/// except functions marked "any thread".
class FakeVerbs {
 public:
  struct Adapter {
    std::string name = "mlx5_0";
    bool mlx5 = true;
    std::uint32_t port_state = 4;
    std::uint8_t link_layer = 1;
    std::uint32_t mtu = 5;
    std::uint16_t lid = 7;
    std::uint8_t port_flags = 0;
    std::vector<VerbsGid> gids;  ///< GIDs; those of type 99 are empty entries
    Bytes general;               ///< the 4096 bytes of general capabilities
    Bytes atomic;
  };
  /// Returns an adapter with all capabilities that queues need, on InfiniBand.
  static Adapter adapter(const std::string& name);
  static VerbsGid gid(std::vector<std::uint8_t> head, std::vector<std::uint8_t> tail,
                      std::uint32_t type);

  struct Call {
    std::string name;
    std::vector<std::uint64_t> arguments;
    Bytes command;
  };
  /// State of an existing queue pair in the adapter.
  struct QueuePair {
    int adapter = 0;
    std::uint32_t number = 0;
    int state = 0;
    std::byte* ring = nullptr;
    std::uint32_t depth = 0;
    std::uint32_t* record = nullptr;
    std::byte* completions = nullptr;
    std::byte* receives = nullptr;        ///< ring of receive WQEs, or null
    std::uint32_t receive_count = 0;      ///< number of receive WQEs
    std::byte* received = nullptr;        ///< CQ of the receives
    std::uint32_t received_elements = 0;  ///< number of CQEs in `received`
    std::uint64_t* doorbell = nullptr;
    std::uint32_t remote = 0;
    std::uint16_t remote_lid = 0;
  };

  FakeVerbs();
  ~FakeVerbs();
  FakeVerbs(const FakeVerbs&) = delete;
  FakeVerbs& operator=(const FakeVerbs&) = delete;

  std::vector<Adapter> adapters;
  VerbsLibrary library;
  std::vector<Call> calls;
  std::vector<std::string> violations;
  bool has_uncached_registers = true;

  /// Number of the call that fails with `status`, from 1; 0: none. The answer to a failing command
  /// carries status 0x03 and a syndrome.
  long fail_at = 0;
  int status = 5;
  long counted = 0;
  std::string failed;
  /// Changes the answer to a command that has succeeded.
  std::function<void(const std::string& call, Bytes& out)> spoil;

  /// Called when a caller starts to look for an adapter.
  std::function<void()> on_list;
  /// Hooks of a software adapter, if there is one.
  std::function<std::uint32_t(const QueuePair&)> on_create;
  std::function<void(const QueuePair&)> on_ready;
  std::function<void(const QueuePair&)> on_error;
  std::function<void(const QueuePair&)> on_destroy;
  std::function<std::uint32_t(int adapter, void* address, std::size_t bytes, int access)>
      on_register;
  std::function<void(int adapter, std::uint32_t key)> on_deregister;

  std::vector<std::string> names() const;
  /// Counts live objects of one kind, or of all kinds if `kind` is empty. Any thread.
  std::size_t live(const std::string& kind = "") const;
  /// Kinds of the objects created, and of those freed, each in order.
  std::vector<std::string> made, destroyed;
  const Call* find(const std::string& name, std::size_t nth = 0) const;
  /// Returns the key of a queue pair, as its number is unique only within an adapter.
  static std::uint64_t key_of(int adapter, std::uint32_t number) {
    return static_cast<std::uint64_t>(adapter) << 32 | number;
  }
  std::map<std::uint64_t, QueuePair> queue_pairs;

  struct Object;
  struct Access;

 private:
  friend struct Access;
  mutable std::mutex mutex_;  // held by every call
  std::map<const void*, std::unique_ptr<Object>> objects_;
  std::uint32_t next_number_ = 0x100;
};

}  // namespace oriel::net::test
