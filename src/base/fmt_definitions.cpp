// SPDX-FileCopyrightText: The Oriel authors
// SPDX-License-Identifier: Apache-2.0
// Instantiates the functions of fmt 9 that its headers declare, once for all of Oriel. They are
// hidden like the rest of the shared library.
#include <fmt/format-inl.h>

namespace fmt {
inline namespace v9 {
namespace detail {

template dragonbox::decimal_fp<float> dragonbox::to_decimal(float) noexcept;
template dragonbox::decimal_fp<double> dragonbox::to_decimal(double) noexcept;
template thousands_sep_result<char> thousands_sep_impl(locale_ref);
template char decimal_point_impl(locale_ref);
template void buffer<char>::append(const char*, const char*);
template void vformat_to(buffer<char>&, string_view, basic_format_args<format_context>, locale_ref);

}  // namespace detail
}  // namespace v9
}  // namespace fmt
