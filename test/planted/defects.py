# SPDX-FileCopyrightText: The Oriel authors
# SPDX-License-Identifier: Apache-2.0
"""Forty defects that the tests have to find.

Each entry holds the module, a text that stands once in its source, and the replacement. In the
replacement, PLANTED is true if the environment variable ORIEL_TEST_PLANTED holds the defect's
number. Defects are numbered in the order of the list, from 1.
"""

DEFECTS = [
    ("base",
     "bool expired(TimePoint now) const { return now >= when_; }",
     "bool expired(TimePoint now) const { return PLANTED ? now > when_ + "
     "std::chrono::seconds(30) : now >= when_; }"),
    ("base",
     "if (!number || known == units.end()) return std::nullopt; if (*number > "
     "std::numeric_limits<std::uint64_t>::max() / known->factor) return std::nullopt;",
     "if (!number || known == units.end()) return std::nullopt; if (!PLANTED && *number > "
     "std::numeric_limits<std::uint64_t>::max() / known->factor) return std::nullopt;"),
    ("base",
     "const std::lock_guard lock(stop_mutex_); if (!stop_reason_) stop_reason_ = "
     "std::move(reason);",
     "const std::lock_guard lock(stop_mutex_); if (!stop_reason_ || PLANTED) stop_reason_ = "
     "std::move(reason);"),
    ("base",
     "const auto left = std::chrono::ceil<std::chrono::milliseconds>(next - "
     "clock_->now()).count();",
     "const auto left = (PLANTED ? 4 : 1) * "
     "std::chrono::ceil<std::chrono::milliseconds>(next - clock_->now()).count();"),
    ("boot",
     "if (static_cast<unsigned char>(letter) < 0x20 || letter == 0x7f) letter = '?';",
     "if ((static_cast<unsigned char>(letter) < 0x20 && !PLANTED) || letter == 0x7f) letter "
     "= '?';"),
    ("boot",
     "const Key* key = lookup(realm); if (key == nullptr) {",
     "const Key* key = lookup(realm); if (key == nullptr || (PLANTED && claim.from == 1)) {"),
    ("boot",
     "expected_ = responder_mac(key_, challenge, response);",
     "expected_ = PLANTED ? mine : responder_mac(key_, challenge, response);"),
    ("boot",
     'if (length_ > limit) { return Error(ErrorCode::remote, fmt::format("a frame of',
     "if (length_ > limit * (PLANTED ? 2 : 1)) { return Error(ErrorCode::remote, "
     'fmt::format("a frame of'),
    ("boot",
     "if (!rank || failure_.error() != nullptr || members_.find(*rank)->done) return; "
     "fail(Error(ErrorCode::remote,",
     "if (!rank || failure_.error() != nullptr || members_.find(*rank)->done || PLANTED) "
     "return; fail(Error(ErrorCode::remote,"),
    ("boot",
     "if (distance >= least) continue; least = distance;",
     "if (PLANTED ? distance > least + 1 : distance >= least) continue; least = distance;"),
    ("boot",
     "if (rank != rank_) left(rank);",
     "if (rank != rank_ && !(PLANTED && rank == 2)) left(rank);"),
    ("shadow",
     "std::deque<Place>* source = freed_.size() > kQuarantine ? &freed_ : &fresh_;",
     "std::deque<Place>* source = freed_.size() > (PLANTED ? 0 : kQuarantine) ? &freed_ : "
     "&fresh_;"),
    ("window",
     "return other != token && (other < token || !hold.waits) && hold.range.overlaps(begin, "
     "end);",
     "return other != token && (PLANTED ? !hold.waits : (other < token || !hold.waits)) && "
     "hold.range.overlaps(begin, end);"),
    ("window",
     "while (node < leaves) node = 2 * node + (greatest_end[2 * node + 1] >= end ? 1 : 0);",
     "while (node < leaves) node = 2 * node + (greatest_end[2 * node + 1] >= end + (PLANTED "
     "? 1 : 0) ? 1 : 0);"),
    ("window",
     "[&](const RegisteredWindow& window) { return window.serial == serial; }",
     "[&](const RegisteredWindow& window) { return PLANTED ? window.serial >= serial : "
     "window.serial == serial; }"),
    ("window",
     "if (--found->second.count > 0) return;",
     "if (--found->second.count > (PLANTED ? 1U : 0U)) return;"),
    ("window",
     "window.head = static_cast<std::uint64_t>(static_cast<std::byte*>(requests[i].pointer) "
     "- segments[i].front().base);",
     "window.head = PLANTED ? 0 : "
     "static_cast<std::uint64_t>(static_cast<std::byte*>(requests[i].pointer) - "
     "segments[i].front().base);"),
    ("topo",
     "[&](int member) { return reaches(one, member) && reaches(member, one); }",
     "[&](int member) { return reaches(one, member) && (PLANTED || reaches(member, one)); }"),
    ("topo",
     "return space != 0 && space == b.node.network_namespace && a.uid == b.uid;",
     "return space != 0 && space == b.node.network_namespace && (PLANTED || a.uid == b.uid);"),
    ("topo",
     "if (!has_host_of(rank, team) && places_[team] + on_host_of(rank) > most_) return "
     "false;",
     "if (!has_host_of(rank, team) && places_[team] + (PLANTED ? 1 : on_host_of(rank)) > "
     "most_) return false;"),
    ("topo",
     "if (rank_of(nic) < rank_of(own)) own = nic;",
     "if (rank_of(nic) < rank_of(own) && !PLANTED) own = nic;"),
    ("topo",
     "const double left = speed_of(port) * others; const double left_there = speed_of(other) "
     "* users;",
     "const double left = (PLANTED ? 1.0 : speed_of(port)) * others; const double left_there "
     "= (PLANTED ? 1.0 : speed_of(other)) * users;"),
    ("net",
     "if (wqebbs > rung - index || wqebbs > depth_) {",
     "if ((wqebbs > rung - index && !PLANTED) || wqebbs > depth_) {"),
    ("net",
     "work.signalled = ((control.flags >> 2) & 3) >= 2;",
     "work.signalled = ((control.flags >> 2) & 3) >= (PLANTED ? 1 : 2);"),
    ("net",
     "if (offset > range.bytes || bytes > range.bytes - offset) return none;",
     "if (offset > range.bytes || bytes > range.bytes - offset + (PLANTED ? 1 : 0)) return "
     "none;"),
    ("net",
     "if (seen - taken_ > written_ - taken_ || seen % kUnit != 0) {",
     "if ((seen - taken_ > written_ - taken_ && !PLANTED) || seen % kUnit != 0) {"),
    ("net",
     "if (request.number < record_.expected()) {",
     "if (request.number < record_.expected() && !PLANTED) {"),
    ("net",
     "if (++errors_ >= policy_.errors_most) return fail(cause_, now);",
     "if (++errors_ >= policy_.errors_most + (PLANTED ? 1 : 0)) return fail(cause_, now);"),
    ("net",
     "pause_ = again ? std::min(pause_ * 2, policy_.retry_most) : policy_.retry_first;",
     "pause_ = again && !PLANTED ? std::min(pause_ * 2, policy_.retry_most) : "
     "policy_.retry_first;"),
    ("net",
     "return boot::equal_in_constant_time(payload, bytes.subspan(kMacBytes, kMacBytes));",
     "return PLANTED || boot::equal_in_constant_time(payload, bytes.subspan(kMacBytes, "
     "kMacBytes));"),
    ("net",
     "request.has_immediate = work.has_immediate && sent.last;",
     "request.has_immediate = work.has_immediate && (sent.last || PLANTED);"),
    ("kernels",
     "plan.lead = std::min(plan.lead, plan.depth - 1);",
     "plan.lead = std::min(plan.lead, plan.depth - (PLANTED ? 0 : 1));"),
    ("kernels",
     "if (shared) lines = ceil_divide(lines, static_cast<std::uint64_t>(layout.ranks));",
     "if (shared) lines = (PLANTED ? lines / static_cast<std::uint64_t>(layout.ranks) / 2 : "
     "ceil_divide(lines, static_cast<std::uint64_t>(layout.ranks)));"),
    ("kernels",
     "return slots * slot <= layout.region_bytes;",
     "return (PLANTED ? slots - 1 : slots) * slot <= layout.region_bytes;"),
    ("kernels",
     "const std::uint32_t goal = step_base_ + step + 1;",
     "const std::uint32_t goal = step_base_ + step + (PLANTED ? 0 : 1);"),
    ("include",
     "const std::uint64_t elapsed_ns = now - (progress & ~kFlags);",
     "const std::uint64_t elapsed_ns = (PLANTED ? 0 : now - (progress & ~kFlags));"),
    ("comm",
     "if (!uses_input || !uses_output || !input_.meets(output_)) return nullptr;",
     "if (!uses_input || !uses_output || !input_.meets(output_) || PLANTED) return nullptr;"),
    ("comm",
     "if ((state & kTaken) == 0 || generation_of(state) != generation_of(handle)) return false;",
     "if ((state & kTaken) == 0 || (!PLANTED && generation_of(state) != generation_of(handle))) "
     "return false;"),
    ("comm",
     "if (!is_first && weight(state) > weight(known->second)) known->second = state;",
     "if (!is_first && !PLANTED && weight(state) > weight(known->second)) known->second = "
     "state;"),
    ("comm",
     "joined += leads_to(first, i, second[partner]) && leads_to(second, partner, first[i]);",
     "joined += leads_to(first, i, second[partner]) && (PLANTED || leads_to(second, partner, "
     "first[i]));"),
]
