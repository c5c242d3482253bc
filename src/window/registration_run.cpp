// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "window/registration_run.hpp"

#include <algorithm>
#include <functional>
#include <iterator>
#include <utility>

#include <fmt/format.h>

#include "base/try.hpp"
#include "window/allocation_table.hpp"

namespace oriel::window {

RegistrationRun::RegistrationRun(WindowManager& manager, EventLoop& loop, boot::Operation operation,
                                 std::vector<WindowRequest> requests, Deadline deadline)
    : manager_(manager),
      loop_(loop),
      operation_(operation),
      deadline_(deadline),
      token_{manager.options_.communicator, ++manager.batches_},
      requests_(std::move(requests)) {}

RegistrationRun::~RegistrationRun() {
  if (committed_) return;
  for (auto it = prepared_.rbegin(); it != prepared_.rend(); ++it) (*it)->rollback();
  for (const RegisteredWindow& window : windows_) options().sink->destroy(window.handle);
  if (space_ != nullptr) space_->slots().drop(token_);
  if (!team_began_) return;
  // A pair may have been left in the middle of a message; all ranks of the team connect anew.
  if (manager_.exchange_ != nullptr) manager_.exchange_->disconnect();
  manager_.exchange_connected_ = false;
}

bool RegistrationRun::several_ranks_somewhere() const {
  return manager_.processes_.size() < options().members.size();
}

bool RegistrationRun::something_to_send() const {
  return several_processes() && std::find(is_new_.begin(), is_new_.end(), true) != is_new_.end();
}

bool RegistrationRun::spans_domains() const {
  const auto& domains = manager_.domains_;
  return std::adjacent_find(domains.begin(), domains.end(), std::not_equal_to<>()) != domains.end();
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
    ORIEL_CO_CHECK(co_await exchange_descriptors());
    ORIEL_CO_CHECK(co_await await_imports());
    if (!stopped_ && failure_.ok()) note(map_new());
    if (!stopped_ && failure_.ok()) note(make_handles());
    ORIEL_CO_CHECK(co_await agree_on_outcome());
  }
  co_return commit();
}

Task<Status> RegistrationRun::agree_on_requests() {
  auto found = find_memory(*options().memory, requests_);
  Status verdict;
  if (found.ok()) {
    segments_ = std::move(found).value();
  } else {
    verdict = std::move(found).error();
  }
  std::size_t first = 0;
  do {
    auto fields = agreed_fields(requests_, first);
    ORIEL_CO_CHECK(
        co_await options().world->agree(operation_, std::move(verdict), std::move(fields)));
    verdict = Status();
    first += kAgreedWindows;  // the number of windows is the same everywhere from here on
  } while (first < requests_.size());
  co_return Status();
}

Task<Status> RegistrationRun::exchange_details() {
  team_began_ = true;
  // Found by the other ranks of this process once their gathering has ended.
  for (auto& segments : segments_) {
    for (Segment& segment : segments) {
      segment.allocation = AllocationTable::instance().publish(segment.allocation);
    }
  }
  const auto& memory = *options().memory;
  Bytes mine = encode(describe(requests_, segments_, options().slot_bytes, memory.granularity()));
  Gathered gathered = co_await team().all_gather(operation_, std::move(mine));
  if (!gathered.ok()) co_return std::move(gathered).error();
  std::vector<RankDetails> details;
  for (std::size_t i = 0; i < gathered->size(); ++i) {
    auto decoded = decode_details(gathered.value()[i], requests_);
    if (!decoded.ok()) {
      stop(std::move(decoded).error().with_origin(team().world_rank(static_cast<int>(i))));
      co_return Status();
    }
    details.push_back(std::move(decoded).value());
  }
  // All ranks of the team hold the same details, so they all go on or all stop.
  auto plan = make_plan(details, team().members());
  if (!plan.ok()) {
    stop(std::move(plan).error());
    co_return Status();
  }
  plan_ = std::move(plan).value();
  mappings_.resize(plan_.mappings.size());
  co_return Status();
}

/// The flat space, what is alive here, and a socket for the peers to connect to.
void RegistrationRun::prepare_places() {
  auto space = FlatSpace::acquire(*options().memory, options().members, options().slot_bytes);
  if (!space.ok()) return note(std::move(space).error());
  space_ = std::move(space).value();
  const int index = team().index();
  for (std::size_t i = 0; i < plan_.mappings.size(); ++i) {
    mappings_[i] = TeamMapping::find(*space_, index, plan_.mappings[i]);
  }
  names_.resize(manager_.processes_.size());
  if (manager_.exchange_ != nullptr && !manager_.exchange_connected_) {
    auto name = manager_.exchange_->listen();
    if (!name.ok()) return note(std::move(name).error());
    names_[manager_.own_process_] = name.value();
  }
}

