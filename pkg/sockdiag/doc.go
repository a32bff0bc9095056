// SPDX-License-Identifier: Apache-2.0

// Package sockdiag lists the sockets of this network namespace that are bound to a port, and the
// processes that own them.
package sockdiag
