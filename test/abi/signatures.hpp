// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <utility>
#include <vector>

/// Name of each function of the header, and its type in the compiler's spelling. signatures.cpp is
/// compiled once with each header.
using Signatures = std::vector<std::pair<std::string, std::string>>;
Signatures oriel_signatures();
Signatures vendor_signatures();
