// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "comm/keys/network_windows.hpp"

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <new>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include <catch2/catch.hpp>
#include <fmt/format.h>

#include "base/event_loop.hpp"
#include "comm/keys/key_chunks.hpp"
#include "support/seed.hpp"

/// Keys of windows that span several allocations (3.2), tested without ranks: the owner and the NIC
/// of each key, and release.
namespace oriel::comm {
namespace {

constexpr std::uint64_t kPage = 4096;
constexpr std::uint64_t kMiB = std::uint64_t{1} << 20;
constexpr int kRanks = 2;

Error never() {
  return Error(ErrorCode::internal, "nobody asks for this");
}

/// Allocations mapped back to back, with nothing mapped behind them.
class MappedPieces final : public window::Memory {
 public:
  MappedPieces(std::uint64_t base, std::vector<std::uint64_t> sizes)
      : base_(base), sizes_(std::move(sizes)) {}
  std::byte* at(std::uint64_t offset) const { return reinterpret_cast<std::byte*>(base_ + offset); }

  Result<std::vector<window::Segment>> find_segments(const void* pointer,
                                                     std::size_t bytes) override {
    const auto begin = reinterpret_cast<std::uint64_t>(pointer);
    std::vector<window::Segment> found;
    std::uint64_t at = base_;
    for (const std::uint64_t size : sizes_) {
      if (at < begin + bytes && at + size > begin) {
        found.push_back({nullptr, reinterpret_cast<std::byte*>(at), size});
      }
      at += size;
    }
    return found;
  }

  window::MemoryKind kind() const override { return window::MemoryKind::cuda; }
  int device() const override { return 0; }
  std::size_t granularity() const override { return kPage; }
  Result<void*> allocate(std::size_t, window::Backing) override { return never(); }
  Status free(void*) override { return never(); }
  Status free_when_unused(void*) override { return never(); }
  Result<window::ShareableHandle> export_handle(const window::Allocation&) override {
    return never();
  }
  Result<window::AllocationRef> import_handle(window::ShareableHandle, window::AllocationId,
                                              std::size_t) override {
    return never();
  }
  Result<std::unique_ptr<window::AddressRange>> reserve(std::size_t, std::size_t) override {
    return never();
  }
  Result<std::unique_ptr<window::Mapping>> map(window::AddressRange&, std::byte*,
                                               window::AllocationRef) override {
    return never();
  }

 private:
  std::uint64_t base_;
  std::vector<std::uint64_t> sizes_;
};

/// Hands out keys; registration can be made to fail.
class Port final : public WindowNic {
 public:
  /// `remote`: difference of a remote key and its local key.
  Port(std::uint32_t first, std::uint32_t remote) : next_(first), remote_(remote) {}
  Result<Keys> register_memory(const net::MemoryRange& range) override {
    if (--calls_left_ == 0) return Error(ErrorCode::system, "the adapter has no room");
    const Keys keys{next_, next_ + remote_};
    next_ += 2;
    ranges.emplace(keys.local, range);
    return keys;
  }
  void deregister_memory(std::uint32_t lkey) noexcept override {
    if (ranges.erase(lkey) == 0) ++wrong;
  }
  /// Makes the k-th call from now on fail, once.
  void fail_at(int k) { calls_left_ = k; }
  /// Returns the local key that covers this byte, or 0 if none or several do.
  std::uint32_t key_of(std::uint64_t address) const {
    std::uint32_t found = 0;
    for (const auto& [key, range] : ranges) {
      if (address - range.address >= range.bytes) continue;
      if (found != 0) return 0;
      found = key;
    }
    return found;
  }

  std::map<std::uint32_t, net::MemoryRange> ranges;  // by local key
  int wrong = 0;

