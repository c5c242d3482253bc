// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "window/registration/registration_run.hpp"

#include <algorithm>
#include <functional>
#include <iterator>
#include <new>
#include <utility>

#include <fmt/format.h>

#include "base/no_memory.hpp"
#include "base/short_memory.hpp"
#include "base/try.hpp"
#include "window/memory/allocation_table.hpp"

namespace oriel::window {
namespace {

/// A step of this rank alone, in which memory that runs out is a failure like any other: the others
/// learn of it in the next round. In the rounds themselves it would leave them alone, so there it
/// is waited for.
template <typename Step>
auto locally(const Step& step) -> decltype(step()) {
  try {
    return step();
  } catch (const std::bad_alloc&) {
    return no_memory_error();
  }
}

template <typename T>
Task<T> locally(Task<T> step) {
  try {
    co_return co_await std::move(step);
  } catch (const std::bad_alloc&) {  // NOLINT(bugprone-empty-catch): below
  }
  co_return no_memory_error();
}

}  // namespace

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
  manager_.registry_.drop_stage();
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
    if (!stopped_ && failure_.ok()) note(locally([this] { return make_ready(); }));
    ORIEL_CO_CHECK(co_await agree_on_outcome());
  }
  co_return commit();
}

Task<Status> RegistrationRun::agree_on_requests() {
  auto found = locally([this] { return find_memory(*options().memory, requests_); });
  Status verdict;
  if (found.ok()) {
    segments_ = std::move(found).value();
  } else {
    verdict = std::move(found).error();
  }
  std::size_t first = 0;
  do {
    auto fields = despite_short_memory([&] { return agreed_fields(requests_, first); });
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
  const Status published = locally([this] {
    for (auto& segments : segments_) {
      for (Segment& segment : segments) {
        segment.allocation = AllocationTable::instance().publish(segment.allocation);
      }
    }
    return Status();
  });
  note(published);
  Bytes mine = despite_short_memory([this] {
    return encode(
        describe(requests_, segments_, options().slot_bytes, options().memory->granularity()));
  });
  Gathered gathered = co_await team().all_gather(operation_, std::move(mine));
  if (!gathered.ok()) co_return std::move(gathered).error();
  // All ranks of the team hold the same details, so they all go on or all stop.
  auto plan = despite_short_memory([&] { return plan_of(gathered.value()); });
  if (!plan.ok()) {
    stop(std::move(plan).error());
    co_return Status();
  }
  plan_ = std::move(plan).value();
  despite_short_memory([this] {
    mappings_.resize(plan_.mappings.size());
    is_new_.resize(plan_.mappings.size());
  });
  co_return Status();
}

Result<Plan> RegistrationRun::plan_of(const std::vector<Bytes>& messages) {
  std::vector<RankDetails> details;
  for (std::size_t i = 0; i < messages.size(); ++i) {
    auto decoded = decode_details(messages[i], requests_);
    if (!decoded.ok()) {
      return std::move(decoded).error().with_origin(team().world_rank(static_cast<int>(i)));
    }
    details.push_back(std::move(decoded).value());
  }
  return make_plan(details, team().members());
}

/// The flat space, what is alive here, and a socket for the peers to connect to.
Status RegistrationRun::prepare_places() {
  ORIEL_TRY(space_, FlatSpace::acquire(*options().memory, options().members, options().slot_bytes));
  const int index = team().index();
  for (std::size_t i = 0; i < plan_.mappings.size(); ++i) {
    mappings_[i] = TeamMapping::find(*space_, index, plan_.mappings[i]);
  }
  names_.resize(manager_.processes_.size());
  if (manager_.exchange_ != nullptr && !manager_.exchange_connected_) {
    ORIEL_TRY(names_[manager_.own_process_], manager_.exchange_->listen());
  }
  return {};
}

Status RegistrationRun::propose(const PlaceSearch& search, SlotSpace::Proposal& out) {
  if (search.bytes == 0) return {};
  ORIEL_TRY(out, space_->slots().propose(token_, search.bytes, search.floor, search.pass));
  if (out.kind != SlotSpace::Proposal::Kind::none || search.pass != SlotSpace::Pass::patient) {
    return {};
  }
  return space_->slots().no_room(search.bytes);
}

PlaceMessage RegistrationRun::place_message(const PlaceSearch& search,
                                            const SlotSpace::Proposal& proposal) const {
  PlaceMessage message;
  message.bytes = search.bytes;
  message.failed = !failure_.ok();
  if (message.failed) return message;
  message.proposal = proposal;
  message.socket = names_[manager_.own_process_];
  for (const auto& mapping : mappings_) {
    message.anchors.push_back(mapping ? mapping->anchor() : PlaceMessage::kNotAlive);
  }
  return message;
}

Task<Status> RegistrationRun::agree_on_places() {
  if (stopped_) co_return Status();
  note(locally([this] { return prepare_places(); }));
  // The first proposal takes this rank's view for the team's: it mostly is.
  for (std::size_t i = 0; i < mappings_.size(); ++i) is_new_[i] = mappings_[i] == nullptr;
  PlaceSearch search{.bytes =
                         despite_short_memory([this] { return lay_out(plan_, is_new_).bytes; })};
  for (;;) {
    if (deadline_.expired(loop_.clock().now())) {
      note(Error(ErrorCode::timeout,
                 fmt::format("no place of {} bytes in the slots was agreed in time; other "
                             "registrations of the team are under way",
                             search.bytes)));
    }
    SlotSpace::Proposal proposal;
    if (failure_.ok()) note(locally([&] { return propose(search, proposal); }));
    Bytes mine = despite_short_memory([&] { return encode(place_message(search, proposal)); });
    Gathered gathered = co_await team().all_gather(operation_, std::move(mine));
    if (!gathered.ok()) co_return std::move(gathered).error();
    auto found = despite_short_memory([&] { return take_places(gathered.value(), search); });
    const bool agreed = found.ok() && found.value();
    if (!found.ok()) stop(std::move(found).error());
    if (stopped_) {
      // Not later: other registrations would wait for it until this one's outcome is known. All
      // ranks of this process have proposed in this round and will not again.
      if (space_ != nullptr) space_->slots().drop(token_);
      co_return Status();
    }
    if (agreed) {
      note(locally([this] { return keep_places(); }));
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
  new_places_.reserve(mappings_.size());
  ORIEL_CHECK(space_->slots().keep(token_));
  const std::size_t granularity = plan_.granularity;
  std::size_t end = (layout_.bytes + granularity - 1) / granularity * granularity;
  for (std::size_t i = mappings_.size(); i-- > 0;) {
    const std::size_t begin = is_new_[i] ? layout_.offsets[i] : end;
    // Each has the gap behind it too, so that all of the place is given back in the end.
    new_places_.emplace_back(is_new_[i] ? space_ : nullptr, place_ + begin, end - begin);
    end = begin;
  }
  for (std::size_t i = 0; i < mappings_.size(); ++i) {
    if (!is_new_[i]) continue;
    mappings_[i] = std::make_shared<TeamMapping>(space_, team().index(), plan_.mappings[i],
                                                 std::move(new_places_[mappings_.size() - 1 - i]));
  }
  return {};
}

Task<Status> RegistrationRun::exchange_handles() {
  if (stopped_ || !something_to_send()) co_return Status();
  OfferMessage offer;
  if (failure_.ok() && manager_.speaks_) {
    note(locally([&] { return make_offer(offer); }));
    if (failure_.ok() && manager_.exchange_ != nullptr && !manager_.exchange_connected_) {
      Task<Status> dialing = dial();
      note(co_await locally(std::move(dialing)));
    }
  }
  offer.failed = !failure_.ok();
  if (offer.failed) offer.handles.clear();
  Bytes mine = despite_short_memory([&] { return encode(offer); });
  Gathered gathered = co_await team().all_gather(operation_, std::move(mine));
  if (!gathered.ok()) co_return std::move(gathered).error();
  Status taken = despite_short_memory([&] { return take_offers(gathered.value()); });
  if (!taken.ok()) stop(std::move(taken).error());
  co_return Status();
}

Task<Status> RegistrationRun::dial() {
  std::vector<FdSocketName> names;
  for (std::size_t i = 0; i < names_.size(); ++i) {
    if (manager_.places_[i] >= 0) names.push_back(names_[i]);
  }
  co_return co_await manager_.exchange_->dial(loop_, std::move(names), deadline_);
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
  auto receiving = receive_descriptors();
  auto arrived = co_await locally(std::move(receiving));
  if (arrived.ok()) {
    note(locally([&] { return import_all(std::move(arrived).value()); }));
  } else {
    // So that no other process waits for what this one cannot send any more.
    if (manager_.exchange_ != nullptr) manager_.exchange_->disconnect();
    note(std::move(arrived).error());
  }
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
  Status mine = despite_short_memory([this] { return failure_; });
  std::vector<boot::AgreedField> none;
  Status agreed = co_await team().agree(operation_, std::move(mine), std::move(none));
  if (!agreed.ok()) stop(std::move(agreed).error());
  co_return Status();
}

/// All that a commit needs. What is made here and not committed goes with this object.
Status RegistrationRun::make_ready() {
  ORIEL_CHECK(map_new());
  ORIEL_CHECK(make_handles());
  prepare_commit();
  return {};
}

Status RegistrationRun::map_new() {
  for (std::size_t i = 0; i < mappings_.size(); ++i) {
    if (is_new_[i]) ORIEL_CHECK(mappings_[i]->map_all());
  }
  return {};
}

Status RegistrationRun::make_handles() {
  windows_.reserve(requests_.size());  // a handle that is made has its place here
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
  Status mine = despite_short_memory([this] { return failure_; });
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

void RegistrationRun::prepare_commit() {
  for (std::size_t i = 0; i < windows_.size(); ++i) {
    records_.emplace(windows_[i].handle,
                     WindowManager::Record{windows_[i], mappings_[plan_.windows[i].mapping]});
  }
  manager_.registry_.stage(windows_);
  prepared_.reserve(options().participants.size());
}

/// Needs no memory: the other ranks have their windows by now.
std::vector<RegisteredWindow> RegistrationRun::commit() noexcept {
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
    manager_.records_.merge(records_);
  }
  manager_.registry_.commit_stage();
  for (Participant* participant : prepared_) participant->commit();
  return std::move(windows_);
}

}  // namespace oriel::window
