// SPDX-License-Identifier: Apache-2.0

// Package page renders the page at / of the admin server.
//
// The server renders all of it, plots included, so that it is complete without JavaScript. The script only
// requests the page again and replaces what has changed. The page loads nothing from other servers.
package page
