// SPDX-License-Identifier: Apache-2.0

// Package nodeservers reads which DNS servers the processes of a node ask: those of its resolv.conf, or those behind the stub of
// systemd-resolved.
//
// Another server may answer in their place only if all of them have the same names. With systemd-resolved a link can have servers for its
// own domains: these are left alone (see Read). So are servers whose packets rules cannot identify by address and port 53.
package nodeservers
