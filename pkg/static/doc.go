// SPDX-License-Identifier: Apache-2.0

// Package static answers from the configuration itself: hosts and templates.
//
// Hosts are names with addresses, from the configuration or from files in the format
// of hosts(5), which are watched for changes. A name with addresses has no other records:
// queries for other types get NODATA. Queries for unknown names are not answered here.
//
// Templates generate records from the question. The answer depends on the question alone,
// so the package caches recent answers.
//
// Queries take no lock. When a file changes, a new table replaces the old one atomically.
package static
