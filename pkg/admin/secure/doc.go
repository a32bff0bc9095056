// SPDX-License-Identifier: Apache-2.0

// Package secure has what the admin server needs for clients of the network: a certificate that follows its files, and the verdicts of
// the API server about tokens.
package secure