PlaceMessage RegistrationRun::place_message(const PlaceSearch& search) {
  PlaceMessage message;
  message.bytes = search.bytes;
  if (failure_.ok() && search.bytes > 0) {
    auto proposal = space_->slots().propose(token_, search.bytes, search.floor, search.pass);
    if (!proposal.ok()) {
      note(std::move(proposal).error());
    } else if (proposal->kind == SlotSpace::Proposal::Kind::none &&
               search.pass == SlotSpace::Pass::patient) {
      note(space_->slots().no_room(search.bytes));
    } else {
      message.proposal = proposal.value();
    }
  }
  message.failed = !failure_.ok();
  if (message.failed) return message;
  message.socket = names_[manager_.own_process_];
  for (const auto& mapping : mappings_) {
    message.anchors.push_back(mapping ? mapping->anchor() : PlaceMessage::kNotAlive);
  }
  return message;
}

Task<Status> RegistrationRun::agree_on_places() {
  if (stopped_) co_return Status();
  prepare_places();
  // The first proposal takes this rank's view for the team's: it mostly is.
  is_new_.assign(mappings_.size(), false);
  for (std::size_t i = 0; i < mappings_.size(); ++i) is_new_[i] = mappings_[i] == nullptr;
  PlaceSearch search{.bytes = lay_out(plan_, is_new_).bytes};
  for (;;) {
    if (deadline_.expired(loop_.clock().now())) {
      note(Error(ErrorCode::timeout,
                 fmt::format("no place of {} bytes in the slots was agreed in time; other "
                             "registrations of the team are under way",
                             search.bytes)));
    }
    Bytes mine = encode(place_message(search));
    Gathered gathered = co_await team().all_gather(operation_, std::move(mine));
    if (!gathered.ok()) co_return std::move(gathered).error();
    auto found = take_places(gathered.value(), search);
    const bool agreed = found.ok() && found.value();
    if (!found.ok()) stop(std::move(found).error());
    if (stopped_) {
      // Not later: other registrations would wait for it until this one's outcome is known. All
      // ranks of this process have proposed in this round and will not again.
      if (space_ != nullptr) space_->slots().drop(token_);
      co_return Status();
    }
    if (agreed) {
      note(keep_places());
      co_return Status();
    }
  }
}

/// What follows from one round, the same on all ranks: true if there is a place or none is needed,
/// else `search` is that of the next round.
Result<bool> RegistrationRun::take_places(const std::vector<Bytes>& messages, PlaceSearch& search) {
  std::vector<PlaceMessage> places;
  for (std::size_t i = 0; i < messages.size(); ++i) {
    auto place = decode_place(messages[i], plan_.mappings.size());
    if (!place.ok()) {
      return std::move(place).error().with_origin(team().world_rank(static_cast<int>(i)));
    }
    stopped_ = stopped_ || place->failed;
    places.push_back(std::move(place).value());
  }
  if (stopped_) return false;
  for (std::size_t i = 0; i < manager_.processes_.size(); ++i) {
    names_[i] = places[static_cast<std::size_t>(manager_.processes_[i].front())].socket;
  }
  is_new_ = mappings_to_make(places, plan_.mappings.size());
  layout_ = lay_out(plan_, is_new_);
  search.bytes = layout_.bytes;
  if (search.bytes == 0) return true;
  const auto place = settle(search, places);
  place_ = place.value_or(0);
  return place.has_value();
}

/// Takes the place that all have proposed, and divides it among the new mappings.
Status RegistrationRun::keep_places() {
  if (layout_.bytes == 0) {
    space_->slots().drop(token_);  // proposed for a mapping that the round found alive
    return {};
  }
  ORIEL_CHECK(space_->slots().keep(token_));
  const std::size_t granularity = plan_.granularity;
  std::size_t end = (layout_.bytes + granularity - 1) / granularity * granularity;
  for (std::size_t i = mappings_.size(); i-- > 0;) {
    if (!is_new_[i]) continue;
    // Each has the gap behind it too, so that all of the place is given back in the end.
    SlotPlace place(space_, place_ + layout_.offsets[i], end - layout_.offsets[i]);
    end = layout_.offsets[i];
    mappings_[i] =
        std::make_shared<TeamMapping>(space_, team().index(), plan_.mappings[i], std::move(place));
  }
  return {};
}

