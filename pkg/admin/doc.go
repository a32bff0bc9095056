// SPDX-License-Identifier: Apache-2.0

// Package admin serves the pages for operators over HTTP.
//
// It receives the content of the pages as functions, and imports none of the packages that they describe. docs/status.md
// describes them.
//
// Clients of the port are not trusted. Requests have a small header, no body, and a time limit. The number of
// connections is bounded. What names pods or queries needs a token; what changes or profiles the agent is on the
// unix socket only. A handler that panics fails only its own request.
package admin
