// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
// Row H6 in docs/requirements.md: after many registrations and deregistrations, exactly the
// mappings of a set model exist, also after refusals. Teams are fixed, so that a window's set is
// its team for the window's lifetime.
#include <algorithm>
#include <map>
#include <random>

#include <catch2/catch.hpp>

#include "base/try.hpp"
#include "support/seed.hpp"
#include "window/mapping/space_state.hpp"
#include "window/memory/allocation_table.hpp"
#include "window/memory/memory_host.hpp"
#include "window/memory/sizes.hpp"
#include "window/registration/window_ranks.hpp"

namespace oriel::window {
namespace {

constexpr std::size_t kBuffers = 4;
constexpr std::size_t kBufferPages = 16;
constexpr int kSteps = 60;

/// Identifies a mapping: the buffer, and the pages by which rank 0's offset exceeds the others'.
using Key = std::pair<std::size_t, std::size_t>;

struct Window {
  Key key;
  void* handle;
};

/// One rank's windows, and the mappings that they require.
class ModelRank {
 public:
  explicit ModelRank(WindowRank& self) : self_(self) {
    for (std::size_t i = 0; i < kBuffers; ++i) {
      buffers_.push_back(std::make_unique<HostBuffer>(kBufferPages * kPage));
      inodes_.push_back(mapped_parts(buffers_.back()->at(), 1).at(0).inode);
    }
  }

  /// Takes the same step on all ranks, because `random` has the same state everywhere.
  Status step(std::mt19937& random) {
    const unsigned kind = random() % 8;
    if (kind < 4) return add(random);
    if (kind == 4) return add_refused(random);
    return remove(random);
  }

  /// Checks that exactly the memory of the live windows is mapped, once for all ranks of this
  /// process.
  Status check_against_model() {
    std::map<Key, int> live;
    for (const Window& window : windows_) ++live[window.key];
    FlatSpace& space = self_.space();
    const auto ranks = static_cast<std::size_t>(self_.size());
    const auto parts = mapped_parts(space.base(), ranks * space.slot_bytes());
    ORIEL_EXPECT(parts.size() == live.size() * ranks);
    std::map<int, std::map<unsigned long, std::size_t>> by_slot;  // mappings of each memfd
    for (const auto& part : parts) {
      ORIEL_EXPECT(part.bytes == kBufferPages * kPage);
      ++by_slot[static_cast<int>(part.offset / space.slot_bytes())][part.inode];
    }
    ORIEL_EXPECT(live.empty() || by_slot.size() == ranks);
    // Counts this rank's own allocations: one mapping for each key with the allocation.
    std::map<unsigned long, std::size_t> own;
    for (const auto& [key, count] : live) {
      ++own[inodes_[key.first]];
    }
    ORIEL_EXPECT(live.empty() || by_slot[self_.rank()] == own);
    for (std::size_t i = 0; i < kBuffers; ++i) {
      const bool used = std::any_of(live.begin(), live.end(),
                                    [i](const auto& entry) { return entry.first.first == i; });
      ORIEL_EXPECT(AllocationTable::instance().occupied(id_of(i)) == used);
    }
    return {};
  }

  /// Removes all windows, in a different order on each rank, without waiting for the others.
  Status remove_all() {
    std::mt19937 own(static_cast<unsigned>(self_.rank()));
    std::shuffle(windows_.begin(), windows_.end(), own);
    for (const Window& window : windows_) {
      ORIEL_CHECK(self_.manager().deregister(window.handle));
    }
    windows_.clear();
    return {};
  }

 private:
  AllocationId id_of(std::size_t buffer) const {
    const auto found = host_memory().find_segments(buffers_[buffer]->at(), kPage);
    return found.value().front().allocation->id();
  }

  WindowRequest request(std::mt19937& random, Key& key) {
    const std::size_t buffer = random() % kBuffers;
    const std::size_t lead = random() % 3;  // pages by which rank 0's window is further in
    const std::size_t begin = random() % 4;
    const std::size_t pages = 1 + random() % 8;
    key = {buffer, lead};
    const std::size_t at = (begin + (self_.rank() == 0 ? lead : 0)) * kPage;
    return {buffers_[buffer]->at(at), pages * kPage, 0};
  }

  Status add(std::mt19937& random) {
    std::vector<Key> keys(1 + random() % 3);
    std::vector<WindowRequest> requests;
    requests.reserve(keys.size());
    for (Key& key : keys) requests.push_back(request(random, key));
    ORIEL_TRY(const auto windows, self_.register_batch(std::move(requests)));
    for (std::size_t i = 0; i < keys.size(); ++i) windows_.push_back({keys[i], windows[i].handle});
    return {};
  }

  /// One rank requests more than its buffer holds, in the last of several requests.
  Status add_refused(std::mt19937& random) {
    Key key;
    std::vector<WindowRequest> requests{request(random, key), request(random, key),
                                        request(random, key)};
    const int wrong = static_cast<int>(random() % static_cast<unsigned>(self_.size()));
    if (self_.rank() == wrong) requests.back().bytes = (kBufferPages + 1) * kPage;
    const auto refused = self_.register_batch(std::move(requests));
    ORIEL_EXPECT(!refused.ok());
    return {};
  }

  Status remove(std::mt19937& random) {
    if (windows_.empty()) return {};
    const std::size_t one = random() % windows_.size();
    ORIEL_CHECK(self_.manager().deregister(windows_[one].handle));
    windows_.erase(windows_.begin() + static_cast<std::ptrdiff_t>(one));
    return {};
  }

  WindowRank& self_;
  std::vector<std::unique_ptr<HostBuffer>> buffers_;
  std::vector<unsigned long> inodes_;  // inodes of the buffers' memfds
  std::vector<Window> windows_;
};

}  // namespace

TEST_CASE("registrations and deregistrations leave exactly that mapped which the model says",
          "[H6]") {
  const std::uint64_t seed = test::test_seed();
  check_ranks({{3}, {1, 1, 1}, {1, 2}}, {}, [&](WindowRank& self) -> Status {
    ModelRank rank(self);
    std::mt19937 random(seed);
    for (int i = 0; i < kSteps; ++i) {
      ORIEL_CHECK(rank.step(random));
      ORIEL_CHECK(self.barrier());
      ORIEL_CHECK(self.agree(rank.check_against_model()));
    }
    ORIEL_CHECK(rank.remove_all());
    ORIEL_CHECK(self.barrier());
    ORIEL_CHECK(self.agree(rank.check_against_model()));
    ORIEL_CHECK(self.check_nothing_held());
    return self.barrier();
  });
}

}  // namespace oriel::window
