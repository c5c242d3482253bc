// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#include "net/soft/requester.hpp"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <numeric>
#include <utility>

#include "base/short_memory.hpp"
#include "net/copy/host_memory.hpp"
#include "net/queue/byte_order.hpp"
#include "net/queue/key_aliases.hpp"
#include "net/queue/queue_records.hpp"

namespace oriel::net {
namespace {

constexpr std::size_t kActiveMost = 64;  // entries at work at a time
constexpr std::size_t kSentMost = 64;    // requests without a response
constexpr std::size_t kBlock = 64;
// A timeout in which nothing at all has come from the peer's NIC, or from which it is known to have
// the request, counts for as many in which the request may still be on its way over a slow link.
constexpr std::uint64_t kSilent = 8;

// What takes longer has too much before it: so short a part of the time after which a request is
// repeated, let alone a queue or a path given up, that whoever is there is heard in time.
Duration slow_answer(const QueueSetup& setup) {
  return std::max<Duration>(setup.answer_timeout / 4, std::chrono::milliseconds(50));
}

bool waits_for_data(const WorkRequest& work) {
  return work.kind == WorkKind::read || work.kind == WorkKind::atomic;
}

}  // namespace

Requester::Requester(const QueueSetup& setup, std::uint32_t number, NicContext& nic)
    : setup_(setup),
      number_(number),
      name_(setup.named != 0 ? setup.named : number),
      nic_(nic),
      reader_(setup.memory.ring, setup.memory.depth, name_),
      completions_(setup.memory.completions, setup.memory.completion_count),
      end_(setup.first_index),
      fetched_(setup.first_index),
      completed_(setup.first_index),
      window_(slow_answer(setup)) {}

void Requester::connect(const QueuePeer& peer) {
  peer_ = peer;
  if (setup_.records == nullptr) return;
  end_ = fetched_ = completed_ = setup_.records->completed;
  next_number_ = setup_.records->number;
}

bool Requester::progress(TimePoint now) {
  if (nic_.sends_nothing) {
    forget_unsent();
    return false;
  }
  bool any = fetch();
  look_at_timer(now);
  ask_again(now);
  any = go_on_landing() || any;
  if (transmit_again(now)) any = begin_entries(now) || any;
  return retire() || any;
}

bool Requester::fetch() {
  bool any = false;
  while (halted_at_ == kNone && fetched_ < end_ && active_.size() < kActiveMost) {
    // Before anything else, so that both can be done again.
    WorkReader::Entry entry = despite_short_memory([this] { return reader_.read(fetched_, end_); });
    despite_short_memory([this] { active_.emplace_back(); });
    fetched_ += entry.work.blocks;
    if (setup_.aliases != nullptr) {
      entry.work.local_key = setup_.aliases->local(entry.work.local_key);
      entry.work.remote_key = setup_.aliases->remote(entry.work.remote_key);
    }
    Active& made = active_.back();
    made.serial = first_serial_ + active_.size() - 1;
    made.work = std::move(entry.work);
    if (entry.syndrome != Syndrome::none) stop_at(made, entry.syndrome, entry.complaint);
    any = true;
  }
  return any;
}

// It takes no block of the ring, so that nobody has to post it: producers on a GPU have their
// indexes where no thread of the host may touch them.
void Requester::probe() {
  if (failed_ || nic_.sends_nothing || !active_.empty() || fetched_ < end_) return;
  despite_short_memory([this] { active_.emplace_back(); });
  Active& made = active_.back();
  made.serial = first_serial_;
  made.work.kind = WorkKind::write;
  made.work.opcode = kProbeOpcode;
  made.work.index = fetched_;
  made.work.blocks = 0;
  made.work.is_inline = true;
  ++nic_.counters.probes;
}

void Requester::stop_at(Active& entry, Syndrome syndrome, Complaint complaint) {
  if (entry.done) return;
  const bool is_gone = syndrome == Syndrome::remote_gone;
  entry.syndrome = is_gone ? Syndrome::remote_access : syndrome;
  entry.complaint = is_gone ? Complaint::given_back : complaint;
  entry.done = true;
  halted_at_ = std::min(halted_at_, entry.serial);
}

bool Requester::begin_entries(TimePoint now) {
  bool any = false;
  while (next_ < active_.size() && !nic_.stopped && !nic_.dead) {
    Active& entry = active_[next_];
    if (!entry.begun && entry.serial >= halted_at_) break;
    if (!entry.begun) {
      if (!may_begin(entry, now) || meets_fault(entry)) break;
      begin(entry);
      any = true;
      if (!entry.begun) break;
    }
    const std::uint32_t before = entry.sent;
    const bool sent = send_pieces(entry, now);
    any = any || entry.sent != before;
    if (!sent) break;
    ++next_;
  }
  return any;
}

Duration Requester::delay_of(std::uint64_t index) {
  Duration delay{};
  for (const NicFaults::Delay& fault : nic_.faults.delays) {
    if (!fault.place.covers(number_, index)) continue;
    const auto limit = static_cast<std::uint64_t>(fault.random.count());
    delay += fault.duration + Duration(static_cast<std::int64_t>(nic_.random_below(limit)));
  }
  return delay;
}

bool Requester::may_begin(Active& entry, TimePoint now) {
  const WorkRequest& work = entry.work;
  if (work.fence == FenceMode::reads_and_atomics && reads_in_flight_ != 0) return false;
  if (work.fence == FenceMode::everything && (!sent_.empty() || !landings_.empty())) return false;
  if (waits_for_data(work) && reads_in_window_ >= kReadsInFlightMost) return false;
  if (!entry.has_time) {
    entry.has_time = true;
    entry.not_before = now + delay_of(work.index);
  }
  return now >= entry.not_before;
}

bool Requester::meets_fault(Active& entry) {
  if (entry.work.blocks == 0) return false;  // faults are planted at what was posted
  for (const NicFaults::End& fault : nic_.faults.ends) {
    if (entry.ended || !fault.place.covers(number_, entry.work.index)) continue;
    entry.ended = true;  // once the NIC goes on, so does this entry
    (fault.die ? nic_.dead : nic_.stopped) = true;
    return true;
  }
  for (const NicFaults::Fail& fault : nic_.faults.fails) {
    if (!fault.place.covers(number_, entry.work.index)) continue;
    if (!fault.after_delivery) {
      stop_at(entry, fault.syndrome, Complaint::by_fault);
      return true;
    }
    // It runs its course and then has an error all the same.
    entry.syndrome = fault.syndrome;
    entry.complaint = Complaint::by_fault;
    halted_at_ = entry.serial;
  }
  return false;
}

void Requester::begin(Active& entry) {
  const WorkRequest& work = entry.work;
  if (!work.is_inline && work.kind != WorkKind::nop) {
    const auto found = nic_.keys.find_local(setup_.domain, work.local_key, work.local_address,
                                            work.bytes, waits_for_data(work));
    const bool is_found = found.syndrome == Syndrome::none;
    // One that another NIC has begun may be done: the peer is asked whether it is.
    const bool is_repeated = work.kind == WorkKind::write && may_be_done(next_number_, false);
    if (!is_found && !is_repeated) return stop_at(entry, found.syndrome, Complaint::none);
    entry.direct = is_found && can_go_directly(work, found.place);
    entry.fetched = is_found && !entry.direct && can_be_fetched(work, found.place);
  }
  const bool is_bare = entry.direct || entry.fetched;
  entry.piece_bytes = is_bare ? bare_piece_bytes() : setup_.piece_bytes;
  entry.begun = true;
  ++nic_.counters.entries;
  if (work.kind == WorkKind::nop || work.kind == WorkKind::dump) {
    // The read itself has no other effect than that what was on its way has arrived.
    if (work.kind == WorkKind::dump) nic_.late.land_all();
    entry.done = true;
    return;
  }
  const std::uint64_t pieces = (work.bytes + entry.piece_bytes - 1) / entry.piece_bytes;
  entry.pieces = static_cast<std::uint32_t>(std::max<std::uint64_t>(pieces, 1));
  if (waits_for_data(work)) {
    ++reads_in_flight_;
    ++reads_in_window_;
  }
  if (nic_.faults.shuffle_pieces && entry.pieces > 1) {
    entry.order.resize(entry.pieces);
    std::iota(entry.order.begin(), entry.order.end(), 0u);
    std::shuffle(entry.order.begin(), entry.order.end(), nic_.random);
  }
}

bool Requester::send_pieces(Active& entry, TimePoint now) {
  while (entry.sent < entry.pieces && !entry.done) {
    if (sent_.size() >= kSentMost) return false;
    const std::uint32_t piece = entry.order.empty() ? entry.sent : entry.order[entry.sent];
    Sent sent;
    sent.serial = entry.serial;
    sent.offset = std::uint64_t{piece} * entry.piece_bytes;
    sent.bytes = static_cast<std::uint32_t>(
        std::min<std::uint64_t>(entry.piece_bytes, entry.work.bytes - sent.offset));
    if (entry.fetched && !lend(entry, sent)) {
      despite_short_memory([&] { cut_for_wire(entry); });
      continue;
    }
    const bool is_bare = entry.direct || sent.source.has_value();
    sent.wire_bytes = is_bare || entry.work.kind == WorkKind::atomic ? 0 : sent.bytes;
    if (!window_.has_room(under_way_, sent.wire_bytes)) return false;
    under_way_ += sent.wire_bytes;
    sent.number = next_number_++;
    sent.last = ++entry.sent == entry.pieces;
    sent.direct = entry.direct;
    despite_short_memory([&] { sent_.push_back(std::move(sent)); });
    if (held_up_) {
      load_ahead(sent_.back());
      continue;
    }
    const Turn turn = transmit(sent_.back(), now);
    if (turn == Turn::blocked) return false;
    held_up_ = turn == Turn::loading;
  }
  return entry.sent == entry.pieces;
}

/// Goes on to bring the payload from where it is registered.
Requester::Turn Requester::load(Active& entry, Sent& sent) {
  const WorkRequest& work = entry.work;
  // Looked up again: the key may have been given back since the entry began.
  const auto found =
      nic_.keys.find_local(setup_.domain, work.local_key, work.local_address, work.bytes, false);
  DataMover& mover = nic_.mover(found.place);
  const Syndrome syndrome = found.syndrome == Syndrome::none && mover.has_failed()
                                ? Syndrome::local_operation
                                : found.syndrome;
  if (syndrome != Syndrome::none) {
    stop_at(entry, syndrome,
            found.syndrome == Syndrome::none ? Complaint::no_copies : Complaint::none);
    return Turn::blocked;
  }
  // The host's memory is sent from where it is registered now.
  if (!sent.load.has_value() || found.place == MemoryPlace::host)
    sent.load.emplace(sent.bytes, true);
  static_cast<void>(sent.load->begin(mover, found.memory + sent.offset));
  sent.loaded = sent.load->take(mover);
  return sent.loaded ? Turn::sent : Turn::loading;
}

/// Has the payload be on its way while those before it are.
void Requester::load_ahead(Sent& sent) {
  Active& entry = active(sent.serial);
  const bool is_bare = sent.direct || sent.source.has_value();
  const bool needed = entry.work.kind == WorkKind::write && !entry.work.is_inline && !is_bare;
  if (!needed || sent.loaded || entry.done || asks_only(sent)) return;
  static_cast<void>(load(entry, sent));
}

/// What is asked for, without the bytes of a write that have to be read first.
WireRequest Requester::request_for(const Sent& sent) {
  const Active& entry = active(sent.serial);
  const WorkRequest& work = entry.work;
  WireRequest request;
  request.from = nic_.wires[peer_.wire]->address();
  request.from_queue = number_;
  request.to_queue = peer_.queue;
  request.epoch = peer_.epoch;
  request.number = sent.number;
  request.kind = work.kind;
  request.key = work.remote_key;
  request.address = work.remote_address;
  request.bytes = work.bytes;
  request.offset = sent.offset;
  request.piece_bytes = sent.bytes;
  request.has_immediate = work.has_immediate && sent.last;
  request.immediate = work.immediate;
  request.atomic = work.atomic;
  request.direct = sent.direct;
  request.source = sent.source;
  if (sent.direct && entry.direct) {  // else it only asks, by key 0, which is none
    request.source_key = work.local_key;
    request.source_address = work.local_address + sent.offset;
  } else if (work.is_inline) {
    request.payload = Payload::borrow(ByteView(work.inline_bytes).subspan(sent.offset, sent.bytes));
  }
  return request;
}

Requester::Turn Requester::transmit(Sent& sent, TimePoint now) {
  Active& entry = active(sent.serial);
  if (asks_only(sent)) {
    sent.direct = true;
    sent.load.reset();
    sent.loaded = false;
  }
  const bool is_bare = sent.direct || sent.source.has_value();
  WireMessage message{request_for(sent)};
  if (entry.work.kind == WorkKind::write && !entry.work.is_inline && !is_bare) {
    const Turn turn = load(entry, sent);
    if (turn != Turn::sent) return turn;
    std::get<WireRequest>(message.body).payload = sent.load->lend();
  }
  sent.on_wire = nic_.wires[peer_.wire]->send(peer_.address, message);
  // While there is no room the time counts from the first try: a peer that takes nothing from a
  // full ring answers no more than one that is gone.
  if (sent.on_wire || sent.at == TimePoint{}) sent.at = now;
  if (sent.on_wire) {
    sent.place = message.place;
    note_sent(sent);
    return Turn::sent;
  }
  // What the wire has copied before it found that there is no room need not be copied again.
  Payload& payload = std::get<WireRequest>(message.body).payload;
  if (sent.loaded && !payload.is_borrowed()) sent.load.emplace(payload.take());
  return Turn::blocked;
}

void Requester::note_sent(Sent& sent) {
  sent.was_sent = true;
  sent.load.reset();  // who sends it again reads the memory again
  sent.loaded = false;
  if (setup_.records != nullptr) {
    setup_.records->sent = std::max(setup_.records->sent, sent.number + 1);
  }
  ++nic_.counters.requests;
}

bool Requester::transmit_again(TimePoint now) {
  held_up_ = false;
  if (now < not_before_) return false;
  for (Sent& sent : sent_) {
    if (sent.on_wire || sent.answered) continue;
    if (held_up_) {
      load_ahead(sent);
      continue;
    }
    const Turn turn = transmit(sent, now);
    if (turn == Turn::blocked) return false;
    held_up_ = turn == Turn::loading;
  }
  return true;
}

void Requester::repeat_from(std::size_t position) {
  for (; position < sent_.size(); ++position) {
    if (sent_[position].on_wire && !sent_[position].answered) ++nic_.counters.repeated;
    sent_[position].on_wire = false;
  }
}

void Requester::look_at_timer(TimePoint now) {
  if (sent_.empty() || sent_.front().at == TimePoint{}) return;
  Sent& oldest = sent_.front();
  if (now - std::max(oldest.at, heard_) < setup_.answer_timeout) return;
  const WireSign sign = nic_.wires[peer_.wire]->sign_of(peer_.address);
  const bool is_there = sign.heard > std::max(oldest.at, heard_);
  // Then it is the queue that does not answer, whatever else its NIC has to say.
  const bool has_arrived = oldest.place != 0 && sign.arrived >= oldest.place;
  oldest.missed += is_there && !has_arrived ? 1 : kSilent;
  oldest.at = now;
  if (oldest.missed > kSilent * setup_.repeats_most) {
    stop_at(active(oldest.serial), Syndrome::transport_retry, Complaint::none);
    return;
  }
  const std::uint64_t little = std::max<std::uint64_t>(setup_.piece_bytes, ByteWindow::kLeast);
  if (under_way_ <= little) return repeat_from(0);
  // The others may still be leaving, and would then stand behind themselves.
  question_ = oldest.number;
  told_.reset();
  if (oldest.on_wire) ++nic_.counters.repeated;
  oldest.on_wire = false;
}

/// All that is left is repeated once the oldest, asked for alone, has been answered and nothing
/// follows: had the others arrived, so would their answers have, before or soon after that one.
void Requester::ask_again(TimePoint now) {
  if (!told_.has_value() || now - *told_ < setup_.answer_timeout / 8) return;
  question_.reset();
  told_.reset();
  repeat_from(0);
}

void Requester::note_question(std::uint64_t number, TimePoint now) {
  if (!question_.has_value()) return;
  if (number == *question_ && !told_.has_value()) {
    told_ = now;
  } else if (number > *question_) {
    question_.reset();
    told_.reset();
  }
}

void Requester::receive(WireResponse& response, TimePoint now) {
  if (response.epoch != peer_.epoch) {
    ++nic_.counters.strays;
    return;
  }
  if (failed_ || sent_.empty() || response.number < sent_.front().number) return;
  const std::uint64_t position = response.number - sent_.front().number;
  if (position >= sent_.size() || sent_[position].answered) return;
  heard_ = now;
  note_answer(sent_[position].at);
  note_question(response.number, now);
  if (response.not_ready) {
    not_before_ = now + setup_.not_ready_pause;
    return repeat_from(position);
  }
  if (response.not_mapped) return go_by_wire(position);
  // A response says that the writes before it have been done: their own may have been lost.
  for (std::size_t i = 0; i < position; ++i) {
    if (sent_[i].answered || active(sent_[i].serial).work.kind != WorkKind::write) continue;
    take_answer(sent_[i], nullptr, now);
  }
  take_answer(sent_[position], &response, now);
  while (!sent_.empty() && sent_.front().answered) {
    const Sent& oldest = sent_.front();
    if (oldest.last && waits_for_data(active(oldest.serial).work)) --reads_in_window_;
    sent_.pop_front();
  }
}

void Requester::note_answer(TimePoint sent_at) {
  if (setup_.answered == nullptr) return;
  if (sent_at <= setup_.answered->load(std::memory_order_relaxed)) return;
  setup_.answered->store(sent_at, std::memory_order_relaxed);
}

void Requester::take_answer(Sent& sent, WireResponse* response, TimePoint now) {
  sent.answered = true;
  window_.ended(under_way_, sent.wire_bytes, sent.at, now);
  under_way_ -= sent.wire_bytes;
  take_back(sent);
  Active& entry = active(sent.serial);
  if (response != nullptr && response->syndrome != Syndrome::none) {
    return stop_at(entry, response->syndrome, Complaint::none);
  }
  // What has to land first is counted then.
  if (response != nullptr && !land(entry, sent, *response, now)) return;
  end_piece(entry);
}

void Requester::end_piece(Active& entry) {
  if (++entry.answered < entry.pieces) return;
  if (waits_for_data(entry.work)) --reads_in_flight_;
  entry.done = true;
}

/// What an answer brings goes where the entry wants it. Whether it is there.
bool Requester::land(Active& entry, const Sent& sent, WireResponse& response, TimePoint now) {
  const WorkRequest& work = entry.work;
  if (!waits_for_data(work)) return true;
  Payload bytes = std::move(response.payload);
  if (work.kind == WorkKind::atomic) {
    Bytes old = despite_short_memory([&] { return Bytes(work.atomic.bytes); });
    // As the adapter does it: of 8 bytes as the host has them, of 4 as the wire has them.
    if (work.atomic.bytes == 4) {
      store_big32(old.data(), static_cast<std::uint32_t>(response.old_value));
    } else {
      std::memcpy(old.data(), &response.old_value, 8);
    }
    bytes = std::move(old);
  } else if (bytes.size() != (entry.direct ? 0 : sent.bytes)) {
    stop_at(entry, Syndrome::remote_operation, Complaint::data_length);
    return true;
  }
  const auto found =
      nic_.keys.find_local(setup_.domain, work.local_key, work.local_address, work.bytes, true);
  if (found.syndrome != Syndrome::none) {
    stop_at(entry, found.syndrome, Complaint::none);
    return true;
  }
  if (nic_.faults.late_reads != Duration::zero() && found.place == MemoryPlace::host) {
    nic_.late.add(found.memory + sent.offset, bytes.take(), now + nic_.faults.late_reads);
    return true;
  }
  if (sent.bytes == 0) return true;
  const bool may_begin = landings_.empty() || landings_.back().begun;
  despite_short_memory([this] { landings_.emplace_back(); });
  Landing& landing = landings_.back();
  landing.serial = sent.serial;
  landing.offset = sent.offset;
  landing.bytes = sent.bytes;
  landing.storing = Storing(std::move(bytes));
  if (may_begin && !entry.done) begin_landing(landing, entry);
  // The rest is still the wire's, which takes it back.
  despite_short_memory([&] { landing.storing.own(); });
  return false;
}

void Requester::begin_landing(Landing& landing, Active& entry) {
  const WorkRequest& work = entry.work;
  const auto found =
      nic_.keys.find_local(setup_.domain, work.local_key, work.local_address, work.bytes, true);
  if (found.syndrome != Syndrome::none) return stop_at(entry, found.syndrome, Complaint::none);
  landing.place = found.place;
  DataMover& mover = nic_.mover(found.place);
  std::byte* const to = found.memory + landing.offset;
  if (!entry.direct) {
    landing.begun = landing.storing.begin(mover, to);
    landing.ticket = landing.storing.ticket();
    return;
  }
  const auto source =
      nic_.peers.find(peer_.process, work.remote_key, work.remote_address, work.bytes);
  // It was mapped when the entry began.
  if (source.syndrome != Syndrome::none) return stop_at(entry, source.syndrome, Complaint::none);
  landing.begun = mover.copy(to, source.memory + landing.offset, landing.bytes, landing.ticket);
  if (landing.begun) nic_.count_copy(landing.bytes);
}

bool Requester::go_on_landing() {
  bool any = false;
  for (auto it = landings_.begin(); it != landings_.end();) {
    Active& entry = active(it->serial);
    if (!it->begun && !entry.done) begin_landing(*it, entry);
    DataMover& mover = nic_.mover(it->place);
    if (mover.has_failed()) stop_at(entry, Syndrome::local_operation, Complaint::no_copies);
    const bool landed = it->begun && mover.is_done(it->ticket);
    if (!landed && !entry.done) {
      ++it;
      continue;
    }
    if (!entry.done) end_piece(entry);
    it = landings_.erase(it);
    any = true;
  }
  return any;
}

bool Requester::retire() {
  bool any = false;
  while (!active_.empty() && active_.front().done && !failed_ && !nic_.dead) {
    Active& entry = active_.front();
    any = true;
    if (entry.syndrome != Syndrome::none) {
      completed_ = entry.work.index + entry.work.blocks;
      write_error({.kind = CompletionRecord::Kind::request_error,
                   .opcode = entry.work.opcode,
                   .queue = name_,
                   .index = static_cast<std::uint16_t>(entry.work.index),
                   .syndrome = entry.syndrome,
                   .complaint = entry.complaint});
      return true;
    }
    complete(entry);
    active_.pop_front();
    ++first_serial_;
    if (next_ > 0) --next_;
  }
  return any;
}

void Requester::complete(const Active& entry) {
  const WorkRequest& work = entry.work;
  poison(work);
  completed_ = work.index + work.blocks;
  if (setup_.records != nullptr) {
    setup_.records->completed = completed_;
    setup_.records->number += entry.pieces;
  }
  if (!work.signalled) return;
  const auto time = nic_.clock->now().time_since_epoch().count();
  completions_.write({.opcode = work.opcode,
                      .queue = name_,
                      .index = static_cast<std::uint16_t>(work.index),
                      .bytes = static_cast<std::uint32_t>(work.bytes),
                      .time = static_cast<std::uint64_t>(time)});
}

void Requester::poison(const WorkRequest& work) {
  for (std::uint64_t i = work.index; i < work.index + work.blocks; ++i) {
    std::memset(setup_.memory.ring + (i & (setup_.memory.depth - 1)) * kBlock, 0xdd, kBlock);
  }
}

}  // namespace oriel::net
