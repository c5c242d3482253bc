// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstring>
#include <limits>
#include <string>
#include <utility>

#include <fmt/format.h>
#include <sys/epoll.h>

#include "base/try.hpp"
#include "boot/link/tcp.hpp"
#include "boot/session/rendezvous.hpp"
#include "boot/session/session.hpp"
#include "boot/session/split_message.hpp"

/// Makes sessions from some ranks of a session. The parent's links replace the root service: they
/// carry the addresses and the notices of ranks that cannot link.
namespace oriel::boot {
namespace {

constexpr std::size_t kNamedMembers = 8;

/// Returns the child's number, unpredictable for others and the same on all its ranks.
std::uint64_t number_of_child(const Key& secret) {
  constexpr std::string_view kLabel = "oriel split number v1";
  const Digest digest = keyed_hash(secret, {std::as_bytes(std::span(kLabel))});
  std::uint64_t number = 0;
  std::memcpy(&number, digest.data(), sizeof number);
  return number;
}

/// Copies `error` with another origin; -1 sets none.
Error with_other_origin(const Error& error, int rank) {
  Error copy(error.code(), error.message());
  for (const std::string& context : error.contexts()) {
    copy = std::move(copy).with_context(context);
  }
  const NativeStatus native = error.native();
  copy = std::move(copy)
             .with_scope(error.scope())
             .with_native(native.domain, native.value)
             .with_hint(error.hint());
  if (rank >= 0) copy = std::move(copy).with_origin(rank);
  return copy;
}

std::string names_of(const std::vector<int>& members) {
  const std::size_t named = std::min(members.size(), kNamedMembers);
  return fmt::format("{}{}", fmt::join(members.data(), members.data() + named, ", "),
                     members.size() > named ? ", ..." : "");
}

/// Passes a session to SplitCall::on_session while it links, then null.
class ShownSession {
 public:
  ShownSession(const SplitCall& call, Session& session) : call_(call) { show(&session); }
  ~ShownSession() { show(nullptr); }
  ShownSession(const ShownSession&) = delete;
  ShownSession& operator=(const ShownSession&) = delete;

 private:
  void show(Session* session) const {
    if (call_.on_session) call_.on_session(session);
  }
  const SplitCall& call_;
};

}  // namespace

Error as_seen_by_parent(const Error& error, const std::vector<int>& members) {
  const int origin = error.origin_rank();
  const bool is_member = origin >= 0 && origin < static_cast<int>(members.size());
  return with_other_origin(error, is_member ? members[static_cast<std::size_t>(origin)] : -1)
      .with_context(fmt::format("among the ranks {}, which the split numbers from 0 to {}",
                                names_of(members), members.size() - 1));
}

/// One rank's part in one split.
class Session::Splitting {
 public:
  Splitting(Session& parent, SplitCall call, EventLoop& loop, Deadline deadline)
      : parent_(parent), call_(std::move(call)), loop_(loop), deadline_(deadline) {}
  ~Splitting() { unwatch_parent(); }
  Splitting(const Splitting&) = delete;
  Splitting& operator=(const Splitting&) = delete;

  Task<Result<SplitPart>> run();

 private:
  Result<Bytes> describe();
  Task<Status> exchange();
  Status find_place(const std::vector<Bytes>& all);
  Status make_child(const std::vector<SplitPlace>& places);
  Status watch_parent();
  void unwatch_parent();
  void read_parent();
  bool is_from_member(const Error& error) const;
  Error in_child(const Error& error) const;
  Task<Status> link();
  void notify_members(const Error& error);
  Error give_up(Error error);
  Links& links() const { return *child_->peers_.links(); }
  int member(int rank) const { return members_[static_cast<std::size_t>(rank)]; }