Task<Status> RegistrationRun::exchange_handles() {
  if (stopped_ || !something_to_send()) co_return Status();
  OfferMessage offer;
  if (failure_.ok() && manager_.speaks_) {
    note(make_offer(offer));
    if (failure_.ok() && manager_.exchange_ != nullptr && !manager_.exchange_connected_) {
      std::vector<FdSocketName> names;
      for (std::size_t i = 0; i < names_.size(); ++i) {
        if (manager_.places_[i] >= 0) names.push_back(names_[i]);
      }
      note(co_await manager_.exchange_->dial(loop_, std::move(names), deadline_));
    }
  }
  offer.failed = !failure_.ok();
  if (offer.failed) offer.handles.clear();
  Bytes mine = encode(offer);
  Gathered gathered = co_await team().all_gather(operation_, std::move(mine));
  if (!gathered.ok()) co_return std::move(gathered).error();
  if (Status taken = take_offers(gathered.value()); !taken.ok()) stop(std::move(taken).error());
  co_return Status();
}

Status RegistrationRun::make_offer(OfferMessage& offer) {
  const auto& slots = manager_.processes_[manager_.own_process_];
  for (const SegmentInfo& info : allocations_of(plan_, is_new_, slots)) {
    const AllocationRef allocation = AllocationTable::instance().find(info.id);
    if (allocation == nullptr) {
      return Error(ErrorCode::internal,
                   fmt::format("allocation {} of this process is unknown to it", info.id.serial));
    }
    auto handle = options().memory->export_handle(*allocation);
    if (!handle.ok()) return std::move(handle).error();
    if (auto* fabric = std::get_if<FabricHandle>(&handle.value())) {
      offer.handles.emplace_back(*fabric);
    } else if (spans_domains()) {
      return Error(ErrorCode::invalid_argument,
                   fmt::format("memory of {} bytes has no fabric handle, by which alone it could "
                               "travel to the ranks of its team on other nodes",
                               info.bytes))
          .with_hint("create it with CU_MEM_HANDLE_TYPE_FABRIC too, or with ncclMemAlloc");
    } else {
      offer.handles.emplace_back();
      outgoing_.push_back(std::get<OwnedFd>(std::move(handle).value()));
    }
  }
  return {};
}

/// The same on all ranks of the team.
Status RegistrationRun::take_offers(const std::vector<Bytes>& messages) {
  offers_.resize(manager_.processes_.size());
  for (std::size_t process = 0; process < offers_.size(); ++process) {
    const auto& slots = manager_.processes_[process];
    for (const int slot : slots) {
      const std::size_t due =
          slot == slots.front() ? allocations_of(plan_, is_new_, slots).size() : 0;
      auto offer = decode_offer(messages[static_cast<std::size_t>(slot)], due);
      if (!offer.ok()) return std::move(offer).error().with_origin(team().world_rank(slot));
      stopped_ = stopped_ || offer->failed;
      if (spans_domains() && std::find(offer->handles.begin(), offer->handles.end(),
                                       std::nullopt) != offer->handles.end()) {
        return Error(ErrorCode::remote, "a file descriptor is announced to ranks of other nodes")
            .with_origin(team().world_rank(slot));
      }
      if (slot == slots.front()) offers_[process] = std::move(offer).value();
    }
  }
  return {};
}

/// Until when to wait for descriptors. Waits on the unix sockets are not the session's, which tells
/// the ranks who waits for whom; so there is time left in which this rank waits there, and those
/// who wait for it learn whom it lacks: a quarter of the time, after which a rank tells of a wait,
/// and as much again.
Deadline RegistrationRun::descriptors_due() const {
  if (deadline_.is_never()) return deadline_;
  const TimePoint now = loop_.clock().now();
  return Deadline::at(now + deadline_.remaining(now) / 2);
}

Task<Status> RegistrationRun::exchange_descriptors() {
  if (stopped_ || !something_to_send()) co_return Status();
  exchanged_ = true;
  if (!manager_.speaks_) co_return Status();
  auto arrived = co_await receive_descriptors();
  note(arrived.ok() ? import_all(std::move(arrived).value()) : Status(std::move(arrived).error()));
  co_return Status();
}

/// By place in the exchange; none where all handles have come inline and no process is near.
Task<Result<std::vector<std::vector<OwnedFd>>>> RegistrationRun::receive_descriptors() {
  std::vector<std::vector<OwnedFd>> arrived;
  if (manager_.exchange_ == nullptr) co_return arrived;
  FdExchange& exchange = *manager_.exchange_;
  const Deadline due = descriptors_due();
  if (!exchange.connected()) {
    ORIEL_CO_CHECK(co_await exchange.prove(loop_, due));
  }
  std::vector<std::size_t> counts;
  for (std::size_t process = 0; process < offers_.size(); ++process) {
    if (manager_.places_[process] < 0) continue;
    const auto& handles = offers_[process].handles;
    counts.push_back(
        static_cast<std::size_t>(std::count(handles.begin(), handles.end(), std::nullopt)));
  }
  co_return co_await exchange.exchange(loop_, std::move(outgoing_), std::move(counts), due);
}

