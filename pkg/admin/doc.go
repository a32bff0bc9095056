// SPDX-License-Identifier: Apache-2.0

// Package admin serves the pages for operators over HTTP.
//
// It is given what the pages show as functions and knows no other package. The
// pages are listed at /; docs/status.md describes them.
//
// Who reaches the port is not trusted: a request has a small header, no body and
// a time limit, connections are bounded in number, profiles are for clients on
// this machine only, and a handler that panics costs its own request only.
package admin