 private:
  std::uint32_t next_;
  const std::uint32_t remote_;
  int calls_left_ = 0;
};

/// Unused transport: the test itself passes the messages of set-up.
class NoTransport final : public boot::Transport {
 public:
  Task<Status> send(int, Bytes) override { co_return never(); }
  Task<Result<Bytes>> receive(int) override { co_return never(); }
};

/// A rank with two NICs, the second of which is the backup.
struct Rank {
  Rank(int index, std::vector<std::uint64_t> sizes)
      : rank(index),
        memory((static_cast<std::uint64_t>(index) + 7) << 40, std::move(sizes)),
        windows(
            world, rank, {index == 0, index == 1},
            shadow::host_pool(KeyTables::table_bytes(kRanks), 64),
            [this](std::size_t bytes) -> Result<std::shared_ptr<shadow::ShadowPool>> {
              if (refuses_tables) return Error(ErrorCode::cuda, "no room for tables");
              auto made = shadow::host_pool(bytes, 64);
              pool = made;
              return made;
            },
            net::MemoryPlace::host) {}

  void register_window(std::uint64_t offset, std::uint64_t bytes) {
    table = windows.make_table(1).value();
    window::RegisteredWindow window;
    window.user = memory.at(offset);
    window.bytes = bytes;
    window.serial = 1;
    EventLoop loop = EventLoop::create().value();
    REQUIRE(loop.run(windows.prepare(loop, std::span(&window, 1), Deadline::never())).ok());
    windows.commit();
  }
  Result<KeysMessage> attach() {
    WindowNics nics;
    nics.ports = {&ports[0], &ports[1]};
    nics.memory = &memory;
    nics.paths.resize(kRanks);
    nics.paths[static_cast<std::size_t>(1 - rank)] = {{&aliases, 1, 1}};
    return windows.attach(std::move(nics), 77, {});
  }
  /// Returns the number of key tables: each table holds the pool, and so do both ranks after first
  /// use.
  long tables_of_keys() const { return pool.use_count() - kRanks; }
  void check_nothing_left() const {
    for (const Port& port : ports) {
      CHECK(port.ranges.empty());
      CHECK(port.wrong == 0);
    }
  }

