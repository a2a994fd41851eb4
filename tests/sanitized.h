/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GR_TESTS_SANITIZED_H
#define GR_TESTS_SANITIZED_H

/* SANITIZED: 1 with AddressSanitizer or ThreadSanitizer, where everything takes several times as
 * long, and the heap is theirs. THOROUGH(n): so many cases of n; what a sanitizer looks for is in
 * fewer of them as well. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#elif defined(__has_feature)
#define SANITIZED (__has_feature(address_sanitizer) || __has_feature(thread_sanitizer))
#else
#define SANITIZED 0
#endif
#define THOROUGH(n) (SANITIZED ? ((n) + 3) / 4 : (n))

#endif
