// SPDX-License-Identifier: Apache-2.0

// Package secure has the verdicts of the API server about the tokens of the admin server's clients.
package secure
