// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

/// Queues of a NIC that device code fills itself.
#include "oriel/device/queue/atomics.hpp"
#include "oriel/device/queue/completion.hpp"
#include "oriel/device/queue/immediates.hpp"
#include "oriel/device/queue/publish.hpp"
#include "oriel/device/queue/region.hpp"
#include "oriel/device/queue/send_queue.hpp"
#include "oriel/device/queue/transfers.hpp"
#include "oriel/device/queue/work_entry.hpp"
