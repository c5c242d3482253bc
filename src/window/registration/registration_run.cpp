// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "window/registration/registration_run.hpp"

#include <utility>

#include <fmt/format.h>

#include "base/try.hpp"
#include "window/memory/allocation_table.hpp"

namespace oriel::window {
namespace {

/// Decodes each rank's message by `decode(message, index)`; an error has the sending rank as
/// origin.
template <typename Decode>
auto decode_all(const boot::Group& team, const std::vector<Bytes>& messages, const Decode& decode)
    -> Result<std::vector<std::decay_t<decltype(decode(ByteView(), 0).value())>>> {
  std::vector<std::decay_t<decltype(decode(ByteView(), 0).value())>> all;
  for (int index = 0; index < team.size(); ++index) {
    auto decoded = decode(ByteView(messages[static_cast<std::size_t>(index)]), index);
    if (!decoded.ok()) return std::move(decoded).error().with_origin(team.world_rank(index));
    all.push_back(std::move(decoded).value());
  }
  return all;
}

}  // namespace

RegistrationRun::RegistrationRun(WindowManager& manager, EventLoop& loop, boot::Operation operation,
                                 std::vector<WindowRequest> requests, Deadline deadline)
    : manager_(manager),
      loop_(loop),
      operation_(operation),
      deadline_(deadline),
      requests_(std::move(requests)) {
  ++manager.batches_;
}

RegistrationRun::~RegistrationRun() {
  if (committed_) return;
  for (auto it = prepared_.rbegin(); it != prepared_.rend(); ++it) (*it)->rollback();
  for (const RegisteredWindow& window : windows_) options().sink->destroy(window.handle);
  // Disconnects since a pair may have stopped in the middle of a message; the whole team
  // reconnects.
  if (mappings_) processes().disconnect();
}

void RegistrationRun::note(Status status) {
  if (!status.ok() && failure_.ok()) failure_ = std::move(status);
}

void RegistrationRun::stop(Error error) {
  note(std::move(error));
  stopped_ = true;
}

Task<Result<std::vector<RegisteredWindow>>> RegistrationRun::run() {
  ORIEL_CO_CHECK(co_await agree_on_requests());
  if (!requests_.empty()) {
    ORIEL_CO_CHECK(co_await exchange_details());
    ORIEL_CO_CHECK(co_await agree_on_places());
    ORIEL_CO_CHECK(co_await exchange_handles());
    ORIEL_CO_CHECK(co_await import_handles());
    if (!stopped_ && failure_.ok()) note(mappings_->map_new());
    if (!stopped_ && failure_.ok()) note(make_handles());
    ORIEL_CO_CHECK(co_await agree_on_outcome());
  }
  co_return commit();
}

Task<Status> RegistrationRun::agree_on_requests() {
  auto found = find_memory(*options().memory, requests_);
  Status vote;
  if (found.ok()) {
    segments_ = std::move(found).value();
  } else {
    vote = std::move(found).error();
  }
  std::size_t first = 0;
  do {
    auto fields = agreed_fields(requests_, first);
    ORIEL_CO_CHECK(co_await options().world->agree(operation_, std::move(vote), std::move(fields)));
    vote = Status();
    first += kAgreedWindows;  // the number of windows is equal on all ranks from here on
  } while (first < requests_.size());
  co_return Status();
}

Task<Status> RegistrationRun::exchange_details() {
  // Publishes the allocations before the all-gather, so that other ranks of this process find them
  // after it.
  for (auto& segments : segments_) {
    for (Segment& segment : segments) {
      segment.allocation = AllocationTable::instance().publish(segment.allocation);
    }
  }
  Bytes mine =
      encode(describe(requests_, segments_, options().slot_bytes, options().memory->granularity()));
  ORIEL_CO_TRY(const std::vector<Bytes> messages,
               co_await team().all_gather(operation_, std::move(mine)));
  // All ranks of the team hold the same details, so they all continue or all stop.
  auto details = decode_all(team(), messages, [this](ByteView message, int) {
    return decode_details(message, requests_);
  });
  Result<Plan> plan = details.ok() ? make_plan(details.value(), team().members())
                                   : Result<Plan>(std::move(details).error());
  if (plan.ok()) {
    const SlotSpace::Token token{options().communicator, manager_.batches_};
    mappings_.emplace(std::move(plan).value(), team().index(), token);
  } else {
    stop(std::move(plan).error());
  }
  co_return Status();
}

/// Acquires the flat space, finds the live mappings in it, and opens a listener for the peers.
Status RegistrationRun::prepare_places() {
  ORIEL_CHECK(mappings_->find(*options().memory, options().members, options().slot_bytes));
  names_.resize(processes().count());
  ORIEL_TRY(names_[processes().own()], processes().listen());
  return {};
}

PlaceMessage RegistrationRun::next_proposal() {
  if (deadline_.expired(loop_.clock().now())) {
    note(Error(ErrorCode::timeout,
               fmt::format("no place of {} bytes in the slots was agreed in time; other "
                           "registrations of the team are under way",
                           mappings_->wanted_bytes())));
  }
  if (failure_.ok()) {
    auto proposed = mappings_->propose();
    if (proposed.ok()) {
      proposed->socket = names_[processes().own()];
      return std::move(proposed).value();
    }
    note(std::move(proposed).error());
  }
  PlaceMessage message;
  message.failed = true;
  return message;
}

Task<Status> RegistrationRun::agree_on_places() {
  if (stopped_) co_return Status();
  note(prepare_places());
  for (bool agreed = false; !agreed;) {
    Bytes mine = encode(next_proposal());
    ORIEL_CO_TRY(const std::vector<Bytes> messages,
                 co_await team().all_gather(operation_, std::move(mine)));
    auto found = take_places(messages);
    agreed = found.ok() && found.value();
    if (!found.ok()) stop(std::move(found).error());
    if (stopped_) {
      // Drops the proposal now: otherwise other registrations would wait for it until the outcome
      // of this one is known. All ranks of this process have proposed in this round and will not
      // propose again.
      mappings_->drop();
      co_return Status();
    }
  }
  note(mappings_->keep());
  co_return Status();
}

/// Evaluates one round: true if there is a place or none is needed. The result is equal on all
/// ranks.
Result<bool> RegistrationRun::take_places(const std::vector<Bytes>& messages) {
  ORIEL_TRY(const std::vector<PlaceMessage> places,
            decode_all(team(), messages, [this](ByteView message, int) {
              return decode_place(message, mappings_->count());
            }));
  for (const PlaceMessage& place : places) stopped_ = stopped_ || place.failed;
  if (stopped_) return false;
  for (std::size_t i = 0; i < processes().count(); ++i) {
    names_[i] = places[static_cast<std::size_t>(processes().slots_of(i).front())].socket;
  }
  return mappings_->settle(places);
}

Task<Status> RegistrationRun::exchange_handles() {
  if (stopped_ || processes().count() == 1 || !mappings_->has_new()) co_return Status();
  std::vector<std::vector<SegmentInfo>> wanted;
  for (std::size_t i = 0; i < processes().count(); ++i) {
    wanted.push_back(mappings_->wanted_of(processes().slots_of(i)));
  }
  transfer_.emplace(processes(), team(), *options().memory, std::move(wanted));
  const OfferMessage offer = co_await next_offer();
  Bytes mine = encode(offer);
  ORIEL_CO_TRY(const std::vector<Bytes> messages,
               co_await team().all_gather(operation_, std::move(mine)));
  Status taken = take_offers(messages);
  if (!taken.ok()) stop(std::move(taken).error());
  co_return Status();
}

/// Makes the offer. A rank that speaks for its process connects to the peers after making it.
Task<OfferMessage> RegistrationRun::next_offer() {
  OfferMessage offer;
  if (failure_.ok() && processes().speaks()) {
    auto made = transfer_->make_offer();
    if (made.ok()) {
      offer = std::move(made).value();
      std::vector<FdSocketName> names = names_;
      note(co_await processes().dial(loop_, std::move(names), deadline_));
    } else {
      note(std::move(made).error());
    }
  }
  if (failure_.ok()) co_return offer;
  offer = OfferMessage();
  offer.failed = true;
  co_return offer;
}

/// Stores the offers; the result is equal on all ranks of the team.
Status RegistrationRun::take_offers(const std::vector<Bytes>& messages) {
  ORIEL_TRY(std::vector<OfferMessage> offers,
            decode_all(team(), messages, [this](ByteView message, int slot) {
              return decode_offer(message, transfer_->due_from(slot));
            }));
  for (const OfferMessage& offer : offers) stopped_ = stopped_ || offer.failed;
  return stopped_ ? Status() : transfer_->take_offers(std::move(offers));
}

/// Deadline for receiving descriptors: half of the remaining time. The groups do not see waits on
/// the unix sockets. The other half lets peers that wait for this rank learn which rank it waits
/// for. A rank reports a wait of its group after at most a quarter of the time (SessionTransport).
/// The rest remains for the answer.
Deadline RegistrationRun::descriptors_due() const {
  if (deadline_.is_never()) return deadline_;
  const TimePoint now = loop_.clock().now();
  return Deadline::at(now + deadline_.remaining(now) / 2);
}

Task<Status> RegistrationRun::import_handles() {
  if (stopped_ || !transfer_) co_return Status();
  if (processes().speaks()) note(co_await transfer_->import_all(loop_, descriptors_due()));
  if (!processes().has_several_ranks_in_one()) co_return Status();
  // The ranks that do not speak for their process find the imported allocations after this
  // agreement.
  Status mine = failure_;
  std::vector<boot::AgreedField> none;
  Status agreed = co_await team().agree(operation_, std::move(mine), std::move(none));
  if (!agreed.ok()) stop(std::move(agreed).error());
  co_return Status();
}

Status RegistrationRun::make_handles() {
  windows_.reserve(requests_.size());
  for (std::size_t i = 0; i < requests_.size(); ++i) {
    RegisteredWindow window;
    window.user = static_cast<std::byte*>(requests_[i].pointer);
    window.bytes = requests_[i].bytes;
    window.flags = requests_[i].flags;
    window.slot_offset = mappings_->offset_of(i);
    window.flat_base = mappings_->space()->base() + window.slot_offset;
    window.serial = manager_.next_serial_++;
    auto handle = options().sink->create(WindowFacts{window, options().slot_bytes});
    if (!handle.ok()) return std::move(handle).error();
    window.handle = handle.value();
    windows_.push_back(window);
  }
  return options().sink->flush();
}

Task<Status> RegistrationRun::agree_on_outcome() {
  boot::Group& world = *options().world;
  Status mine = failure_;
  std::vector<boot::AgreedField> none;
  ORIEL_CO_CHECK(co_await world.agree(operation_, std::move(mine), std::move(none)));
  prepared_.reserve(options().participants.size());
  for (Participant* participant : options().participants) {
    mine = co_await participant->prepare(loop_, windows_, descriptors_due());
    if (mine.ok()) prepared_.push_back(participant);
    none.clear();
    ORIEL_CO_CHECK(co_await world.agree(operation_, std::move(mine), std::move(none)));
  }
  co_return Status();
}

std::vector<RegisteredWindow> RegistrationRun::commit() {
  if (!requests_.empty()) {
    std::map<const void*, WindowManager::Record> records;
    for (std::size_t i = 0; i < windows_.size(); ++i) {
      records.emplace(windows_[i].handle,
                      WindowManager::Record{windows_[i], mappings_->mapping_of(i)});
    }
    mappings_->publish();
    manager_.registry_.insert(windows_);
    // Nothing throws after this line.
    processes().stop_listening();
    const std::lock_guard lock(manager_.mutex_);
    manager_.records_.merge(records);
  }
  committed_ = true;
  for (Participant* participant : prepared_) participant->commit();
  return std::move(windows_);
}

}  // namespace oriel::window
