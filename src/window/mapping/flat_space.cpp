// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "window/mapping/flat_space.hpp"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "base/try.hpp"
#include "window/memory/memory_block.hpp"

namespace oriel::window {
namespace {

constexpr std::size_t kTeamBytes = std::size_t{2} << 40;
constexpr std::size_t kTeamBytesUnderTsan = std::size_t{128} << 30;

#ifdef __SANITIZE_THREAD__
constexpr bool kThreadSanitizer = true;
#else
constexpr bool kThreadSanitizer = false;
#endif

}  // namespace

std::size_t automatic_slot_bytes(MemoryKind kind, std::size_t memory_bytes, int team_size) {
  std::size_t slot = round_up(std::max<std::size_t>(memory_bytes, 1), kSlotUnitBytes);
  if (kind == MemoryKind::host) {
    const std::size_t team_bytes = kThreadSanitizer ? kTeamBytesUnderTsan : kTeamBytes;
    const std::size_t share = team_bytes / static_cast<std::size_t>(std::max(team_size, 1));
    slot = std::min(slot, std::max(share / kSlotUnitBytes, std::size_t{1}) * kSlotUnitBytes);
  }
  return slot;
}

/// The spaces of this process. Never destroyed, like the memories that they use.
struct FlatSpace::Table {
  std::mutex mutex;
  std::map<Key, std::weak_ptr<FlatSpace>> spaces;
};

FlatSpace::Table& FlatSpace::table() {
  static Table* const table = new Table;
  return *table;
}

/// Mapping that map() returns: one holder of an entry of mapped_, counted there.
class FlatSpace::Holder final : public Mapping {
 public:
  Holder(std::shared_ptr<FlatSpace> space, std::byte* base)
      : space_(std::move(space)), base_(base) {}
  ~Holder() override { space_->let_go(base_); }
  Holder(const Holder&) = delete;
  Holder& operator=(const Holder&) = delete;

  std::byte* base() const override { return base_; }

 private:
  std::shared_ptr<FlatSpace> space_;
  std::byte* base_;
};

FlatSpace::FlatSpace(Memory& memory, Key key, std::unique_ptr<AddressRange> range)
    : memory_(memory),
      key_(std::move(key)),
      slots_(key_.slot_bytes, memory.granularity()),
      range_(std::move(range)) {}

FlatSpace::~FlatSpace() {
  Table& all = table();
  const std::lock_guard lock(all.mutex);
  const auto found = all.spaces.find(key_);
  // Another thread may have made the next space of this team already.
  if (found != all.spaces.end() && found->second.expired()) all.spaces.erase(found);
}

Result<std::shared_ptr<FlatSpace>> FlatSpace::acquire(Memory& memory, std::vector<TeamMember> team,
                                                      std::size_t slot_bytes) {
  if (team.empty() || slot_bytes == 0 || slot_bytes % kSlotUnitBytes != 0 ||
      slot_bytes > kMaxMemoryBytes / team.size()) {
    return Error(ErrorCode::invalid_argument,
                 fmt::format("{} slots of {} bytes: a slot must be a multiple of 4 GiB, "
                             "and all of them at most {} bytes",
                             team.size(), slot_bytes, kMaxMemoryBytes))
        .with_hint("change ORIEL_BIG_SIZE");
  }
  Key key{memory.kind(), memory.device(), slot_bytes, std::move(team)};
  // Allocates space and control block together. `space` is declared before the lock, because the
  // destructor of FlatSpace takes the lock itself.
  struct Made final : FlatSpace {
    Made(Memory& of, Key key_of, std::unique_ptr<AddressRange> range)
        : FlatSpace(of, std::move(key_of), std::move(range)) {}
  };
  std::shared_ptr<FlatSpace> space;
  Table& all = table();
  const std::lock_guard lock(all.mutex);
  if (const auto found = all.spaces.find(key); found != all.spaces.end()) {
    space = found->second.lock();
    if (space != nullptr) return space;
  }
  Result<std::unique_ptr<AddressRange>> range =
      memory.reserve(key.team.size() * slot_bytes, kSlotUnitBytes);
  if (!range.ok()) {
    return std::move(range)
        .error()
        .with_context(fmt::format("reserving {} slots of {} bytes", key.team.size(), slot_bytes))
        .with_hint("lower ORIEL_BIG_SIZE, or the limit on address space (ulimit -v)");
  }
  space = std::make_shared<Made>(memory, std::move(key), std::move(range).value());
  all.spaces[space->key_] = space;
  return space;
}

Result<std::shared_ptr<Mapping>> FlatSpace::map(int slot, std::size_t offset,
                                                AllocationRef allocation) {
  const std::size_t bytes = allocation->bytes();
  const int slots = static_cast<int>(key_.team.size());
  if (slot < 0 || slot >= slots || offset % memory_.granularity() != 0 || offset > slot_bytes() ||
      bytes > slot_bytes() - offset) {
    return Error(
        ErrorCode::internal,
        fmt::format("mapping {} bytes at offset {:#x} of slot {}: there are {} slots of {} "
                    "bytes in steps of {}",
                    bytes, offset, slot, slots, slot_bytes(), memory_.granularity()));
  }
  std::byte* const at = base() + static_cast<std::size_t>(slot) * slot_bytes() + offset;
  const std::lock_guard lock(mutex_);
  const auto found = mapped_.find(at);
  if (found != mapped_.end()) {
    if (found->second.allocation != allocation->id()) {
      return Error(
          ErrorCode::internal,
          fmt::format("another allocation is mapped at offset {:#x} of slot {}", offset, slot));
    }
    ++found->second.holders;
    return std::shared_ptr<Mapping>(std::make_shared<Holder>(shared_from_this(), at));
  }
  const AllocationId id = allocation->id();
  Result<std::unique_ptr<Mapping>> mapping = memory_.map(*range_, at, std::move(allocation));
  if (!mapping.ok()) {
    return std::move(mapping).error().with_context(
        fmt::format("mapping {} bytes at offset {:#x} of slot {}", bytes, offset, slot));
  }
  mapped_.emplace(at, Entry{id, std::move(mapping).value(), 1});
  return std::shared_ptr<Mapping>(std::make_shared<Holder>(shared_from_this(), at));
}

void FlatSpace::let_go(std::byte* at) {
  const std::lock_guard lock(mutex_);
  const auto found = mapped_.find(at);
  // Unmaps under the lock: whoever maps at this place next must find it free.
  if (--found->second.holders == 0) mapped_.erase(found);
}

}  // namespace oriel::window