  int rank;
  NoTransport transport;
  boot::Group world{transport, {0, 1}, rank};
  MappedPieces memory;
  bool refuses_tables = false;
  std::weak_ptr<shadow::ShadowPool> pool;           // pool of key tables
  Port ports[2] = {Port(100, 1), Port(50'001, 0)};  // backup: a software NIC, one key
  net::KeyAliases aliases;
  NetworkWindows windows;
  const device::NetworkWindow* table = nullptr;
};

/// Encodes and decodes each rank's message, as if its peer had received it.
std::vector<KeysMessage> exchange(const KeysMessage& a, const KeysMessage& b) {
  std::vector<KeysMessage> ranks;
  for (const KeysMessage* one : {&a, &b}) {
    ranks.push_back(decode_keys(encode(*one)).value());
    CHECK(ranks.back() == *one);
  }
  return ranks;
}

/// Checks that a region reaches the memory of `at` by the keys of its NICs: remote keys for a peer.
void check_region(const device::queue::Region& region, const Rank& at, const Rank& seen_by) {
  const bool is_far = &at != &seen_by;
  std::mt19937_64 random(5);
  for (std::uint64_t i = 0; i < 2000; ++i) {
    const std::uint64_t offset = i == 0 ? 0 : i == 1 ? region.bytes - 1 : random() % region.bytes;
    const std::uint64_t address = region.address + offset;
    const std::uint32_t local = at.ports[0].key_of(address);
    const std::uint32_t backup = at.ports[1].key_of(address);
    REQUIRE(local != 0);
    REQUIRE(region.key_at(offset) == local + (is_far ? 1 : 0));
    REQUIRE(backup == (is_far ? seen_by.aliases.remote(local + 1) : seen_by.aliases.local(local)));
    const net::MemoryRange& range = at.ports[0].ranges.at(local);
    const std::uint64_t chunk = std::min(region.left_in_chunk(offset), region.bytes - offset);
    REQUIRE(address - range.address + chunk <= range.bytes);
  }
}

struct TwoRanks {
  TwoRanks() {
    const std::uint64_t bytes = 19 * kMiB + 333;
    a.register_window(kPage, bytes);
    b.register_window(3 * kPage, bytes);
  }
  void connect() {
    const auto ranks = exchange(a.attach().value(), b.attach().value());
    REQUIRE(a.windows.learn(ranks).ok());
    REQUIRE(b.windows.learn(ranks).ok());
  }
  Rank a{0,
         {2 * kMiB, 4 * kMiB, 2 * kMiB, 2 * kMiB, 2 * kMiB, 2 * kMiB, 2 * kMiB, 2 * kMiB, 2 * kMiB,
          2 * kMiB}};
  Rank b{1, {8 * kMiB, 4 * kMiB, 8 * kMiB}};
};

}  // namespace

TEST_CASE("every byte of a window in pieces has its keys, of all NICs, on both sides",
          "[req:3.2]") {
  TwoRanks ranks;
  ranks.connect();
  CHECK(ranks.a.ports[0].ranges.size() == 9);
  CHECK(ranks.b.ports[1].ranges.size() == 3);
  CHECK(ranks.a.table->local.chunk_shift == 21);
  CHECK(ranks.a.table->local.more_keys != nullptr);
  CHECK(ranks.a.table->peers[1].chunk_shift == 22);
  CHECK(ranks.a.table->peers[1].more_keys == nullptr);
  check_region(ranks.a.table->local, ranks.a, ranks.a);
  check_region(ranks.a.table->peers[1], ranks.b, ranks.a);
  check_region(ranks.b.table->local, ranks.b, ranks.b);
  check_region(ranks.b.table->peers[0], ranks.a, ranks.b);

  // A kernel may read the tables after the network is gone, until the window is gone.
  const device::queue::Region before = ranks.a.table->local;
  const std::uint32_t last = before.key_at(before.bytes - 1);
  ranks.a.windows.detach();
  ranks.b.windows.detach();
  ranks.a.check_nothing_left();
  ranks.b.check_nothing_left();
  CHECK(ranks.a.table->network == 0);
  CHECK(ranks.a.table->local.more_keys == before.more_keys);
  CHECK(before.key_at(before.bytes - 1) == last);
  CHECK(ranks.a.tables_of_keys() == 1 + 1);
  CHECK(ranks.a.aliases.local(last) == last);

  // A new network replaces the keys and the tables.
  ranks.connect();
  check_region(ranks.a.table->local, ranks.a, ranks.a);
  check_region(ranks.b.table->peers[0], ranks.a, ranks.b);
  CHECK(ranks.a.tables_of_keys() == 1 + 1);
  ranks.a.windows.deregister(1);
  ranks.a.check_nothing_left();
  CHECK(ranks.a.tables_of_keys() == 1 + 1);
  ranks.a.windows.drop_table(ranks.a.table);
  CHECK(ranks.a.tables_of_keys() == 1);
  ranks.b.windows.drop_table(ranks.b.table);
  CHECK(ranks.a.tables_of_keys() == 0);
  ranks.b.check_nothing_left();
}

TEST_CASE("a window in one allocation, or of a NIC that need not care, has one key", "[req:3.2]") {
  Rank rank(0, {8 * kMiB, 4 * kMiB});
  const bool is_inside = GENERATE(true, false);
  rank.register_window(8 * kPage, is_inside ? kMiB : 10 * kMiB);
  WindowNics nics;
  nics.ports = {&rank.ports[0]};
  if (is_inside) nics.memory = &rank.memory;
  const KeysMessage keys = rank.windows.attach(std::move(nics), 77, {}).value();
  REQUIRE(rank.windows.learn({keys, KeysMessage()}).ok());
  CHECK(keys.keys.front().later_pieces.empty());
  CHECK(rank.ports[0].ranges.size() == 1);
  const device::queue::Region& local = rank.table->local;
  CHECK(local.chunk_shift == 63);
  CHECK(local.skip == 0);
  CHECK(local.keys[0] == 100);
  CHECK(local.more_keys == nullptr);
  CHECK(rank.pool.expired());
  rank.windows.detach();
  rank.windows.drop_table(rank.table);
  rank.check_nothing_left();
}

TEST_CASE("a mark of own words ends with a call that fails or throws, a later window has none",
          "[req:3.2][D11]") {
  Rank rank(0, {8 * kMiB, 4 * kMiB});
  const auto has_own_words = [&] {
    REQUIRE(rank.attach().ok());
    REQUIRE(rank.ports[0].ranges.size() == 1);
    const bool found = rank.ports[0].ranges.begin()->second.own_words;
    rank.windows.detach();
    rank.windows.drop_table(rank.table);
    return found;
  };
  {
    const OwnWords mark(&rank.windows, rank.memory.at(kPage));
    rank.register_window(kPage, kMiB);
  }
  CHECK(has_own_words());
  CHECK_THROWS_AS(
      [&] {
        const OwnWords mark(&rank.windows, rank.memory.at(kPage));
        throw std::bad_alloc();
      }(),
      std::bad_alloc);
  rank.register_window(kPage, kMiB);
  CHECK_FALSE(has_own_words());
  rank.check_nothing_left();
}

TEST_CASE("a refused registration or a key table without room leaves nothing behind", "[req:3.2]") {
  TwoRanks ranks;
  const KeysMessage other = ranks.b.attach().value();
  for (std::size_t nic = 0; nic < 2; ++nic) {
    for (int k = 1; k <= 9; ++k) {
      ranks.a.ports[nic].fail_at(k);
      const auto keys = ranks.a.attach();
      REQUIRE_FALSE(keys.ok());
      const std::string text = keys.error().to_string();
      CHECK(text.find(fmt::format("allocation {} of 9", k)) != std::string::npos);
      CHECK(text.find("has no room") != std::string::npos);
      ranks.a.windows.detach();
      ranks.a.check_nothing_left();
      CHECK(ranks.a.aliases.local(100) == 100);
    }
  }
  ranks.a.refuses_tables = true;
  const auto both = exchange(ranks.a.attach().value(), other);
  const Status learnt = ranks.a.windows.learn(both);
  REQUIRE_FALSE(learnt.ok());
  CHECK(learnt.error().message().find("no room for tables") != std::string::npos);
  CHECK(ranks.a.table->network == 0);
  ranks.a.windows.detach();
  ranks.a.check_nothing_left();
  // The key table of a peer is not kept, either, if its window differs from this rank's.
  std::vector<KeysMessage> strange = exchange(KeysMessage{.backups = 1}, other);
  strange[1].keys[0].bytes -= kPage;
  ranks.a.refuses_tables = false;
  REQUIRE(ranks.a.attach().ok());
  CHECK_FALSE(ranks.a.windows.learn(strange).ok());
  CHECK(ranks.a.pool.expired());
  ranks.a.windows.detach();
  ranks.b.windows.detach();
  ranks.a.windows.drop_table(ranks.a.table);
  ranks.b.windows.drop_table(ranks.b.table);
  ranks.a.check_nothing_left();
  ranks.b.check_nothing_left();
}

TEST_CASE("windows are cut into the largest chunks that end where allocations do", "[req:3.2]") {
  const std::uint64_t seed = test::test_seed();
  std::mt19937_64 random(seed);
  for (int round = 0; round < 3000; ++round) {
    const std::uint64_t unit = kPage << random() % 20;
    const std::uint64_t head = 1 + random() % unit;
    std::vector<std::uint64_t> ends{head};
    for (std::uint64_t more = random() % 12; more > 0; --more) {
      ends.push_back(ends.back() + unit * (1 + random() % 9));
    }
    const std::uint64_t bytes = ends.back() + 1 + random() % (4 * unit);
    const KeyChunks chunks = cut_at(bytes, ends);
    const std::uint64_t chunk = std::uint64_t{1} << chunks.shift;
    REQUIRE(chunks.skip < chunk);
    const auto end_at_chunks = [&](std::uint64_t size) {
      return std::all_of(ends.begin(), ends.end(),
                         [&](std::uint64_t end) { return (end - head) % size == 0; });
    };
    for (const std::uint64_t end : ends) REQUIRE((chunks.skip + end) % chunk == 0);
    REQUIRE((!end_at_chunks(2 * chunk) || chunk >= bytes));
    REQUIRE(chunks.count * chunk >= chunks.skip + bytes);
    REQUIRE((chunks.count - 1) * chunk < chunks.skip + bytes);
  }
  CHECK(cut_at(kMiB, {}).shift == 63);
  CHECK(cut_at(kMiB, {}).count == 1);
  CHECK(cut_at(kPieceBytesMost, std::vector{std::uint64_t{1}}).count == 2);
}

}  // namespace oriel::comm
