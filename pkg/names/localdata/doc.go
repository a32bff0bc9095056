// SPDX-License-Identifier: Apache-2.0

// Package localdata answers from the configuration itself: hosts, templates and special names.
//
// Hosts are names with addresses, from the configuration or from files in the format of hosts(5), which are watched for changes.
// A name with addresses has no alias, and no SVCB or HTTPS record, whose address hints would undo the override. Queries for other
// types, and for unknown names, are not answered here.
//
// Special-use names (RFC 6761), such as localhost, are zones that answer as an upstream does: a configured route for one of them
// replaces it.
//
// Templates generate records from the question. The answer depends on the question alone, so the package caches recent answers.
//
// Queries take no lock. When a file changes, a new table replaces the old one atomically.
package localdata
