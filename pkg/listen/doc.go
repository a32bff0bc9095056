// SPDX-License-Identifier: Apache-2.0

// Package listen finds out which clients and queries reach sockets at given listen addresses. An unspecified address, 0.0.0.0 or ::,
// stands for all addresses of the host.
package listen