Status RegistrationRun::import_all(std::vector<std::vector<OwnedFd>> arrived) {
  for (std::size_t process = 0; process < offers_.size(); ++process) {
    if (process == manager_.own_process_) continue;
    const auto& slots = manager_.processes_[process];
    const auto infos = allocations_of(plan_, is_new_, slots);
    const auto place = static_cast<std::size_t>(manager_.places_[process]);  // if near
    std::size_t next_fd = 0;
    for (std::size_t i = 0; i < infos.size(); ++i) {
      const auto& fabric = offers_[process].handles[i];
      ShareableHandle handle =
          fabric ? ShareableHandle(*fabric) : ShareableHandle(std::move(arrived[place][next_fd++]));
      Status done = import_one(std::move(handle), infos[i]);
      if (done.ok()) continue;
      const int rank = team().world_rank(slots.front());
      Error error =
          std::move(done).error().with_context(fmt::format("importing memory of rank {}", rank));
      if (error.code() != ErrorCode::remote) return error;
      return std::move(error).with_origin(rank);
    }
  }
  return {};
}

Status RegistrationRun::import_one(ShareableHandle handle, const SegmentInfo& info) {
  AllocationRef allocation = AllocationTable::instance().find(info.id);
  if (allocation == nullptr) {
    auto made = options().memory->import_handle(std::move(handle), info.id, info.bytes);
    if (!made.ok()) return std::move(made).error();
    // Another communicator may have imported it since.
    allocation = AllocationTable::instance().publish(made.value());
  }
  if (allocation->bytes() != info.bytes) {
    return Error(ErrorCode::remote, fmt::format("an allocation of {} bytes was announced with {}",
                                                allocation->bytes(), info.bytes));
  }
  imported_.push_back(std::move(allocation));
  return {};
}

/// The ranks that do not speak for their process find what the speaker has imported after this.
Task<Status> RegistrationRun::await_imports() {
  if (stopped_ || !something_to_send() || !several_ranks_somewhere()) co_return Status();
  Status mine = failure_;
  std::vector<boot::AgreedField> none;
  Status agreed = co_await team().agree(operation_, std::move(mine), std::move(none));
  if (!agreed.ok()) stop(std::move(agreed).error());
  co_return Status();
}

Status RegistrationRun::map_new() {
  for (std::size_t i = 0; i < mappings_.size(); ++i) {
    if (is_new_[i]) ORIEL_CHECK(mappings_[i]->map_all());
  }
  return {};
}

Status RegistrationRun::make_handles() {
  for (std::size_t i = 0; i < requests_.size(); ++i) {
    RegisteredWindow window;
    window.user = static_cast<std::byte*>(requests_[i].pointer);
    window.bytes = requests_[i].bytes;
    window.flags = requests_[i].flags;
    window.slot_offset =
        mappings_[plan_.windows[i].mapping]->anchor() + plan_.windows[i].behind_anchor;
    window.flat_base = space_->base() + window.slot_offset;
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
  for (Participant* participant : options().participants) {
    mine = co_await participant->prepare(loop_, windows_, descriptors_due());
    if (mine.ok()) prepared_.push_back(participant);
    none.clear();
    ORIEL_CO_CHECK(co_await world.agree(operation_, std::move(mine), std::move(none)));
  }
  co_return Status();
}

std::vector<RegisteredWindow> RegistrationRun::commit() {
  committed_ = true;
  if (requests_.empty()) return {};
  if (exchanged_) {
    manager_.exchange_connected_ = true;
  } else if (manager_.exchange_ != nullptr && !manager_.exchange_connected_) {
    manager_.exchange_->disconnect();  // nobody had to connect
  }
  for (std::size_t i = 0; i < mappings_.size(); ++i) {
    if (is_new_[i]) TeamMapping::publish(mappings_[i]);
  }
  {
    const std::lock_guard lock(manager_.mutex_);
    manager_.space_ = space_;  // not before: a first registration that fails reserves nothing
    for (std::size_t i = 0; i < windows_.size(); ++i) {
      manager_.records_.emplace(
          windows_[i].handle,
          WindowManager::Record{windows_[i], mappings_[plan_.windows[i].mapping]});
    }
  }
  manager_.registry_.insert(windows_);
  for (Participant* participant : prepared_) participant->commit();
  return std::move(windows_);
}

}  // namespace oriel::window
