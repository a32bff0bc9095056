// SPDX-License-Identifier: Apache-2.0

// Package status holds the documents of /status and of the cache pages as typed values, and derives the
// problems that an operator should fix from them.
//
// docs/status.md describes the documents. The values come from the Stats of the other packages.
package status
