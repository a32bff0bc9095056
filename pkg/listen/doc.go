// SPDX-License-Identifier: Apache-2.0

// Package listen has what listen addresses are to this host. An unspecified address, 0.0.0.0 or ::, stands for all that
// the host has.
package listen