  Session& parent_;
  SplitCall call_;
  EventLoop& loop_;
  Deadline deadline_;
  Listener listener_;
  std::vector<int> members_;
  std::unique_ptr<Session> child_;
  Poller::Token watch_ = 0;
};

Task<Result<SplitPart>> Session::split(EventLoop& loop, SplitCall call, Deadline deadline) {
  ORIEL_CO_TRY(const Activity activity, activate(loop, deadline));
  Splitting splitting(*this, std::move(call), loop, deadline);
  co_return co_await splitting.run();
}

Task<Result<SplitPart>> Session::Splitting::run() {
  Status exchanged = co_await exchange();
  if (!exchanged.ok()) {
    // Ranks that had all messages before the parent failed continue to link, and wait for this one.
    const bool may_differ = child_ != nullptr && parent_.failure().has_value();
    if (may_differ) notify_members(in_child(exchanged.error()));
    co_return std::move(exchanged).error();
  }
  if (child_ == nullptr && call_.color) {
    co_return Error(ErrorCode::remote, "a rank has sent no place, and agreed to the split");
  }
  if (child_ == nullptr) co_return SplitPart{};
  Status linked = co_await link();
  if (!linked.ok()) co_return give_up(std::move(linked).error());
  co_return SplitPart{std::move(child_), std::move(members_)};
}

/// Starts to listen, and returns this rank's SplitPlace for the other ranks.
Result<Bytes> Session::Splitting::describe() {
  if (call_.refused) return *call_.refused;
  SplitPlace mine = {
      .color = call_.color, .key = call_.key, .serial = parent_.splits_, .address = {}};
  if (call_.color && parent_.size_ > 1) {
    ORIEL_TRY(listener_, listen_tcp(parent_.own_address_.with_port(0)));
    mine.address = listener_.address;
  }
  return encode(mine);
}

/// Completes with a child on every rank that has a color, or with one error on all ranks. If the
/// parent fails meanwhile, the outcome can differ between ranks.
Task<Status> Session::Splitting::exchange() {
  // An empty message stands for a failure; the agreement after the exchange returns its reason.
  auto described = describe();
  Bytes mine = described.ok() ? described.value() : Bytes();
  ORIEL_CO_TRY(const std::vector<Bytes> all,
               co_await parent_.world_.all_gather(Operation::split, std::move(mine)));
  Status local = described.ok() ? find_place(all) : Status(std::move(described).error());
  std::vector<AgreedField> none;
  co_return co_await parent_.world_.agree(Operation::split, std::move(local), std::move(none));
}

Status Session::Splitting::find_place(const std::vector<Bytes>& all) {
  std::vector<SplitPlace> places;
  std::uint64_t serial = 0;
  for (int rank = 0; rank < parent_.size_; ++rank) {
    const Bytes& bytes = all[static_cast<std::size_t>(rank)];
    if (bytes.empty()) return {};  // the agreement will end the split
    auto place = decode_split_place(bytes);
    if (!place.ok()) {
      return std::move(place).error().with_context(fmt::format("the place of rank {}", rank));
    }
    serial = std::max(serial, place->serial);
    places.push_back(std::move(place).value());
  }
  if (serial == std::numeric_limits<std::uint64_t>::max()) {
    return Error(ErrorCode::remote,
                 fmt::format("a rank has sent {} as the number of its splits; the limit is {}",
                             serial, serial - 1));
  }
  parent_.splits_ = serial + 1;
  if (!call_.color) return {};
  for (int rank = 0; rank < parent_.size_; ++rank) {
    if (places[static_cast<std::size_t>(rank)].color == call_.color) members_.push_back(rank);
  }
  std::stable_sort(members_.begin(), members_.end(), [&](int a, int b) {
    return places[static_cast<std::size_t>(a)].key < places[static_cast<std::size_t>(b)].key;
  });
  return make_child(places);
}

Status Session::Splitting::make_child(const std::vector<SplitPlace>& places) {
  const Key secret =
      Key::derive_child(parent_.key(KeyPurpose::split), parent_.splits_ - 1, *call_.color);
  const auto self = std::find(members_.begin(), members_.end(), parent_.rank_);
  const auto rank = static_cast<int>(self - members_.begin());
  const auto size = static_cast<int>(members_.size());
  const std::uint64_t number = number_of_child(secret);
  child_.reset(new Session(number, secret, rank, size));
  if (size == 1) return {};
  ORIEL_CHECK(child_->peers_.open(
      {.rank = rank, .size = size, .realm = number, .key = child_->key(KeyPurpose::link)},
      loop_.clock()));
  child_->own_address_ = listener_.address;
  for (int peer = 0; peer < size; ++peer) {
    const SocketAddress& address = places[static_cast<std::size_t>(member(peer))].address;
    if (!address.valid()) {
      return Error(ErrorCode::remote, fmt::format("rank {} does not listen", member(peer)));
    }
    child_->note_address(peer, address);
  }
  const auto lock = child_->peers_.lock();
  ORIEL_CHECK(links().acceptor().listen_on(std::move(listener_.fd)));
  child_->listening_ = true;
  return watch_parent();
}

/// Adds the parent's links to the child's poller: failures arrive on them while the child has no
/// links of its own. Lock order: the child's lock before the parent's.
Status Session::Splitting::watch_parent() {
  ORIEL_TRY(watch_, links().poller().add(parent_.transport_.notice_fd(), EPOLLIN,
                                         [this](std::uint32_t) { read_parent(); }));
  return {};
}

void Session::Splitting::unwatch_parent() {
  if (watch_ == 0) return;
  const auto lock = child_->peers_.lock();
  links().poller().remove(std::exchange(watch_, 0));
}

bool Session::Splitting::is_from_member(const Error& error) const {
  return std::find(members_.begin(), members_.end(), error.origin_rank()) != members_.end();
}

/// Translates an error of the parent for the child's ranks.
Error Session::Splitting::in_child(const Error& error) const {
  const auto self = std::find(members_.begin(), members_.end(), error.origin_rank());
  const int origin = self == members_.end() ? -1 : static_cast<int>(self - members_.begin());
  return with_other_origin(error, origin).with_context("in the communicator that is being split");
}

/// Processes the parent's notices. Ends the linking if a member has died or given up; failures of
/// other ranks concern only the parent.
void Session::Splitting::read_parent() {
  Liveness& liveness = links().liveness();
  const Status received = parent_.transport_.receive_notices();
  if (!received.ok() && is_from_member(received.error())) {
    liveness.aborted(child_->rank_, in_child(received.error()));
  }
  for (const int peer : link_neighbours(child_->rank_, child_->size_)) {
    while (const auto note = parent_.peers_.take_note(NoteTopic::split, member(peer))) {
      const auto failure = decode_split_failure(note->text);
      if (failure.ok() && failure->child == child_->number_) {
        liveness.aborted(peer, failure->reason);
      }
    }
  }
}

Task<Status> Session::Splitting::link() {
  if (child_->size_ == 1) co_return Status();
  const ShownSession shown(call_, *child_);
  ORIEL_CO_TRY(const Activity activity, child_->activate(loop_, deadline_));
  {
    const auto lock = child_->peers_.lock();
    read_parent();  // for notices that came with the last messages of the exchange
  }
  Status linked = co_await child_->link_up();
  unwatch_parent();
  co_return linked;
}

/// Reports to this rank's neighbours in the child that it cannot link, even if they have no link
/// yet. Each of them forwards the failure to its own neighbours.
void Session::Splitting::notify_members(const Error& error) {
  for (const int peer : link_neighbours(child_->rank_, child_->size_)) {
    static_cast<void>(parent_.peers_.send_note(
        member(peer), encode(SplitFailure{child_->number_, error}), NoteTopic::split));
  }
}

Error Session::Splitting::give_up(Error error) {
  child_->abort(error);
  if (auto first = child_->failure()) error = std::move(*first);
  notify_members(error);
  auto of_parent = parent_.failure();
  if (of_parent && is_from_member(*of_parent)) return std::move(*of_parent);
  return as_seen_by_parent(error, members_);
}

}  // namespace oriel::boot
