// SPDX-License-Identifier: Apache-2.0

package listen

import (
	"errors"
	"net"
	"net/netip"
	"slices"
	"syscall"

	"github.com/nodecache/node-cache/pkg/hint"
)

// Problem adds a hint to an error of opening a socket at a port.
func Problem(err error, port uint16) error {
	advice := ""
	switch {
	case errors.Is(err, syscall.EADDRINUSE):
		advice = "another program uses the port: find it with `ss -lnptu`, or set another listen.port or listen.addresses"
	case errors.Is(err, syscall.EACCES) && port < 1024:
		advice = "ports below 1024 need root or the capability NET_BIND_SERVICE"
	case errors.Is(err, syscall.EACCES), errors.Is(err, syscall.EPERM):
		advice = "this host forbids the socket: check its seccomp, LSM, and cgroup rules"
	case errors.Is(err, syscall.EADDRNOTAVAIL):
		advice = "no interface of this host has the address; list the addresses with `ip address`"
	case errors.Is(err, syscall.EAFNOSUPPORT):
		advice = "this host does not support that IP family"
	case errors.Is(err, syscall.EMFILE), errors.Is(err, syscall.ENFILE):
		advice = "raise the limit of open files (ulimit -n)"
	default:
		return err
	}
	return &hint.Error{Err: err, Hint: advice}
}

// Reachable returns an address at which this host reaches a listener at addr. The kernel sends packets for an
// unspecified address to the loopback address.
func Reachable(addr netip.Addr) netip.Addr {
	switch addr {
	case netip.IPv4Unspecified():
		return netip.AddrFrom4([4]byte{127, 0, 0, 1})
	case netip.IPv6Unspecified():
		return netip.IPv6Loopback()
	}
	return addr
}

// Receives reports whether a query that this host sends to an address reaches a listener at one of listen, on the same port. A
// listener at [::] receives IPv4 too.
func Receives(listen []netip.Addr, to netip.Addr) bool { return ReceivesOn(HostAddrs, listen, to) }

// ReceivesOn is Receives for a host whose addresses, except loopback ones, host returns.
func ReceivesOn(host func() []netip.Addr, listen []netip.Addr, to netip.Addr) bool {
	to = Reachable(to) // resolv.conf(5) files contain unspecified addresses
	return slices.ContainsFunc(listen, func(own netip.Addr) bool {
		return own == to || own.IsUnspecified() && (own.Is6() || to.Is4()) && (to.IsLoopback() || slices.Contains(host(), to.WithZone("")))
	})
}

// LocalClients returns a function that reports whether a client is on this host. The kernel gives the queries of such a client a
// loopback address or the queried address as their source. An unspecified address stands for those that the host has now.
func LocalClients(listen []netip.Addr) func(netip.Addr) bool {
	own := slices.Clone(listen)
	if slices.ContainsFunc(listen, netip.Addr.IsUnspecified) {
		own = append(own, HostAddrs()...)
	}
	own = slices.DeleteFunc(own, netip.Addr.IsUnspecified)
	return func(client netip.Addr) bool {
		client = client.Unmap().WithZone("")
		return client.IsLoopback() || slices.Contains(own, client)
	}
}

// Global returns the addresses at which other hosts reach the listeners. For an unspecified address these are the host's addresses
// except loopback and link-local ones.
func Global(listen []netip.Addr) (list []netip.Addr) {
	for _, addr := range listen {
		if !addr.IsUnspecified() {
			list = append(list, addr.WithZone(""))
			continue
		}
		for _, own := range HostAddrs() {
			if own.IsGlobalUnicast() && (addr.Is6() || own.Is4()) {
				list = append(list, own)
			}
		}
	}
	return list
}

// HostAddrs returns this host's addresses, none on an error.
func HostAddrs() []netip.Addr {
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		return nil
	}
	list := make([]netip.Addr, 0, len(addrs))
	for _, a := range addrs {
		if prefix, err := netip.ParsePrefix(a.String()); err == nil {
			list = append(list, prefix.Addr())
		}
	}
	return list
}
