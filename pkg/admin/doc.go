// SPDX-License-Identifier: Apache-2.0

// Package admin serves the pages for operators over HTTP.
//
// It receives the content of the pages as functions and knows no other package. docs/status.md
// describes them.
//
// Clients of the port are not trusted. Requests have a small header, no body, and a time limit. The number of
// connections is bounded. Profiles are for clients on this host only. A handler that panics fails only its
// own request.
package admin
