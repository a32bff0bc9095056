// SPDX-License-Identifier: Apache-2.0

// Package tsig verifies queries and signs replies with shared keys (RFC 8945).
package tsig
