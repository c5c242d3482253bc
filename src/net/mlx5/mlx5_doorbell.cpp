// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "net/mlx5/mlx5_doorbell.hpp"

#include <algorithm>
#include <cerrno>
#include <utility>

#include <fmt/format.h>

#include "base/log.hpp"
#include "base/try.hpp"

namespace oriel::net {
namespace {

constexpr std::size_t kDoorbellBytes = 8;

Result<std::shared_ptr<Mlx5Register>> open_register(std::shared_ptr<const Mlx5Device> device) {
  const VerbsTable& verbs = device->verbs();
  VerbsContext* const context = device->context();
  auto made = std::make_shared<Mlx5Register>();
  made->device = std::move(device);
  // Falls back: some kernels have registers with write-combining mappings only.
  made->uar = Mlx5UarOwner(verbs, verbs.alloc_uar(context, VerbsConstants::kUarNotCached));
  made->is_write_combining = !made->uar;
  if (made->is_write_combining) {
    made->uar = Mlx5UarOwner(verbs, verbs.alloc_uar(context, VerbsConstants::kUarBlueFlame));
  }
  if (made->uar) return made;
  return mlx5_error(made->device->place(), "mlx5dv_devx_alloc_uar", "a doorbell register", errno);
}

Status map_register(Mlx5Register& made, Mlx5Memory& memory) {
  if (made.mapping != nullptr) return {};
  ORIEL_TRY(made.mapping,
            memory.map_register(made.uar->doorbell, kDoorbellBytes, made.is_write_combining));
  return {};
}

}  // namespace

Mlx5Ringer::RungDoorbell::RungDoorbell(std::shared_ptr<Mlx5Ringer> ringer, std::uint64_t* slot)
    : ringer_(std::move(ringer)), slot_(slot) {}

Mlx5Ringer::RungDoorbell::RungDoorbell(RungDoorbell&& other) noexcept
    : ringer_(std::move(other.ringer_)), slot_(std::exchange(other.slot_, nullptr)) {}

Mlx5Ringer::RungDoorbell& Mlx5Ringer::RungDoorbell::operator=(RungDoorbell&& other) noexcept {
  if (this != &other) {
    reset();
    ringer_ = std::move(other.ringer_);
    slot_ = std::exchange(other.slot_, nullptr);
  }
  return *this;
}

void Mlx5Ringer::RungDoorbell::reset() {
  if (slot_ != nullptr) ringer_->remove(slot_);
  slot_ = nullptr;
  ringer_.reset();
}

Result<Mlx5Ringer::RungDoorbell> Mlx5Ringer::serve(const std::shared_ptr<Mlx5Ringer>& ringer,
                                                   std::uint64_t* slot, void* doorbell) {
#if !defined(__x86_64__)
  return Error(ErrorCode::system, "doorbells of mlx5 adapters are rung by x86-64 processors only")
      .with_hint("use GPUs that can ring them");
#endif
  const std::lock_guard lock(ringer->mutex_);
  ringer->pairs_.push_back({slot, static_cast<std::uint64_t*>(doorbell)});
  ringer->count_.store(ringer->pairs_.size(), std::memory_order_relaxed);
  return RungDoorbell(ringer, slot);
}

void Mlx5Ringer::remove(const std::uint64_t* slot) {
  const std::lock_guard lock(mutex_);
  std::erase_if(pairs_, [&](const Pair& pair) { return pair.slot == slot; });
  count_.store(pairs_.size(), std::memory_order_relaxed);
}

bool Mlx5Ringer::progress() {
  if (!is_needed()) return false;
  const std::lock_guard lock(mutex_);
  bool rung = false;
  for (const Pair& pair : pairs_) {
    const std::atomic_ref<std::uint64_t> slot(*pair.slot);
    // Loads first: exchanging each time would take the cache line from the storing threads.
    if (slot.load(std::memory_order_relaxed) == 0) continue;
    const std::uint64_t value = slot.exchange(0, std::memory_order_acq_rel);
    std::atomic_ref<std::uint64_t>(*pair.doorbell).store(value, std::memory_order_release);
    rung = true;
  }
  // Drains the CPU's write-combining buffers by a locked instruction, in case a register is mapped
  // as write-combining. (ThreadSanitizer does not know fences.)
  if (rung) drained_.exchange(1, std::memory_order_seq_cst);
  return rung;
}

std::uint64_t* Mlx5Doorbell::user() const {
  if (slot_ != nullptr) return reinterpret_cast<std::uint64_t*>(slot_->user());
  return register_->mapping->user();
}

Mlx5Doorbells::Mlx5Doorbells(std::shared_ptr<const Mlx5Device> device)
    : device_(std::move(device)), ringer_(std::make_shared<Mlx5Ringer>()) {}

Result<Mlx5Doorbell> Mlx5Doorbells::make(Mlx5Memory& memory, DoorbellChoice choice) {
  const std::lock_guard lock(mutex_);
  Mlx5Doorbell made;
  ORIEL_TRY(made.register_, register_for(memory));
  if (choice != DoorbellChoice::cpu) {
    Status mapped = map_register(*made.register_, memory);
    if (mapped.ok()) return made;
    const Mlx5Place& place = device_->place();
    if (choice == DoorbellChoice::gpu) {
      return std::move(mapped).error().with_context(
          fmt::format("mapping the doorbell register of {} port {} for those who post, as "
                      "ORIEL_DOORBELL=gpu requires",
                      place.device, place.port));
    }
    if (!std::exchange(has_warned_, true)) {
      Log().warn(
          "a processor rings the doorbells of {} port {}, which adds to every operation ({}); "
          "hint: let GPUs map the register (docs/mlx5.md), or set ORIEL_DOORBELL=cpu",
          place.device, place.port, mapped.error().to_string());
    }
  }
  ORIEL_TRY(made.slot_, memory.allocate_on_host(sizeof(std::uint64_t)));
  ORIEL_TRY(made.rung_doorbell_,
            Mlx5Ringer::serve(ringer_, reinterpret_cast<std::uint64_t*>(made.slot_->own()),
                              made.register_->uar->doorbell));
  return made;
}

Result<std::shared_ptr<Mlx5Register>> Mlx5Doorbells::register_for(const Mlx5Memory& memory) {
  std::weak_ptr<Mlx5Register>& shared = shared_[&memory];
  if (auto found = shared.lock()) return found;
  ORIEL_TRY(std::shared_ptr<Mlx5Register> made, open_register(device_));
  if (!made->is_write_combining) shared = made;
  return made;
}

}  // namespace oriel::net
